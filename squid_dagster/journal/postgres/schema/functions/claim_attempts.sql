-- Claim up to as many attempts as there are claim ids, in claim order: priority, due time, position. One call, one
-- transaction. Gives the claimed rows, and how many attempts were dead-lettered on the way. Enforces in SQL what the
-- fold demands of attempt_claimed and attempt_dead_lettered. Plans are made once per session, for the named indexes:
-- planning anew for every call would cost more than the call.
--
-- Every claim leaves a dead entry at the front of its lane of attempts_due. Where an old snapshot keeps them from being
-- cleaned up, a claim that begins at the front reads them all. So one that read many says where the lanes begin by now
-- (marks), and the next ones begin there. Marks are a hint: an attempt that becomes due behind one, or in a lane that
-- has none, waits for a claim without marks (see lane_marks.py). Rows that are locked or passed over move no mark.
DROP FUNCTION IF EXISTS {schema}.claim_attempts(uuid, text, text, interval, text[], text[], text[], timestamptz);
DROP FUNCTION IF EXISTS {schema}.claim_attempts(uuid, text, text, interval, text[], text[], text[], timestamptz, integer,
    boolean);
CREATE OR REPLACE FUNCTION {schema}.claim_attempts(
    p_commit uuid, p_queue text, p_owner text, p_lease interval,
    p_claim_ids text[], p_token_hashes text[],
    p_definitions text[],                   -- what the worker can execute; null: anything
    p_now timestamptz,                      -- null: the database's clock
    p_suspects integer DEFAULT NULL,        -- the worst suspect that may be taken, alone; null: all, like any other
    p_alone boolean DEFAULT false,          -- the owner holds nothing else, and begins nothing beside a last delivery
    p_marks json DEFAULT NULL               -- of these lanes alone, from there on: definition, rank, due_at, position
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_thread    text := 'squid:dispatch:' || p_queue;
    v_wanted    integer := cardinality(p_claim_ids);
    v_now       timestamptz;
    v_index     oid := to_regclass('{schema}.attempts_due');
    v_dead_read bigint;                     -- entries of that index that led to no row
    v_definitions text[]; v_ranks smallint[]; v_dues timestamptz[]; v_positions bigint[];  -- lanes, and their first rows
    v_marks     json;
    v_looked_at timestamptz;
    v_lanes     text[];                     -- definitions that have work of the rank at hand
    v_starts    timestamptz[]; v_places bigint[];  -- where these begin
    v_rank      smallint;
    v_due       timestamptz;
    v_position  bigint;
    v_runs      text[]; v_keys text[];      -- candidates
    v_got_runs  text[]; v_got_keys text[]; v_got_dead boolean[];
    v_new_runs  text[]; v_new_keys text[]; v_new_dead boolean[];
    v_doubts    integer[];                  -- of the new ones: 0 no suspect, 1 lost before, 2 on its last delivery
    v_suspect   bigint; v_doubt integer;    -- the place of the first suspect among them, and how bad it is
    v_taken     boolean := false;           -- it is what is taken
    v_passed    integer := 0;               -- how bad it is, if it is passed over
    v_stop      boolean := false;
    v_live      integer := 0;
    v_rev       bigint;
    v_base      bigint;
    v_claimed   json;
    v_most_dead CONSTANT integer := 1000;   -- dead letters in one commit; the caller comes back for more
    v_tolerated CONSTANT integer := 1000;   -- dead entries that are read before marks are made
    v_late      CONSTANT interval := '250 milliseconds';  -- marks stay that far behind, for commits under way
BEGIN
    PERFORM pg_advisory_xact_lock_shared({gate});
    IF EXISTS (SELECT FROM {schema}.journal_commits WHERE id = p_commit) THEN
        -- The answer was lost: give it again. Claims that were taken over meanwhile are not ours any more.
        -- journal_entries_thread, attempts_pkey
        SELECT json_agg(a ORDER BY e.seq) INTO v_claimed
          FROM {schema}.journal_commits c
         CROSS JOIN LATERAL (
                SELECT * FROM {schema}.journal_entries e
                 WHERE e.thread = v_thread AND e.type = 'attempt_claimed'
                   AND e.seq <= (c.receipt->>v_thread)::bigint
                   AND e.seq > (c.receipt->>v_thread)::bigint - 2 * v_wanted - v_most_dead OFFSET 0) e
         CROSS JOIN LATERAL (
                SELECT * FROM {schema}.attempts a
                 WHERE a.run_id = e.run_id AND a.runnable_key = e.data->>'runnable_key'
                   AND a.claim_id = e.data->>'claim_id' OFFSET 0) a
         WHERE c.id = p_commit AND a.claim_id = ANY (p_claim_ids);
        RETURN json_build_object('claimed', v_claimed, 'dead', 0);
    END IF;
    IF EXISTS (SELECT FROM {schema}.queues WHERE queue = p_queue AND paused) THEN
        RETURN json_build_object('claimed', NULL, 'dead', 0);
    END IF;
    v_now := coalesce(p_now, clock_timestamp());
    v_looked_at := v_now;
    v_dead_read := pg_stat_get_xact_tuples_returned(v_index) - pg_stat_get_xact_tuples_fetched(v_index);

    IF p_marks IS NULL THEN
        -- attempts_due, by skipping from one (definition, rank) to the next: lanes are few, whatever their depth.
        WITH RECURSIVE lane (definition, rank, due_at, position) AS (
            (SELECT a.definition, a.rank, a.due_at, a.position FROM {schema}.attempts a
              WHERE a.queue = p_queue AND a.due_at IS NOT NULL
              ORDER BY a.definition, a.rank, a.due_at, a.position LIMIT 1)
            UNION ALL
            SELECT n.definition, n.rank, n.due_at, n.position FROM lane l CROSS JOIN LATERAL (
                SELECT a.definition, a.rank, a.due_at, a.position FROM {schema}.attempts a
                 WHERE a.queue = p_queue AND a.due_at IS NOT NULL AND (a.definition, a.rank) > (l.definition, l.rank)
                 ORDER BY a.definition, a.rank, a.due_at, a.position LIMIT 1) n
        )
        SELECT array_agg(definition), array_agg(rank), array_agg(due_at), array_agg(position)
          INTO v_definitions, v_ranks, v_dues, v_positions
          FROM lane WHERE p_definitions IS NULL OR definition = ANY (p_definitions);
    ELSE
        -- attempts_due. A lane in which nothing is due begins now.
        SELECT array_agg(m.definition), array_agg(m.rank), array_agg(coalesce(f.due_at, v_now)),
               array_agg(coalesce(f.position, 0))
          INTO v_definitions, v_ranks, v_dues, v_positions
          FROM json_to_recordset(p_marks) AS m (definition text, rank smallint, due_at timestamptz, position bigint)
          LEFT JOIN LATERAL (
                SELECT a.due_at, a.position FROM {schema}.attempts a
                 WHERE a.queue = p_queue AND a.definition = m.definition AND a.rank = m.rank
                   AND a.due_at IS NOT NULL AND a.due_at <= v_now AND (a.due_at, a.position) >= (m.due_at, m.position)
                 ORDER BY a.due_at, a.position LIMIT 1) f ON true;
    END IF;
    FOR v_rank, v_lanes, v_starts, v_places IN
        SELECT rank, array_agg(definition), array_agg(due_at), array_agg(position)
          FROM unnest(v_definitions, v_ranks, v_dues, v_positions) AS l (definition, rank, due_at, position)
         GROUP BY rank ORDER BY rank
    LOOP
        v_due := '-infinity';
        v_position := 0;
        LOOP
            -- The next candidates of this rank over all lanes, then those of them that nobody else is holding.
            SELECT array_agg(c.run_id ORDER BY c.due_at, c.position),
                   array_agg(c.runnable_key ORDER BY c.due_at, c.position),
                   max(c.due_at), (array_agg(c.position ORDER BY c.due_at, c.position))[count(*)]
              INTO v_runs, v_keys, v_due, v_position
              FROM (SELECT d.* FROM (
                        SELECT l.definition, CASE WHEN l.due_at > v_due THEN l.due_at ELSE v_due END AS due_at,
                               CASE WHEN l.due_at > v_due THEN l.position - 1 ELSE v_position END AS position
                          FROM unnest(v_lanes, v_starts, v_places) AS l (definition, due_at, position) OFFSET 0
                    ) lane CROSS JOIN LATERAL (
                        SELECT a.run_id, a.runnable_key, a.due_at, a.position FROM {schema}.attempts a
                         WHERE a.queue = p_queue AND a.definition = lane.definition AND a.rank = v_rank
                           AND a.due_at IS NOT NULL AND a.due_at <= v_now
                           AND (a.due_at, a.position) > (lane.due_at, lane.position)
                           AND (v_passed = 0 OR a.deliveries = 0 OR a.deliveries >= a.max_deliveries
                                OR a.deliveries + 1 < a.max_deliveries AND a.status <> 'claimed')
                         ORDER BY a.due_at, a.position LIMIT v_wanted - v_live) d
                     ORDER BY d.due_at, d.position LIMIT v_wanted - v_live) c;
            EXIT WHEN v_runs IS NULL;
            SELECT array_agg(g.run_id ORDER BY c.n), array_agg(g.runnable_key ORDER BY c.n),
                   array_agg(g.dead ORDER BY c.n), array_agg(g.doubt ORDER BY c.n)
              INTO v_new_runs, v_new_keys, v_new_dead, v_doubts
              FROM unnest(v_runs, v_keys) WITH ORDINALITY AS c(run_id, runnable_key, n) CROSS JOIN LATERAL (
                    -- attempts_pkey, and nothing else that a plan could begin with
                    SELECT a.run_id, a.runnable_key, a.rank, a.due_at, a.deliveries >= a.max_deliveries AS dead,
                           CASE WHEN p_suspects IS NULL OR a.deliveries = 0 OR a.deliveries >= a.max_deliveries THEN 0
                                WHEN a.deliveries + 1 >= a.max_deliveries THEN 2
                                WHEN a.status = 'claimed' THEN 1 ELSE 0 END AS doubt
                      FROM {schema}.attempts a WHERE a.run_id = c.run_id AND a.runnable_key = c.runnable_key
                    OFFSET 0 FOR UPDATE SKIP LOCKED) g
             WHERE g.rank = v_rank AND g.due_at <= v_now;
            IF 0 < ANY (v_doubts) THEN
                -- A claim goes up to the first suspect. One that comes first is taken, and nothing else with it; once
                -- one may not be taken, all of them are passed over.
                SELECT d.n, d.doubt INTO v_suspect, v_doubt
                  FROM unnest(v_doubts) WITH ORDINALITY AS d(doubt, n) WHERE d.doubt > 0 ORDER BY d.n LIMIT 1;
                v_stop := v_doubt <= p_suspects;
                v_taken := v_stop AND v_live = 0 AND NOT EXISTS (
                    SELECT FROM unnest(v_new_dead) WITH ORDINALITY AS d(dead, n) WHERE d.n < v_suspect AND NOT d.dead);
                IF NOT v_taken THEN
                    v_passed := v_doubt;
                END IF;
                SELECT array_agg(d.run_id ORDER BY d.n), array_agg(d.key ORDER BY d.n), array_agg(d.dead ORDER BY d.n)
                  INTO v_new_runs, v_new_keys, v_new_dead
                  FROM unnest(v_new_runs, v_new_keys, v_new_dead, v_doubts)
                       WITH ORDINALITY AS d(run_id, key, dead, doubt, n)
                 WHERE CASE WHEN v_stop THEN d.n < v_suspect OR d.n = v_suspect AND v_taken ELSE d.doubt = 0 END;
            END IF;
            v_got_runs := v_got_runs || v_new_runs;
            v_got_keys := v_got_keys || v_new_keys;
            v_got_dead := v_got_dead || v_new_dead;
            v_live := (SELECT count(*) FROM unnest(v_got_dead) dead WHERE NOT dead);
            EXIT WHEN v_stop OR v_live >= v_wanted OR cardinality(v_got_dead) >= v_wanted + v_most_dead;
        END LOOP;
        EXIT WHEN v_stop OR v_live >= v_wanted OR cardinality(v_got_dead) >= v_wanted + v_most_dead;
    END LOOP;
    v_dead_read := pg_stat_get_xact_tuples_returned(v_index) - pg_stat_get_xact_tuples_fetched(v_index) - v_dead_read;
    IF p_marks IS NOT NULL OR v_dead_read > v_tolerated THEN
        SELECT json_agg(json_build_object(
                   'definition', definition, 'rank', rank, 'due_at', least(due_at, v_looked_at - v_late),
                   'position', CASE WHEN due_at <= v_looked_at - v_late THEN position ELSE 0 END))
          INTO v_marks
          FROM (SELECT * FROM unnest(v_definitions, v_ranks, v_dues, v_positions)
                UNION ALL  -- lanes that are empty, and will not stay so
                SELECT d.definition, r.rank, v_looked_at, 0
                  FROM unnest(p_definitions) d (definition)
                  CROSS JOIN (SELECT unnest(v_ranks) UNION SELECT 0::smallint) r (rank)
                 WHERE p_marks IS NULL AND NOT EXISTS (
                        SELECT FROM unnest(v_definitions, v_ranks) l (definition, rank)
                         WHERE l.definition = d.definition AND l.rank = r.rank)
               ) AS l (definition, rank, due_at, position);
    END IF;
    IF v_got_runs IS NULL THEN
        RETURN json_build_object('claimed', NULL, 'dead', 0, 'taken', 0, 'passed_over', v_passed, 'marks', v_marks);
    END IF;

    SELECT rev INTO v_rev FROM {schema}.journal_threads WHERE id = v_thread FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the row of thread % is gone', v_thread;
    END IF;
    -- A pause that came in first is seen now, since it held this row.
    IF EXISTS (SELECT FROM {schema}.queues WHERE queue = p_queue AND paused) THEN
        RETURN json_build_object('claimed', NULL, 'dead', 0);
    END IF;
    v_now := coalesce(p_now, clock_timestamp());
    v_rev := {schema}.revision_of(v_thread, v_rev);
    v_base := {schema}.take_number(cardinality(v_got_runs));

    WITH got AS (
        SELECT g.run_id, g.runnable_key, g.dead, g.ord::int,
               CASE WHEN NOT g.dead THEN count(*) FILTER (WHERE NOT g.dead) OVER (ORDER BY g.ord) END::int AS nth
          FROM unnest(v_got_runs, v_got_keys, v_got_dead) WITH ORDINALITY AS g(run_id, runnable_key, dead, ord)
    ), taken AS (
        -- attempts_pkey; attempts_siblings: the fencing token counts claims over all attempts of the idempotency key.
        SELECT g.*, a.deliveries, greatest(v_now, a.last_at) AS at,
               (SELECT coalesce(max(s.fencing_token), 0) FROM {schema}.attempts s
                 WHERE s.idempotency_key = a.idempotency_key AND s.run_id || '' = g.run_id)
               + count(*) FILTER (WHERE NOT g.dead)
                     OVER (PARTITION BY g.run_id, a.idempotency_key ORDER BY g.ord) AS token
          FROM got g CROSS JOIN LATERAL (
               SELECT a.deliveries, a.last_at, a.idempotency_key FROM {schema}.attempts a
                WHERE a.run_id = g.run_id AND a.runnable_key = g.runnable_key OFFSET 0) a
    ), facts AS (
        SELECT t.*, CASE WHEN t.dead THEN 'attempt_dead_lettered' ELSE 'attempt_claimed' END AS type,
               CASE WHEN t.dead THEN json_build_object(
                   'queue', p_queue, 'runnable_key', t.runnable_key, 'deliveries', t.deliveries)
               WHEN v_taken AND v_doubt = 2 AND p_alone THEN json_build_object(
                   'queue', p_queue, 'runnable_key', t.runnable_key, 'claim_id', p_claim_ids[t.nth],
                   'claim_token_hash', p_token_hashes[t.nth],
                   'lease_until', to_char((t.at + p_lease) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                   'owner_id', p_owner, 'fencing_token', t.token, 'alone', true)
               ELSE json_build_object(
                   'queue', p_queue, 'runnable_key', t.runnable_key, 'claim_id', p_claim_ids[t.nth],
                   'claim_token_hash', p_token_hashes[t.nth],
                   'lease_until', to_char((t.at + p_lease) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                   'owner_id', p_owner, 'fencing_token', t.token)
               END AS data
          FROM taken t
    ), written AS (
        INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
        SELECT v_base + f.ord, v_thread, v_rev + f.ord, f.type, f.run_id, f.at, f.data,
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
          FROM facts f WHERE a.run_id = ANY (ARRAY[f.run_id]) AND a.runnable_key = f.runnable_key
        RETURNING a.*, f.ord
    )
    SELECT json_agg(m ORDER BY m.ord) INTO v_claimed FROM moved m WHERE m.status = 'claimed';

    INSERT INTO {schema}.journal_commits (id, receipt, committed_at)
    VALUES (p_commit, json_build_object(v_thread, v_rev + cardinality(v_got_runs)), clock_timestamp());
    RETURN json_build_object('claimed', v_claimed, 'dead', cardinality(v_got_runs) - v_live,
                             'taken', CASE WHEN v_taken THEN v_doubt ELSE 0 END, 'passed_over', v_passed,
                             'marks', v_marks);
END $$;
