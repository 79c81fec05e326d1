-- The fast way of a settlement: one call locks, checks the fences and writes what clients have planned for many runs.
--
-- A client plans by the state of a run at a revision of its thread; or without it, for a run that is at one step alone.
-- Here it is checked that this holds: the revision is the same, or the visit is the only open one and the run has no
-- anomaly; each claim stands, and a run that ends has no other attempt open. A run for which that does not hold is left
-- out whole, and goes the general way. The caller says which time it is, as it worked it out from an earlier answer; the
-- database's clock decides whether leases have run out.
CREATE OR REPLACE FUNCTION {schema}.settle_runs(
    p_commit uuid,
    p_at timestamptz,
    p_any_time boolean,                   -- the caller's clock is the one that counts
    p_runs text[],                        -- sorted by id, no run twice; m is a place in it
    p_queues text[], p_revs bigint[],     -- of each run: its queue, and the revision of its thread; null: at one step
    p_ends boolean[],                     -- whether it ends
    p_claims json,                        -- m, key, claim_id, token_hash
    p_entries json,                       -- facts of queues, by queue: m, type, data, and the row of a new attempt; then
                                          -- those of runs, with k (1.. in its thread)
    p_rows json,                          -- what changes in the rows of runs, with m
    p_settled json                        -- what changes in the rows of attempts, with m; not those of runs that end
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now     timestamptz;
    v_ok      boolean[];                  -- by m: whether it is written
    v_bad     integer[];
    v_keys    text[];
    v_receipt json;
    v_threads bigint[];                   -- by m: the revision of the run's thread
    v_queues  text[];                     -- those that get facts, sorted
    v_revs    bigint[];                   -- of the threads of these
    v_base    bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared({gate});
    -- runs_pkey
    SELECT array_agg(coalesce(r.going, false) ORDER BY n.m) INTO v_ok
      FROM unnest(p_runs) WITH ORDINALITY n (id, m)
      LEFT JOIN LATERAL (
            SELECT NOT fenced AND NOT quarantined AND terminal_status IS NULL AND quarantine IS NULL
                   AND queue = p_queues[n.m]
                   AND (p_revs[n.m] IS NOT NULL
                        OR planned_visits = applied_visits + 1 AND manual_state IS NULL AND start_digest IS NOT NULL)
                   AS going
              FROM {schema}.runs WHERE run_id = n.id FOR UPDATE) r ON true;
    -- A repeat waits for the same runs, so that the first answer is here to be seen.
    SELECT receipt INTO v_receipt FROM {schema}.journal_commits WHERE id = p_commit;
    IF FOUND THEN
        RETURN json_build_object('now', clock_timestamp(), 'written', (
            SELECT json_agg(n.m) FROM unnest(p_runs) WITH ORDINALITY n (id, m)
             WHERE v_receipt->('squid:run:' || n.id) IS NOT NULL));
    END IF;
    v_now := CASE WHEN p_any_time THEN p_at ELSE clock_timestamp() END;
    IF p_at > v_now OR p_at < v_now - interval '5 seconds' THEN
        RETURN json_build_object('now', v_now, 'written', NULL);
    END IF;
    -- attempts_pkey
    SELECT array_agg(c.m) FILTER (WHERE a.held IS NOT TRUE), array_agg(c.key) INTO v_bad, v_keys
      FROM json_to_recordset(p_claims) AS c (m int, key text, claim_id text, token_hash text)
      LEFT JOIN LATERAL (
            SELECT status = 'claimed' AND claim_id = c.claim_id AND claim_token_hash = c.token_hash
                   AND queue = p_queues[c.m] AND lease_until > v_now AND last_at <= p_at AND planned_digest IS NOT NULL
                   AND applied_digest IS NULL AS held
              FROM {schema}.attempts WHERE run_id = p_runs[c.m] AND runnable_key = c.key FOR UPDATE) a ON true;
    -- journal_threads_pkey; attempts_pkey, once in the life of a run; anomalies_run. A run's thread is written by holders of
    -- its row alone. So all is decided here, and the locks that others wait for, those of queues, are held for the rest.
    SELECT array_agg(coalesce(v_ok[n.m] AND n.m <> ALL (coalesce(v_bad, '{{}}'))
                              AND t.rev = coalesce(p_revs[n.m], t.rev) AND q.id IS NOT NULL, false)
                     AND NOT (p_ends[n.m] AND EXISTS (
                         SELECT FROM {schema}.attempts a
                          WHERE a.run_id = n.id AND a.status IN ('available', 'retry_scheduled', 'claimed')
                            AND a.runnable_key <> ALL (v_keys)))
                     AND NOT (p_revs[n.m] IS NULL AND EXISTS (
                         SELECT FROM {schema}.anomalies a WHERE a.run_id = n.id)) ORDER BY n.m),
           array_agg(t.rev ORDER BY n.m)
      INTO v_ok, v_threads
      FROM unnest(p_runs) WITH ORDINALITY n (id, m)
      LEFT JOIN LATERAL (
            SELECT rev FROM {schema}.journal_threads WHERE id = 'squid:run:' || n.id OFFSET 0) t ON true
      LEFT JOIN LATERAL (
            SELECT id FROM {schema}.journal_threads WHERE id = 'squid:dispatch:' || p_queues[n.m] OFFSET 0) q ON true;
    IF true <> ALL (v_ok) THEN
        RETURN json_build_object('now', v_now, 'written', NULL);
    END IF;

    -- attempts_pkey, runs_pkey
    IF p_settled IS NOT NULL THEN
        UPDATE {schema}.attempts a SET status = 'completed', input = NULL, outcome_digest = n.outcome_digest,
               settled_at = p_at, last_at = p_at, due_at = NULL, applied_digest = n.applied_digest
          FROM json_to_recordset(p_settled) AS n (m int, runnable_key text, outcome_digest text, applied_digest text)
         WHERE v_ok[n.m] AND a.run_id = ANY (ARRAY[p_runs[n.m]]) AND a.runnable_key = n.runnable_key;
    END IF;
    DELETE FROM {schema}.attempts WHERE run_id = ANY (ARRAY(
        SELECT p_runs[m] FROM generate_subscripts(p_runs, 1) m WHERE p_ends[m] AND v_ok[m]));
    UPDATE {schema}.runs r SET status = n.status, planned_visits = r.planned_visits + n.planned,
           applied_visits = r.applied_visits + n.applied,
           manual_state = CASE WHEN p_ends[n.m] THEN NULL ELSE coalesce(n.manual_state, r.manual_state) END,
           terminal_status = CASE WHEN p_ends[n.m] THEN n.status END, terminal_digest = n.terminal_digest,
           ended_at = CASE WHEN p_ends[n.m] THEN p_at END, fenced = p_ends[n.m]
      FROM json_to_recordset(p_rows) AS n (m int, status text, planned int, applied int, manual_state json,
           terminal_digest text)
     WHERE v_ok[n.m] AND r.run_id = ANY (ARRAY[p_runs[n.m]]);

    -- The caller waits for a row of one of its runs but shortly; for the threads that all of them share, as long as any.
    PERFORM set_config('lock_timeout', '30s', true);
    -- journal_threads_pkey, twice, in the order of ids: those of queues before those of runs.
    SELECT array_agg(q.queue ORDER BY q.queue COLLATE "C"), array_agg(q.rev ORDER BY q.queue COLLATE "C")
      INTO v_queues, v_revs
      FROM (SELECT n.queue, t.rev
              FROM (SELECT DISTINCT p_queues[m] COLLATE "C" AS queue FROM generate_subscripts(p_runs, 1) m
                     WHERE v_ok[m] ORDER BY p_queues[m] COLLATE "C") n
              CROSS JOIN LATERAL (
                    SELECT rev FROM {schema}.journal_threads WHERE id = 'squid:dispatch:' || n.queue FOR UPDATE) t) q;
    v_revs := ARRAY(SELECT {schema}.revision_of('squid:dispatch:' || v_queues[i], v_revs[i])
                      FROM generate_subscripts(v_queues, 1) i ORDER BY i);
    PERFORM FROM unnest(p_runs) WITH ORDINALITY n (id, m)
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.journal_threads WHERE id = 'squid:run:' || n.id AND v_ok[n.m] FOR UPDATE) t;

    v_base := {schema}.take_number(json_array_length(p_entries));
    WITH placed AS MATERIALIZED (
        SELECT v_base + row_number() OVER (ORDER BY e.ord) AS position, e.m, e.k, e.type, e.data, e.row,
               CASE WHEN e.k IS NULL THEN 'squid:dispatch:' || p_queues[e.m] ELSE 'squid:run:' || p_runs[e.m] END
                 AS thread,
               CASE WHEN e.k IS NULL
                    THEN v_revs[array_position(v_queues, p_queues[e.m])]
                         + row_number() OVER (PARTITION BY e.k IS NULL, p_queues[e.m] ORDER BY e.ord)
                    ELSE v_threads[e.m] + e.k END AS seq
          FROM ROWS FROM (json_to_recordset(p_entries) AS (m int, k int, type text, data json, "row" json))
               WITH ORDINALITY AS e (m, k, type, data, "row", ord)
         WHERE v_ok[e.m]
    ), entries AS (
        INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
        SELECT p.position, p.thread, p.seq, p.type, p_runs[p.m], p_at, p.data,
               {schema}.entry_digest(p.thread, p.seq, p.type, p_runs[p.m], p_at, p.data)
          FROM placed p ORDER BY p.position
    ), attempts AS (
        INSERT INTO {schema}.attempts (run_id, runnable_key, position, {attempt_columns})
        SELECT a.run_id, a.runnable_key, p.position, {attempt_columns}
          FROM placed p CROSS JOIN LATERAL json_populate_record(NULL::{schema}.attempts, p.row) a
         WHERE p.row IS NOT NULL ORDER BY p.position
    ), moved AS (
        -- journal_threads_pkey
        UPDATE {schema}.journal_threads t SET rev = n.rev
          FROM (SELECT thread, max(seq) AS rev FROM placed WHERE k IS NOT NULL GROUP BY thread) n
         WHERE t.id = ANY (ARRAY[n.thread]) RETURNING t.id, t.rev
    )
    INSERT INTO {schema}.journal_commits (id, receipt, committed_at)
    SELECT p_commit, json_object_agg(t.id, t.rev), clock_timestamp()
      FROM (SELECT thread AS id, max(seq) AS rev FROM placed WHERE k IS NULL GROUP BY thread
             UNION ALL
            SELECT id, rev FROM moved) t;
    RETURN json_build_object('now', v_now, 'written', (
        SELECT json_agg(m) FROM generate_subscripts(p_runs, 1) m WHERE v_ok[m]));
END $$;
