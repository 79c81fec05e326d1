-- Announce from where on positions are about to be taken. Call it after the last lock, right before nextval.
CREATE OR REPLACE FUNCTION {schema}.announce_positions() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_last bigint;
BEGIN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO v_last FROM {schema}.journal_positions;
    PERFORM pg_advisory_xact_lock_shared({positions}, (v_last & 4294967295)::bit(32)::int);
END $$;
