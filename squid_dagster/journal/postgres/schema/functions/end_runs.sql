-- Kept for code of schema version 6 and before; nothing of this version calls it.
--
-- A settlement of completions that can only end their runs: one call locks, judges and writes.
--
-- Nothing is folded: what a completion, its application and the end change is the same for every such run.
-- Whatever is not so (another open attempt, an anomaly, an entry that was changed) is left to that code's other functions.
CREATE OR REPLACE FUNCTION {schema}.end_runs(
    p_commit uuid,
    p_runs text[],                        -- of each claim, by run; no run twice
    p_claims json,                        -- as lock_claims takes them
    p_outcomes json,                      -- the data of attempt_completed, the transition or null
    p_end_digest text,
    p_now timestamptz                     -- null: the database's clock
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_locked     json;
    v_now        timestamptz;
    v_receipt    jsonb;
    v_places     bigint[];
    v_runs       text[];
    v_revs       bigint[];
    v_queues     text[];
    v_queue_revs bigint[];
    v_counts     bigint[];
    v_count      integer;
    v_base       bigint;
BEGIN
    v_locked := {schema}.lock_claims(0, p_runs, p_claims, p_now);
    -- Whoever repeats a commit waits for the same runs, so that the first answer is here to be seen.
    SELECT receipt INTO v_receipt FROM {schema}.journal_commits WHERE id = p_commit;
    IF FOUND THEN
        RETURN (SELECT json_build_object('now', min(e.occurred_at), 'ended', json_agg(n.i))
                  FROM unnest(p_runs) WITH ORDINALITY n (id, i)
                  JOIN {schema}.journal_entries e
                    ON e.thread = 'squid:run:' || n.id AND e.seq = (v_receipt->>('squid:run:' || n.id))::bigint);
    END IF;
    v_now := v_locked->>'now';
    IF json_typeof(v_locked->'held') = 'null' THEN
        RETURN json_build_object('now', v_now, 'ended', NULL);
    END IF;
    -- runs_pkey, anomalies_run, journal_entries_thread
    SELECT array_agg(h.i ORDER BY h.i), array_agg(r.run_id ORDER BY h.i) INTO v_places, v_runs
      FROM (SELECT (e->>0)::bigint AS i, (e->>1)::boolean AS alone
              FROM json_array_elements(v_locked->'held') e OFFSET 0) h
      CROSS JOIN LATERAL (
            SELECT run_id FROM {schema}.runs
             WHERE run_id = p_runs[h.i] AND start_digest IS NOT NULL AND manual_state IS NULL
               AND applied_visits = planned_visits - 1 OFFSET 0) r
     WHERE h.alone
       AND NOT EXISTS (SELECT FROM {schema}.anomalies WHERE run_id = r.run_id)
       AND NOT EXISTS (
            SELECT FROM {schema}.journal_entries e
             WHERE e.thread = 'squid:run:' || r.run_id AND e.type <> 'run_signal_received'
               AND (e.type NOT IN ('run_started', 'runnables_planned', 'runnable_applied', 'child_run_started',
                                   'manual_step_paused', 'manual_step_resolved')
                    OR e.digest <> {schema}.entry_digest(e.thread, e.seq, e.type, e.run_id, e.occurred_at, e.data)));
    IF v_places IS NULL THEN
        RETURN json_build_object('now', v_now, 'ended', NULL);
    END IF;
    v_count := cardinality(v_places);

    -- journal_threads_pkey, twice, in the order of ids: those of queues before those of runs.
    SELECT array_agg(q.queue ORDER BY q.i), array_agg(t.rev ORDER BY q.i), array_agg(q.count ORDER BY q.i)
      INTO v_queues, v_queue_revs, v_counts
      FROM (SELECT c.queue, count(*), row_number() OVER (ORDER BY c.queue COLLATE "C") AS i
              FROM (SELECT n.c->>3 AS queue FROM json_array_elements(p_claims) WITH ORDINALITY n (c, i)
                     WHERE n.i = ANY (v_places) OFFSET 0) c
             GROUP BY c.queue ORDER BY c.queue COLLATE "C") q
      CROSS JOIN LATERAL (
            SELECT rev FROM {schema}.journal_threads WHERE id = 'squid:dispatch:' || q.queue FOR UPDATE) t;
    v_queue_revs := ARRAY(SELECT {schema}.revision_of('squid:dispatch:' || v_queues[i], v_queue_revs[i])
                            FROM generate_subscripts(v_queues, 1) i ORDER BY i);
    WITH moved AS (
        UPDATE {schema}.journal_threads t SET rev = t.rev + 2
          FROM unnest(v_runs) WITH ORDINALITY n (id, i) WHERE t.id = 'squid:run:' || n.id RETURNING n.i, t.rev
    ) SELECT array_agg(rev ORDER BY i) INTO v_revs FROM moved;
    IF cardinality(v_revs) <> v_count OR (SELECT sum(n) FROM unnest(v_counts) n) IS DISTINCT FROM v_count THEN
        RAISE EXCEPTION 'a thread is missing' USING ERRCODE = 'SQ003';
    END IF;
    v_base := {schema}.take_number(3 * v_count);

    -- Queues first, as in every commit: a run's end comes after all else about it.
    INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
    SELECT v_base + f.ord, f.thread, f.seq, f.type, f.run_id, v_now, f.data,
           {schema}.entry_digest(f.thread, f.seq, f.type, f.run_id, v_now, f.data)
      FROM (SELECT e.*, m.run_id
              FROM (SELECT n.run_id, n.c->>0 AS key, n.c->>3 AS queue, n.o->0 AS completed, n.o->1 AS transition,
                           row_number() OVER (ORDER BY (n.c->>3) COLLATE "C", n.i) AS ord,
                           row_number() OVER (PARTITION BY n.c->>3 ORDER BY n.i) AS k,
                           row_number() OVER (ORDER BY n.i) AS nth
                      FROM ROWS FROM (unnest(p_runs), json_array_elements(p_claims), json_array_elements(p_outcomes))
                           WITH ORDINALITY n (run_id, c, o, i)
                     WHERE n.i = ANY (v_places)) m
              CROSS JOIN LATERAL (VALUES
                    (m.ord, 'squid:dispatch:' || m.queue, v_queue_revs[array_position(v_queues, m.queue)] + m.k,
                     'attempt_completed', m.completed),
                    (v_count + 2 * m.nth - 1, 'squid:run:' || m.run_id, v_revs[m.nth] - 1, 'runnable_applied',
                     CASE WHEN json_typeof(m.transition) = 'null'
                          THEN json_build_object('runnable_key', m.key, 'result', m.completed->'result')
                          ELSE json_build_object('runnable_key', m.key, 'result', m.completed->'result',
                                                 'transition', m.transition) END),
                    (v_count + 2 * m.nth, 'squid:run:' || m.run_id, v_revs[m.nth], 'run_terminal',
                     '{{"status":"completed"}}'::json)
              ) e (ord, thread, seq, type, data)) f
     ORDER BY f.ord;

    -- attempts_pkey, runs_pkey
    DELETE FROM {schema}.attempts a USING unnest(v_runs) n (id) WHERE a.run_id = n.id;
    UPDATE {schema}.runs r SET status = 'completed', applied_visits = r.applied_visits + 1,
           terminal_status = 'completed', terminal_digest = p_end_digest, ended_at = v_now, fenced = true
      FROM unnest(v_runs) n (id) WHERE r.run_id = n.id;
    INSERT INTO {schema}.journal_commits (id, receipt, committed_at)
    SELECT p_commit, json_object_agg(t.id, t.rev), clock_timestamp()
      FROM (SELECT 'squid:dispatch:' || v_queues[i] AS id, v_queue_revs[i] + v_counts[i] AS rev
              FROM generate_subscripts(v_queues, 1) i
             UNION ALL
            SELECT 'squid:run:' || n.id, v_revs[n.i] FROM unnest(v_runs) WITH ORDINALITY n (id, i)) t;
    RETURN json_build_object('now', v_now, 'ended', v_places);
END $$;
