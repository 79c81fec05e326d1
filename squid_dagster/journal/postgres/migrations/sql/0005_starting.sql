-- The shortest way of a start: one call locks, writes the facts of new runs and the rows that a fold made of them.
--
-- What append_entries finds out about threads is known here: those of runs are new, or the runs are not. The caller says
-- which time it is, as it worked it out from an earlier answer: where that is not the database's time, or a run is there,
-- it has to begin anew.

CREATE FUNCTION {schema}.start_runs(
    p_commit uuid,
    p_now timestamptz,                    -- null: any time will do, since the caller's clock is the one that counts
    p_runs text[],
    p_threads text[], p_counts integer[], -- sorted by id, so that queues come before runs; how many entries each gets
    p_queues integer,                     -- how many of them are queues
    p_entries json, p_rows json, p_attempts json  -- as append_entries takes them
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now       timestamptz;
    v_rev       bigint;
    v_revs      bigint[] := array_fill(0::bigint, ARRAY[cardinality(p_threads)]);
    v_made      integer;
    v_last      bigint;
    v_positions bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared({gate});
    PERFORM pg_advisory_xact_lock({buckets}, bucket)
       FROM (SELECT DISTINCT hashtext(id) & 511 AS bucket FROM unnest(p_runs) id ORDER BY 1) b;
    v_now := clock_timestamp();
    -- runs_pkey
    IF p_now > v_now OR p_now < v_now - interval '100 milliseconds'
       OR EXISTS (SELECT FROM {schema}.runs WHERE run_id = ANY (p_runs)) THEN
        RAISE EXCEPTION 'not new, or at another time' USING ERRCODE = 'SQ003';
    END IF;
    -- journal_threads_pkey
    FOR i IN 1 .. p_queues LOOP
        UPDATE {schema}.journal_threads SET rev = rev + p_counts[i] WHERE id = p_threads[i] RETURNING rev INTO v_rev;
        IF FOUND THEN
            v_revs[i] := v_rev - p_counts[i];
        ELSE
            INSERT INTO {schema}.journal_threads (id, rev) VALUES (p_threads[i], p_counts[i]) ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'a thread appeared meanwhile' USING ERRCODE = 'SQ002';
            END IF;
        END IF;
    END LOOP;
    INSERT INTO {schema}.journal_threads (id, rev)
    SELECT p_threads[i], p_counts[i] FROM generate_series(p_queues + 1, cardinality(p_threads)) i
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_made = ROW_COUNT;
    IF v_made < cardinality(p_threads) - p_queues THEN
        RAISE EXCEPTION 'not new' USING ERRCODE = 'SQ003';
    END IF;

    -- As announce_positions does.
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO v_last FROM {schema}.journal_positions;
    PERFORM pg_advisory_xact_lock_shared({positions}, (v_last & 4294967295)::bit(32)::int);
    v_positions := ARRAY(SELECT nextval('{schema}.journal_positions')
                           FROM generate_series(1, (SELECT sum(n) FROM unnest(p_counts) n)));
    WITH entries AS (
        INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
        SELECT v_positions[e.ord], p_threads[e.t], v_revs[e.t] + e.k, e.type, e.run_id, e.at, e.data,
               {schema}.entry_digest(p_threads[e.t], v_revs[e.t] + e.k, e.type, e.run_id, e.at, e.data)
          FROM json_to_recordset(p_entries)
               AS e(ord int, t int, k int, type text, run_id text, at timestamptz, data json)
         ORDER BY e.ord
    ), runs AS (
        INSERT INTO {schema}.runs
        SELECT r.run_id, v_positions[-r.position], r.status, r.workflow, r.trigger, r.queue, r.definition_version,
               r.definition_fingerprint, r.parent_run_id, r.replayed_from_run_id, r.started_at, r.start_digest,
               r.planned_visits, r.applied_visits, r.manual_state, r.terminal_status, r.terminal_digest, r.ended_at,
               r.fenced, r.quarantine, r.quarantined, r.indexed, r.cataloged, r.unfenced, r.has_children, r.window_start
          FROM json_populate_recordset(NULL::{schema}.runs, p_rows) r
    ), attempts AS (
        INSERT INTO {schema}.attempts
        SELECT a.run_id, a.runnable_key, a.idempotency_key, a.attempt_number, a.queue, a.step, a.input, a.visible_at,
               a.rank, a.max_deliveries, a.definition, a.workflow, a.definition_version, a.definition_fingerprint,
               a.intent_digest, v_positions[-a.position], a.last_at, a.status, a.claim_id, a.claim_token_hash,
               a.owner_id, a.lease_until, a.deliveries, a.fencing_token, a.outcome_digest, a.settled_at,
               a.wakeup_emitted, a.due_at, a.planned_digest, a.applied_digest
          FROM json_populate_recordset(NULL::{schema}.attempts, p_attempts) a
    )
    INSERT INTO {schema}.journal_commits (id, receipt, committed_at)
    SELECT p_commit, json_object_agg(p_threads[i], v_revs[i] + p_counts[i]), v_now
      FROM generate_subscripts(p_threads, 1) i;
    RETURN to_json(v_now);
END $$;

UPDATE {schema}.squid_schema SET version = 5;
