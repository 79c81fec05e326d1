-- A position under which no commit can appear any more. Never waits, never blocks a writer: whoever is about to take
-- positions holds an advisory lock that says from where on (its low 32 bits), until its commit is visible.
CREATE OR REPLACE FUNCTION {schema}.cut() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_last  bigint;
    v_floor bigint;
BEGIN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO v_last FROM {schema}.journal_positions;
    SELECT min(v_last - ((v_last - objid::bigint) & 4294967295)) INTO v_floor
      FROM pg_catalog.pg_locks
     WHERE locktype = 'advisory' AND objsubid = 2 AND classid::bigint = ({positions}::bigint & 4294967295)
       AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database());
    RETURN least(v_last, coalesce(v_floor, v_last));
END $$;
