-- Kept for code of schema version 6 and before; nothing of this version calls it.
--
-- lock_runs with all attempts of a run, and no siblings.
--
-- The first half of every append: lock and load what the facts touch. append_entries is the second.
-- Lock order, here and everywhere: the gate, new runs by bucket, run rows by id, attempt rows by key, thread rows by
-- id, positions. Plans are made once per session, for the named indexes: planning anew for every call would cost more
-- than the call. Tables are looked up row by row, never joined whole: a plan made while a table was small is kept.
CREATE OR REPLACE FUNCTION {schema}.lock_units(
    p_hold_ms integer,                    -- how long the caller may go quiet while it holds these locks
    p_runs text[],                        -- every run that a fact names
    p_whole text[],                       -- those of which all attempts are needed
    p_key_runs text[], p_keys text[],     -- single attempts, by run and runnable key
    p_child_runs text[], p_children text[]
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_runs     json;
    v_attempts json;
    v_whole    json;
    v_children json;
BEGIN
    -- A client that stops between lock and write (suspended, swapped out, cut off) must not hold others up for ever.
    PERFORM set_config('idle_in_transaction_session_timeout', p_hold_ms::text, true);
    PERFORM pg_advisory_xact_lock_shared({gate});
    -- A run without a row cannot be locked by it: its first writers queue up for one of 512 buckets instead.
    PERFORM pg_advisory_xact_lock({buckets}, bucket) FROM (
        SELECT DISTINCT hashtext(id) & 511 AS bucket FROM unnest(p_runs) id
         WHERE NOT EXISTS (SELECT FROM {schema}.runs r WHERE r.run_id = id) ORDER BY bucket
    ) missing;
    -- runs_pkey
    SELECT json_agg(r) INTO v_runs FROM (
        SELECT * FROM {schema}.runs WHERE run_id = ANY (p_runs) ORDER BY run_id FOR UPDATE
    ) r;
    -- attempts_pkey, twice. Whoever waits for an attempt holds its run, so their order cannot make a circle.
    IF cardinality(p_keys) > 0 THEN
        SELECT json_agg(a) INTO v_attempts FROM (
            SELECT a.* FROM unnest(p_key_runs, p_keys) k (run_id, runnable_key)
              JOIN {schema}.attempts a ON a.run_id = k.run_id AND a.runnable_key = k.runnable_key
               FOR UPDATE OF a
        ) a;
    END IF;
    IF cardinality(p_whole) > 0 THEN
        SELECT json_agg(a) INTO v_whole FROM (
            SELECT * FROM {schema}.attempts WHERE run_id = ANY (p_whole) FOR UPDATE
        ) a;
    END IF;
    -- children_pkey
    IF cardinality(p_children) > 0 THEN
        SELECT json_agg(c) INTO v_children FROM {schema}.children c
         WHERE (run_id, child_run_id) IN (SELECT * FROM unnest(p_child_runs, p_children));
    END IF;
    RETURN json_build_object('now', clock_timestamp(), 'runs', v_runs, 'attempts', v_attempts, 'whole', v_whole,
                             'children', v_children);
END $$;
