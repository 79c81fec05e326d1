-- The two halves of every append: lock and load what the facts touch, then write facts and rows together.
-- Lock order, here and everywhere: the gate, new runs by bucket, run rows by id, attempt rows by key, thread rows by
-- id, positions. Plans are made once per session, for the named indexes: planning anew for every call would cost more
-- than the call. Tables are looked up row by row, never joined whole: a plan made while a table was small is kept.

CREATE FUNCTION {schema}.lock_units(
    p_hold_ms integer,                    -- how long the caller may go quiet while it holds these locks
    p_runs text[],                        -- every run that a fact names
    p_whole text[],                       -- those of which all attempts are needed
    p_key_runs text[], p_keys text[],     -- single attempts, by run and runnable key
    p_child_runs text[], p_children text[]
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off  SET plan_cache_mode = force_generic_plan AS $$
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
         WHERE NOT EXISTS (SELECT FROM {schema}.runs r WHERE r.run_id = id) ORDER BY 1
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

-- Write one commit: facts, and the rows that a fold made of them. A row names a position that does not exist yet by the
-- fact's place in the commit, negated.
CREATE FUNCTION {schema}.append_entries(
    p_commit uuid,
    p_threads text[],                       -- sorted by id
    p_expected bigint[],                    -- null: at any revision
    p_counts integer[],                     -- how many entries each thread gets
    p_entries json,                         -- t (place in p_threads), k (1.. in its thread), type, run_id, at, data
    p_runs json, p_attempts json, p_ended text[], p_children json, p_queues json, p_anomalies json
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_receipt   json;
    v_revs      bigint[];
    v_new       boolean[];
    v_made      integer;
    v_bad       integer;
    v_positions bigint[];
BEGIN
    -- journal_threads_pkey
    SELECT array_agg(coalesce(t.rev, 0) ORDER BY n.i), array_agg(t.rev IS NULL ORDER BY n.i) INTO v_revs, v_new
      FROM unnest(p_threads) WITH ORDINALITY n (id, i)
      LEFT JOIN LATERAL (SELECT rev FROM {schema}.journal_threads WHERE id = n.id FOR UPDATE) t ON true;
    -- Whoever repeats a commit waits for the same threads, so that the first answer is here to be seen.
    IF p_commit IS NOT NULL THEN
        SELECT receipt INTO v_receipt FROM {schema}.journal_commits WHERE id = p_commit;
        IF FOUND THEN
            RETURN v_receipt;
        END IF;
    END IF;
    SELECT min(i) INTO v_bad FROM generate_subscripts(p_threads, 1) i WHERE p_expected[i] <> v_revs[i];
    IF v_bad IS NOT NULL THEN
        RAISE EXCEPTION 'conflict' USING ERRCODE = 'SQ001',
            DETAIL = json_build_array(p_threads[v_bad], p_expected[v_bad], v_revs[v_bad]);
    END IF;
    IF true = ANY (v_new) THEN
        INSERT INTO {schema}.journal_threads (id, rev)
        SELECT p_threads[i], p_counts[i] FROM generate_subscripts(p_threads, 1) i WHERE v_new[i] ORDER BY 1
            ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_made = ROW_COUNT;
        IF v_made < cardinality(array_positions(v_new, true)) THEN
            -- Somebody made one of them first. Locking it now would be out of order: begin again.
            RAISE EXCEPTION 'a thread appeared meanwhile' USING ERRCODE = 'SQ002';
        END IF;
    END IF;

    PERFORM {schema}.announce_positions();
    v_positions := ARRAY(SELECT nextval('{schema}.journal_positions')
                           FROM generate_series(1, (SELECT sum(n) FROM unnest(p_counts) n)));

    INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
    SELECT v_positions[e.ord], p_threads[e.t], v_revs[e.t] + e.k, e.type, e.run_id, e.at, e.data,
           {schema}.entry_digest(p_threads[e.t], v_revs[e.t] + e.k, e.type, e.run_id, e.at, e.data)
      FROM json_to_recordset(p_entries)
           AS e(ord int, t int, k int, type text, run_id text, at timestamptz, data json)
     ORDER BY e.ord;

    IF p_ended IS NOT NULL THEN
        DELETE FROM {schema}.attempts WHERE run_id = ANY (p_ended);
    END IF;
    IF p_runs IS NOT NULL THEN
        INSERT INTO {schema}.runs
        SELECT r.run_id, CASE WHEN r.position < 0 THEN v_positions[-r.position] ELSE r.position END, r.status,
               r.workflow, r.trigger, r.queue, r.definition_version, r.definition_fingerprint, r.parent_run_id,
               r.replayed_from_run_id, r.started_at, r.start_digest, r.planned_visits, r.applied_visits, r.manual_state,
               r.terminal_status, r.terminal_digest, r.ended_at, r.fenced, r.quarantine, r.quarantined, r.indexed,
               r.cataloged, r.unfenced, r.has_children, r.window_start
          FROM json_populate_recordset(NULL::{schema}.runs, p_runs) r
            ON CONFLICT (run_id) DO UPDATE SET (
               status, workflow, trigger, queue, definition_version, definition_fingerprint, parent_run_id,
               replayed_from_run_id, started_at, start_digest, planned_visits, applied_visits, manual_state,
               terminal_status, terminal_digest, ended_at, fenced, quarantine, quarantined, indexed, cataloged,
               unfenced, has_children, window_start
               ) = (
               EXCLUDED.status, EXCLUDED.workflow, EXCLUDED.trigger, EXCLUDED.queue, EXCLUDED.definition_version,
               EXCLUDED.definition_fingerprint, EXCLUDED.parent_run_id, EXCLUDED.replayed_from_run_id,
               EXCLUDED.started_at, EXCLUDED.start_digest, EXCLUDED.planned_visits, EXCLUDED.applied_visits,
               EXCLUDED.manual_state, EXCLUDED.terminal_status, EXCLUDED.terminal_digest, EXCLUDED.ended_at,
               EXCLUDED.fenced, EXCLUDED.quarantine, EXCLUDED.quarantined, EXCLUDED.indexed, EXCLUDED.cataloged,
               EXCLUDED.unfenced, EXCLUDED.has_children, EXCLUDED.window_start);
    END IF;
    IF p_attempts IS NOT NULL THEN
        INSERT INTO {schema}.attempts
        SELECT a.run_id, a.runnable_key, a.idempotency_key, a.attempt_number, a.queue, a.step, a.input, a.visible_at,
               a.rank, a.max_deliveries, a.definition, a.workflow, a.definition_version, a.definition_fingerprint,
               a.intent_digest, CASE WHEN a.position < 0 THEN v_positions[-a.position] ELSE a.position END, a.last_at,
               a.status, a.claim_id, a.claim_token_hash, a.owner_id, a.lease_until, a.deliveries, a.fencing_token,
               a.outcome_digest, a.settled_at, a.wakeup_emitted, a.due_at, a.planned_digest, a.applied_digest
          FROM json_populate_recordset(NULL::{schema}.attempts, p_attempts) a
            ON CONFLICT (run_id, runnable_key) DO UPDATE SET (
               idempotency_key, attempt_number, queue, step, input, visible_at, rank, max_deliveries, definition,
               workflow, definition_version, definition_fingerprint, intent_digest, position, last_at, status, claim_id,
               claim_token_hash, owner_id, lease_until, deliveries, fencing_token, outcome_digest, settled_at,
               wakeup_emitted, due_at, planned_digest, applied_digest
               ) = (
               EXCLUDED.idempotency_key, EXCLUDED.attempt_number, EXCLUDED.queue, EXCLUDED.step, EXCLUDED.input,
               EXCLUDED.visible_at, EXCLUDED.rank, EXCLUDED.max_deliveries, EXCLUDED.definition, EXCLUDED.workflow,
               EXCLUDED.definition_version, EXCLUDED.definition_fingerprint, EXCLUDED.intent_digest, EXCLUDED.position,
               EXCLUDED.last_at, EXCLUDED.status, EXCLUDED.claim_id, EXCLUDED.claim_token_hash, EXCLUDED.owner_id,
               EXCLUDED.lease_until, EXCLUDED.deliveries, EXCLUDED.fencing_token, EXCLUDED.outcome_digest,
               EXCLUDED.settled_at, EXCLUDED.wakeup_emitted, EXCLUDED.due_at, EXCLUDED.planned_digest,
               EXCLUDED.applied_digest);
    END IF;
    IF p_children IS NOT NULL THEN
        INSERT INTO {schema}.children
        SELECT c.* FROM json_populate_recordset(NULL::{schema}.children, p_children) c;
    END IF;
    IF p_queues IS NOT NULL THEN
        INSERT INTO {schema}.queues SELECT q.* FROM json_populate_recordset(NULL::{schema}.queues, p_queues) q
            ON CONFLICT (queue) DO UPDATE SET paused = EXCLUDED.paused;
    END IF;
    IF p_anomalies IS NOT NULL THEN
        INSERT INTO {schema}.anomalies
        SELECT a.thread, v_revs[array_position(p_threads, a.thread)] + a.seq, a.ordinal, v_positions[-a.position],
               a.run_id, a.reason, a.entry_type, a.subject
          FROM json_populate_recordset(NULL::{schema}.anomalies, p_anomalies) a;
    END IF;

    UPDATE {schema}.journal_threads t SET rev = v_revs[i] + p_counts[i]
      FROM generate_subscripts(p_threads, 1) i WHERE t.id = p_threads[i] AND NOT v_new[i];
    SELECT json_object_agg(p_threads[i], v_revs[i] + p_counts[i]) INTO v_receipt
      FROM generate_subscripts(p_threads, 1) i;
    IF p_commit IS NOT NULL THEN
        INSERT INTO {schema}.journal_commits (id, receipt, committed_at)
        VALUES (p_commit, v_receipt, clock_timestamp());
    END IF;
    RETURN v_receipt;
END $$;
