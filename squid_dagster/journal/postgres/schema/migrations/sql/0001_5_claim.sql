-- Claim up to as many attempts as there are claim ids, in claim order: priority, due time, position. One call, one
-- transaction. Gives the claimed rows, and how many attempts were dead-lettered on the way. Enforces in SQL what the
-- fold demands of attempt_claimed and attempt_dead_lettered. Plans are made once per session, for the named indexes:
-- planning anew for every call would cost more than the call.
CREATE FUNCTION {schema}.claim_attempts(
    p_commit uuid, p_queue text, p_owner text, p_lease interval,
    p_claim_ids text[], p_token_hashes text[],
    p_definitions text[],                   -- what the worker can execute; null: anything
    p_now timestamptz                       -- null: the database's clock
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_thread    text := 'squid:dispatch:' || p_queue;
    v_wanted    integer := cardinality(p_claim_ids);
    v_now       timestamptz;
    v_lanes     text[];                     -- definitions that have work of the rank at hand
    v_rank      smallint;
    v_due       timestamptz;
    v_position  bigint;
    v_runs      text[]; v_keys text[];      -- candidates
    v_got_runs  text[]; v_got_keys text[]; v_got_dead boolean[];
    v_new_runs  text[]; v_new_keys text[]; v_new_dead boolean[];
    v_live      integer := 0;
    v_rev       bigint;
    v_positions bigint[];
    v_claimed   json;
    v_most_dead CONSTANT integer := 1000;   -- dead letters in one commit; the caller comes back for more
BEGIN
    PERFORM pg_advisory_xact_lock_shared({gate});
    IF EXISTS (SELECT FROM {schema}.journal_commits WHERE id = p_commit) THEN
        -- The answer was lost: give it again. Claims that were taken over meanwhile are not ours any more.
        -- journal_entries_thread, attempts_pkey
        SELECT json_agg(a ORDER BY e.seq) INTO v_claimed
          FROM {schema}.journal_commits c
          JOIN {schema}.journal_entries e ON e.thread = v_thread AND e.type = 'attempt_claimed'
           AND e.seq <= (c.receipt->>v_thread)::bigint
           AND e.seq > (c.receipt->>v_thread)::bigint - 2 * v_wanted - v_most_dead
          JOIN {schema}.attempts a ON a.run_id = e.run_id AND a.runnable_key = e.data->>'runnable_key'
           AND a.claim_id = e.data->>'claim_id'
         WHERE c.id = p_commit AND a.claim_id = ANY (p_claim_ids);
        RETURN json_build_object('claimed', v_claimed, 'dead', 0);
    END IF;
    IF EXISTS (SELECT FROM {schema}.queues WHERE queue = p_queue AND paused) THEN
        RETURN json_build_object('claimed', NULL, 'dead', 0);
    END IF;
    v_now := coalesce(p_now, clock_timestamp());

    -- attempts_due, by skipping from one (definition, rank) to the next: lanes are few, whatever their depth.
    FOR v_rank, v_lanes IN
        WITH RECURSIVE lane (definition, rank) AS (
            (SELECT a.definition, a.rank FROM {schema}.attempts a
              WHERE a.queue = p_queue AND a.due_at IS NOT NULL ORDER BY a.definition, a.rank LIMIT 1)
            UNION ALL
            SELECT n.definition, n.rank FROM lane l CROSS JOIN LATERAL (
                SELECT a.definition, a.rank FROM {schema}.attempts a
                 WHERE a.queue = p_queue AND a.due_at IS NOT NULL AND (a.definition, a.rank) > (l.definition, l.rank)
                 ORDER BY a.definition, a.rank LIMIT 1) n
        )
        SELECT rank, array_agg(definition) FROM lane
         WHERE p_definitions IS NULL OR definition = ANY (p_definitions) GROUP BY rank ORDER BY rank
    LOOP
        v_due := '-infinity';
        v_position := 0;
        LOOP
            -- The next candidates of this rank over all lanes, then those of them that nobody else is holding.
            SELECT array_agg(c.run_id ORDER BY c.due_at, c.position),
                   array_agg(c.runnable_key ORDER BY c.due_at, c.position),
                   max(c.due_at), (array_agg(c.position ORDER BY c.due_at, c.position))[count(*)]
              INTO v_runs, v_keys, v_due, v_position
              FROM (SELECT d.* FROM unnest(v_lanes) lane CROSS JOIN LATERAL (
                        SELECT a.run_id, a.runnable_key, a.due_at, a.position FROM {schema}.attempts a
                         WHERE a.queue = p_queue AND a.definition = lane AND a.rank = v_rank
                           AND a.due_at IS NOT NULL AND a.due_at <= v_now
                           AND (a.due_at, a.position) > (v_due, v_position)
                         ORDER BY a.due_at, a.position LIMIT v_wanted - v_live) d
                     ORDER BY d.due_at, d.position LIMIT v_wanted - v_live) c;
            EXIT WHEN v_runs IS NULL;
            SELECT array_agg(g.run_id ORDER BY c.n), array_agg(g.runnable_key ORDER BY c.n),
                   array_agg(g.dead ORDER BY c.n)
              INTO v_new_runs, v_new_keys, v_new_dead
              FROM unnest(v_runs, v_keys) WITH ORDINALITY AS c(run_id, runnable_key, n) CROSS JOIN LATERAL (
                    -- attempts_pkey, and nothing else that a plan could begin with
                    SELECT a.run_id, a.runnable_key, a.rank, a.due_at, a.deliveries >= a.max_deliveries AS dead
                      FROM {schema}.attempts a WHERE a.run_id = c.run_id AND a.runnable_key = c.runnable_key
                    OFFSET 0 FOR UPDATE SKIP LOCKED) g
             WHERE g.rank = v_rank AND g.due_at <= v_now;
            v_got_runs := v_got_runs || v_new_runs;
            v_got_keys := v_got_keys || v_new_keys;
            v_got_dead := v_got_dead || v_new_dead;
            v_live := (SELECT count(*) FROM unnest(v_got_dead) dead WHERE NOT dead);
            EXIT WHEN v_live >= v_wanted OR cardinality(v_got_dead) >= v_wanted + v_most_dead;
        END LOOP;
        EXIT WHEN v_live >= v_wanted OR cardinality(v_got_dead) >= v_wanted + v_most_dead;
    END LOOP;
    IF v_got_runs IS NULL THEN
        RETURN json_build_object('claimed', NULL, 'dead', 0);
    END IF;

    SELECT rev INTO v_rev FROM {schema}.journal_threads WHERE id = v_thread FOR UPDATE;
    -- A pause that came in first is seen now, since it held this row.
    IF EXISTS (SELECT FROM {schema}.queues WHERE queue = p_queue AND paused) THEN
        RETURN json_build_object('claimed', NULL, 'dead', 0);
    END IF;
    v_now := coalesce(p_now, clock_timestamp());
    PERFORM {schema}.announce_positions();
    v_positions := ARRAY(SELECT nextval('{schema}.journal_positions')
                           FROM generate_series(1, cardinality(v_got_runs)));

    WITH got AS (
        SELECT g.run_id, g.runnable_key, g.dead, g.ord::int,
               CASE WHEN NOT g.dead THEN count(*) FILTER (WHERE NOT g.dead) OVER (ORDER BY g.ord) END::int AS nth
          FROM unnest(v_got_runs, v_got_keys, v_got_dead) WITH ORDINALITY AS g(run_id, runnable_key, dead, ord)
    ), taken AS (
        -- attempts_siblings: the fencing token counts claims over all attempts of the idempotency key.
        SELECT g.*, a.deliveries, greatest(v_now, a.last_at) AS at,
               (SELECT coalesce(max(s.fencing_token), 0) FROM {schema}.attempts s
                 WHERE s.run_id = a.run_id AND s.idempotency_key = a.idempotency_key)
               + count(*) FILTER (WHERE NOT g.dead)
                     OVER (PARTITION BY a.run_id, a.idempotency_key ORDER BY g.ord) AS token
          FROM got g JOIN {schema}.attempts a USING (run_id, runnable_key)
    ), facts AS (
        SELECT t.*, CASE WHEN t.dead THEN 'attempt_dead_lettered' ELSE 'attempt_claimed' END AS type,
               CASE WHEN t.dead THEN json_build_object(
                   'queue', p_queue, 'runnable_key', t.runnable_key, 'deliveries', t.deliveries)
               ELSE json_build_object(
                   'queue', p_queue, 'runnable_key', t.runnable_key, 'claim_id', p_claim_ids[t.nth],
                   'claim_token_hash', p_token_hashes[t.nth],
                   'lease_until', to_char((t.at + p_lease) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                   'owner_id', p_owner, 'fencing_token', t.token)
               END AS data
          FROM taken t
    ), written AS (
        INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
        SELECT v_positions[f.ord], v_thread, v_rev + f.ord, f.type, f.run_id, f.at, f.data,
               {schema}.entry_digest(v_thread, v_rev + f.ord, f.type, f.run_id, f.at, f.data)
          FROM facts f ORDER BY f.ord
    ), moved AS (
        UPDATE {schema}.attempts a SET
               status = CASE WHEN f.dead THEN 'dead_lettered' ELSE 'claimed' END,
               claim_id = CASE WHEN f.dead THEN a.claim_id ELSE p_claim_ids[f.nth] END,
               claim_token_hash = CASE WHEN f.dead THEN a.claim_token_hash ELSE p_token_hashes[f.nth] END,
               owner_id = CASE WHEN f.dead THEN a.owner_id ELSE p_owner END,
               lease_until = CASE WHEN f.dead THEN a.lease_until ELSE f.at + p_lease END,
               due_at = CASE WHEN f.dead THEN NULL ELSE f.at + p_lease END,
               deliveries = CASE WHEN f.dead THEN a.deliveries ELSE a.deliveries + 1 END,
               fencing_token = CASE WHEN f.dead THEN a.fencing_token ELSE f.token END,
               settled_at = CASE WHEN f.dead THEN f.at ELSE a.settled_at END,
               input = CASE WHEN f.dead THEN NULL ELSE a.input END,
               last_at = f.at
          FROM facts f WHERE a.run_id = f.run_id AND a.runnable_key = f.runnable_key
        RETURNING a.*, f.ord
    )
    SELECT json_agg(m ORDER BY m.ord) INTO v_claimed FROM moved m WHERE m.status = 'claimed';

    UPDATE {schema}.journal_threads SET rev = v_rev + cardinality(v_got_runs) WHERE id = v_thread;
    INSERT INTO {schema}.journal_commits (id, receipt, committed_at)
    VALUES (p_commit, json_build_object(v_thread, v_rev + cardinality(v_got_runs)), clock_timestamp());
    RETURN json_build_object('claimed', v_claimed, 'dead', cardinality(v_got_runs) - v_live);
END $$;
