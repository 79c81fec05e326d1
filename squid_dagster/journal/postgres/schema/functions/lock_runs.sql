-- The first half of every append: lock and load what the facts touch. append_entries is the second.
-- Lock order, here and everywhere: the gate, new runs by bucket, run rows by id, attempt rows by key, thread rows by
-- id, positions. Plans are made once per session, for the named indexes: planning anew for every call would cost more
-- than the call.
--
-- Tables are looked up row by row, never joined whole, here and in every function on a hot path: a plan that was made
-- while a table was small or empty is kept when it has grown. So a plan must not depend on statistics: what is looked up
-- stands in a LATERAL subquery with OFFSET 0 or a lock, which no plan begins with; an UPDATE names its row by
-- `key = ANY (ARRAY[...])`, since for `key = ...` a plan may begin with the whole index in its order; and where two
-- indexes would do, the wrong one is kept out by `column || ''`. `tests/journal/test_stale_statistics.py` tries it.
CREATE OR REPLACE FUNCTION {schema}.lock_runs(
    p_hold_ms integer,                    -- how long the caller may go quiet while it holds these locks
    p_runs text[],                        -- every run that a fact names
    p_whole text[],                       -- those of which all open attempts are needed
    p_key_runs text[], p_keys text[],     -- single attempts, by run and runnable key, with the others of their visits
    p_child_runs text[], p_children text[]
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_runs     json;
    v_attempts json;
    v_siblings json;
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
        SELECT r.* FROM (SELECT DISTINCT id COLLATE "C" AS id FROM unnest(p_runs) id ORDER BY id OFFSET 0) n
         CROSS JOIN LATERAL (SELECT * FROM {schema}.runs WHERE run_id = n.id FOR UPDATE) r
    ) r;
    -- attempts_pkey, attempts_siblings, attempts_pkey. A session that waits for an attempt holds its run, so that their
    -- order cannot make a circle.
    IF cardinality(p_keys) > 0 THEN
        SELECT json_agg(a) INTO v_attempts FROM (
            SELECT a.* FROM unnest(p_key_runs, p_keys) k (run_id, runnable_key)
             CROSS JOIN LATERAL (
                SELECT * FROM {schema}.attempts WHERE run_id = k.run_id AND runnable_key = k.runnable_key FOR UPDATE) a
        ) a;
        SELECT json_agg(s) INTO v_siblings FROM (
            SELECT s.* FROM json_to_recordset(v_attempts)
                   AS a (run_id text, runnable_key text, idempotency_key text, attempt_number int)
             CROSS JOIN LATERAL (
                SELECT * FROM {schema}.attempts s
                 WHERE s.idempotency_key = a.idempotency_key AND s.run_id || '' = a.run_id
                   AND s.runnable_key <> a.runnable_key FOR UPDATE) s
             WHERE a.attempt_number > 1
        ) s;
    END IF;
    IF cardinality(p_whole) > 0 THEN
        SELECT json_agg(a) INTO v_whole FROM (
            SELECT * FROM {schema}.attempts
             WHERE run_id = ANY (p_whole) AND status IN ('available', 'retry_scheduled', 'claimed') FOR UPDATE
        ) a;
    END IF;
    -- children_pkey
    IF cardinality(p_children) > 0 THEN
        SELECT json_agg(c) INTO v_children
          FROM (SELECT DISTINCT * FROM unnest(p_child_runs, p_children) n (run_id, child_run_id)) n
         CROSS JOIN LATERAL (
                SELECT * FROM {schema}.children c
                 WHERE c.run_id = n.run_id AND c.child_run_id = n.child_run_id OFFSET 0) c;
    END IF;
    RETURN json_build_object('now', clock_timestamp(), 'runs', v_runs, 'attempts', v_attempts,
                             'siblings', v_siblings, 'whole', v_whole, 'children', v_children);
END $$;
