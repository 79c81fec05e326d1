-- Kept for code of schema version 6 and before; nothing of this version calls it.
--
-- Lock runs that are to be new, for a commit that comes in the same message. The caller says which time it is, as it worked
-- it out from an earlier answer: where that is not the database's time, or a run is there, it has to begin anew.
CREATE OR REPLACE FUNCTION {schema}.lock_new(
    p_runs text[],
    p_now timestamptz                     -- null: any time will do, since the caller's clock is the one that counts
) RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({gate});
    PERFORM pg_advisory_xact_lock({buckets}, bucket)
       FROM (SELECT DISTINCT hashtext(id) & 511 AS bucket FROM unnest(p_runs) id ORDER BY bucket) b;
    -- runs_pkey
    IF p_now > clock_timestamp() OR p_now < clock_timestamp() - interval '100 milliseconds'
       OR EXISTS (SELECT FROM {schema}.runs WHERE run_id = ANY (p_runs)) THEN
        RAISE EXCEPTION 'not new, or at another time' USING ERRCODE = 'SQ003';
    END IF;
END $$;
