-- The position of the last fact such that no commit can appear at or under it any more; 0 before the first one. It is the
-- last fact of its commit. Never waits, never blocks a writer.
--
-- A commit's number is at most N, and N at most the number S that is read first. So it was taken before S was read, and
-- announced before that. If it is not visible when the locks are read, its lock is among them, with a smaller number;
-- and N is not greater than any lock's. A lock with a number ahead of S is of a commit that was announced later, whose
-- number is greater than S: it does not matter. Numbers of locks have 32 bits, so half of them are behind S, half ahead.
--
-- A standby knows neither locks nor which numbers were taken: there it is the cut that was published last.
CREATE OR REPLACE FUNCTION {schema}.cut() RETURNS bigint LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_last   bigint;
    v_behind bigint;                      -- how far behind the last number the earliest announcement is
    v_cut    bigint;
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN (SELECT position FROM {schema}.journal_published);
    END IF;
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO v_last FROM {schema}.journal_numbers;
    SELECT max(l.behind) INTO v_behind
      FROM (SELECT (v_last - objid::bigint) & 4294967295 AS behind FROM pg_catalog.pg_locks
             WHERE locktype = 'advisory' AND objsubid = 2 AND classid::bigint = ({positions}::bigint & 4294967295)
               AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())) l
     WHERE l.behind < 2147483648;
    -- journal_entries_pkey
    SELECT max(position) INTO v_cut FROM {schema}.journal_entries
     WHERE position < (v_last - coalesce(v_behind, 0) + 1) << 20;
    RETURN coalesce(v_cut, 0);
END $$;
