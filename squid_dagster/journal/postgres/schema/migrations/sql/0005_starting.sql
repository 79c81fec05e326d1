-- The shortest way of a start: one call locks, and writes the facts of new runs and the rows that a fold made of them.
--
-- All of them go through one queue, and write as many facts: what append_entries finds out about threads and positions
-- is known here. The caller says which time it is, as it worked it out from an earlier answer: where that is not the
-- database's time, or a run is there, it has to begin anew.

CREATE FUNCTION {schema}.start_runs(
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
    v_last      bigint;
    v_positions bigint[];
BEGIN
    v_locked := pg_advisory_xact_lock_shared({gate})::text;
    IF v_count = 1 THEN
        v_locked := pg_advisory_xact_lock({buckets}, hashtext(p_runs[1]) & 511)::text;
    ELSE
        PERFORM pg_advisory_xact_lock({buckets}, bucket)
           FROM (SELECT DISTINCT hashtext(id) & 511 AS bucket FROM unnest(p_runs) id ORDER BY 1) b;
    END IF;
    v_now := clock_timestamp();
    -- runs_pkey
    IF NOT p_any_time AND (p_at > v_now OR p_at < v_now - interval '100 milliseconds')
       OR EXISTS (SELECT FROM {schema}.runs WHERE run_id = ANY (p_runs)) THEN
        RAISE EXCEPTION 'not new, or at another time' USING ERRCODE = 'SQ003';
    END IF;
    -- journal_threads_pkey
    UPDATE {schema}.journal_threads SET rev = rev + v_count * p_queue_facts WHERE id = v_thread RETURNING rev INTO v_rev;
    IF NOT FOUND THEN
        v_rev := v_count * p_queue_facts;
        INSERT INTO {schema}.journal_threads (id, rev) VALUES (v_thread, v_rev) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'a thread appeared meanwhile' USING ERRCODE = 'SQ002';
        END IF;
    END IF;
    INSERT INTO {schema}.journal_threads (id, rev)
    SELECT 'squid:run:' || id, p_run_facts FROM unnest(p_runs) id ORDER BY 1 ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_made = ROW_COUNT;
    IF v_made < v_count THEN
        RAISE EXCEPTION 'not new' USING ERRCODE = 'SQ003';
    END IF;

    -- As announce_positions does.
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO v_last FROM {schema}.journal_positions;
    v_locked := pg_advisory_xact_lock_shared({positions}, (v_last & 4294967295)::bit(32)::int)::text;
    v_positions := ARRAY(SELECT nextval('{schema}.journal_positions')
                           FROM generate_series(1, v_count * (p_queue_facts + p_run_facts)));
    WITH entries AS (
        INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
        SELECT v_positions[e.ord], e.thread, e.seq, e.type, e.run_id, p_at, e.data,
               {schema}.entry_digest(e.thread, e.seq, e.type, e.run_id, p_at, e.data)
          FROM (SELECT n.ord, n.type, n.run_id, n.data,
                       CASE WHEN n.k IS NULL THEN v_thread ELSE 'squid:run:' || n.run_id END AS thread,
                       coalesce(n.k, v_rev - v_count * p_queue_facts + n.ord) AS seq
                  FROM ROWS FROM (json_to_recordset(p_entries) AS (k int, type text, run_id text, data json))
                       WITH ORDINALITY AS n (k, type, run_id, data, ord) OFFSET 0) e
         ORDER BY e.ord
    ), runs AS (
        INSERT INTO {schema}.runs
        SELECT r.run_id, v_positions[(r.ordinality - 1) * p_queue_facts - r.position], r.status, r.workflow, r.trigger,
               r.queue, r.definition_version, r.definition_fingerprint, r.parent_run_id, r.replayed_from_run_id,
               r.started_at, r.start_digest, r.planned_visits, r.applied_visits, r.manual_state, r.terminal_status,
               r.terminal_digest, r.ended_at, r.fenced, r.quarantine, r.quarantined, r.indexed, r.cataloged, r.unfenced,
               r.has_children, r.window_start
          FROM json_populate_recordset(NULL::{schema}.runs, p_rows) WITH ORDINALITY r
    ), attempts AS (
        INSERT INTO {schema}.attempts
        SELECT a.run_id, a.runnable_key, a.idempotency_key, a.attempt_number, a.queue, a.step, a.input, a.visible_at,
               a.rank, a.max_deliveries, a.definition, a.workflow, a.definition_version, a.definition_fingerprint,
               a.intent_digest,
               v_positions[(a.ordinality - 1) / v_attempts * p_queue_facts - a.position],
               a.last_at, a.status, a.claim_id, a.claim_token_hash, a.owner_id, a.lease_until, a.deliveries,
               a.fencing_token, a.outcome_digest, a.settled_at, a.wakeup_emitted, a.due_at, a.planned_digest,
               a.applied_digest
          FROM json_populate_recordset(NULL::{schema}.attempts, p_attempts) WITH ORDINALITY a
    )
    INSERT INTO {schema}.journal_commits (id, receipt, committed_at)
    SELECT p_commit, json_object_agg(t.id, t.rev), v_now
      FROM (SELECT v_thread AS id, v_rev AS rev
             UNION ALL
            SELECT 'squid:run:' || id, p_run_facts FROM unnest(p_runs) id) t;
    RETURN to_json(v_now);
END $$;

UPDATE {schema}.squid_schema SET version = 5;
