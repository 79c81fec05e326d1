-- The fast way of a start: one call locks, and writes the facts of new runs and the rows that a fold made of them.
--
-- All of them go through one queue, and write as many facts: what append_entries finds out about threads and positions
-- is known here. The caller says which time it is, as it worked it out from an earlier answer: where that is not the
-- database's time, or a run is there, it has to begin anew; unless an earlier try of this commit has written it.
CREATE OR REPLACE FUNCTION {schema}.start_runs(
    p_commit uuid,
    p_queue text,
    p_at timestamptz,
    p_any_time boolean,                   -- the caller's clock is the one that counts
    p_runs text[],
    p_queue_facts integer,                -- how many facts of each run stand on the queue's thread
    p_run_facts integer,                  -- and how many on its own
    p_entries json,                       -- first those of the queue: type, run_id, data; then those of runs, with k
                                          -- (1.. in its thread)
    p_rows json, p_attempts json          -- in the order of p_runs; a position is the place, negated, among the facts
                                          -- of the run on the queue
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_thread    text := 'squid:dispatch:' || p_queue;
    v_count     integer := cardinality(p_runs);
    v_attempts  integer := json_array_length(p_attempts) / v_count;  -- of each run
    v_locked    text;                     -- nothing: an assignment is done without the executor, which PERFORM is not
    v_now       timestamptz;
    v_rev       bigint;
    v_made      integer;
    v_base      bigint;
BEGIN
    v_locked := pg_advisory_xact_lock_shared({gate})::text;
    IF v_count = 1 THEN
        v_locked := pg_advisory_xact_lock({buckets}, hashtext(p_runs[1]) & 511)::text;
    ELSE
        PERFORM pg_advisory_xact_lock({buckets}, bucket)
           FROM (SELECT DISTINCT hashtext(id) & 511 AS bucket FROM unnest(p_runs) id ORDER BY bucket) b;
    END IF;
    v_now := clock_timestamp();
    -- runs_pkey
    IF NOT p_any_time AND (p_at > v_now OR p_at < v_now - interval '100 milliseconds')
       OR EXISTS (SELECT FROM {schema}.runs WHERE run_id = ANY (p_runs)) THEN
        -- journal_commits_pkey. A repeat waits for the same buckets, so that what the first try wrote is here to be seen.
        IF EXISTS (SELECT FROM {schema}.journal_commits WHERE id = p_commit) THEN
            RETURN to_json(v_now);
        END IF;
        RAISE EXCEPTION 'not new, or at another time' USING ERRCODE = 'SQ003';
    END IF;
    -- journal_threads_pkey
    SELECT rev INTO v_rev FROM {schema}.journal_threads WHERE id = v_thread FOR UPDATE;
    IF FOUND THEN
        v_rev := {schema}.revision_of(v_thread, v_rev) + v_count * p_queue_facts;
    ELSE
        v_rev := v_count * p_queue_facts;
        INSERT INTO {schema}.journal_threads (id, rev) VALUES (v_thread, v_rev) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'a thread appeared meanwhile' USING ERRCODE = 'SQ002';
        END IF;
    END IF;
    INSERT INTO {schema}.journal_threads (id, rev)
    SELECT 'squid:run:' || id, p_run_facts FROM unnest(p_runs) id ORDER BY id COLLATE "C" ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_made = ROW_COUNT;
    IF v_made < v_count THEN
        RAISE EXCEPTION 'not new' USING ERRCODE = 'SQ003';
    END IF;

    v_base := {schema}.take_number(v_count * (p_queue_facts + p_run_facts));
    WITH entries AS (
        INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
        SELECT v_base + e.ord, e.thread, e.seq, e.type, e.run_id, p_at, e.data,
               {schema}.entry_digest(e.thread, e.seq, e.type, e.run_id, p_at, e.data)
          FROM (SELECT n.ord, n.type, n.run_id, n.data,
                       CASE WHEN n.k IS NULL THEN v_thread ELSE 'squid:run:' || n.run_id END AS thread,
                       coalesce(n.k, v_rev - v_count * p_queue_facts + n.ord) AS seq
                  FROM ROWS FROM (json_to_recordset(p_entries) AS (k int, type text, run_id text, data json))
                       WITH ORDINALITY AS n (k, type, run_id, data, ord) OFFSET 0) e
         ORDER BY e.ord
    ), runs AS (
        INSERT INTO {schema}.runs (run_id, position, {run_columns})
        SELECT r.run_id, v_base + (r.ordinality - 1) * p_queue_facts - r.position, {run_columns}
          FROM json_populate_recordset(NULL::{schema}.runs, p_rows) WITH ORDINALITY r
    ), attempts AS (
        INSERT INTO {schema}.attempts (run_id, runnable_key, position, {attempt_columns})
        SELECT a.run_id, a.runnable_key, v_base + (a.ordinality - 1) / v_attempts * p_queue_facts - a.position,
               {attempt_columns}
          FROM json_populate_recordset(NULL::{schema}.attempts, p_attempts) WITH ORDINALITY a
    )
    INSERT INTO {schema}.journal_commits (id, receipt, committed_at)
    SELECT p_commit, json_object_agg(t.id, t.rev), v_now
      FROM (SELECT v_thread AS id, v_rev AS rev
             UNION ALL
            SELECT 'squid:run:' || id, p_run_facts FROM unnest(p_runs) id) t;
    RETURN to_json(v_now);
END $$;
