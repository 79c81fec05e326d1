-- Write one commit: facts, and the rows that a fold made of them. A row names a position that does not exist yet by the
-- fact's place in the commit, negated.
CREATE OR REPLACE FUNCTION {schema}.append_entries(
    p_commit uuid,
    p_threads text[],                       -- sorted by id
    p_expected bigint[],                    -- null: at any revision
    p_counts integer[],                     -- how many entries each thread gets
    p_entries json,                         -- t (place in p_threads), k (1.. in its thread), type, run_id, at, data
    p_runs json, p_attempts json, p_ended text[], p_children json, p_queues json, p_anomalies json
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_receipt   json;
    v_revs      bigint[];
    v_new       boolean[];
    v_made      integer;
    v_bad       integer;
    v_base      bigint;                     -- a fact's position is this and its place in the commit
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
    -- Not of a thread without a row: who makes it meanwhile is met below, where it means to begin again.
    v_revs := ARRAY(SELECT CASE WHEN v_new[i] THEN 0 ELSE {schema}.revision_of(p_threads[i], v_revs[i]) END
                      FROM generate_subscripts(p_threads, 1) i ORDER BY i);
    SELECT min(i) INTO v_bad FROM generate_subscripts(p_threads, 1) i WHERE p_expected[i] <> v_revs[i];
    IF v_bad IS NOT NULL THEN
        RAISE EXCEPTION 'conflict' USING ERRCODE = 'SQ001',
            DETAIL = json_build_array(p_threads[v_bad], p_expected[v_bad], v_revs[v_bad]);
    END IF;
    IF true = ANY (v_new) THEN
        INSERT INTO {schema}.journal_threads (id, rev)
        SELECT p_threads[i], p_counts[i] FROM generate_subscripts(p_threads, 1) i WHERE v_new[i] ORDER BY i
            ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_made = ROW_COUNT;
        IF v_made < cardinality(array_positions(v_new, true)) THEN
            -- Somebody made one of them first. Locking it now would be out of order: begin again.
            RAISE EXCEPTION 'a thread appeared meanwhile' USING ERRCODE = 'SQ002';
        END IF;
    END IF;

    v_base := {schema}.take_number((SELECT sum(n) FROM unnest(p_counts) n));

    INSERT INTO {schema}.journal_entries (position, thread, seq, type, run_id, occurred_at, data, digest)
    SELECT v_base + e.ord, p_threads[e.t], v_revs[e.t] + e.k, e.type, e.run_id, e.at, e.data,
           {schema}.entry_digest(p_threads[e.t], v_revs[e.t] + e.k, e.type, e.run_id, e.at, e.data)
      FROM json_to_recordset(p_entries)
           AS e(ord int, t int, k int, type text, run_id text, at timestamptz, data json)
     ORDER BY e.ord;

    IF p_ended IS NOT NULL THEN
        DELETE FROM {schema}.attempts WHERE run_id = ANY (p_ended);
    END IF;
    IF p_runs IS NOT NULL THEN
        INSERT INTO {schema}.runs (run_id, position, {run_columns})
        SELECT run_id, CASE WHEN position < 0 THEN v_base - position ELSE position END, {run_columns}
          FROM json_populate_recordset(NULL::{schema}.runs, p_runs)
            ON CONFLICT (run_id) DO UPDATE SET ({run_columns}) = ({run_excluded});
    END IF;
    IF p_attempts IS NOT NULL THEN
        INSERT INTO {schema}.attempts (run_id, runnable_key, position, {attempt_columns})
        SELECT run_id, runnable_key, CASE WHEN position < 0 THEN v_base - position ELSE position END, {attempt_columns}
          FROM json_populate_recordset(NULL::{schema}.attempts, p_attempts)
            ON CONFLICT (run_id, runnable_key)
            DO UPDATE SET (position, {attempt_columns}) = (EXCLUDED.position, {attempt_excluded});
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
        SELECT a.thread, v_revs[array_position(p_threads, a.thread)] + a.seq, a.ordinal, v_base - a.position,
               a.run_id, a.reason, a.entry_type, a.subject
          FROM json_populate_recordset(NULL::{schema}.anomalies, p_anomalies) a;
    END IF;

    UPDATE {schema}.journal_threads t SET rev = v_revs[i] + p_counts[i]
      FROM generate_subscripts(p_threads, 1) i
     WHERE t.id = ANY (ARRAY[p_threads[i]]) AND NOT v_new[i] AND starts_with(p_threads[i], 'squid:run:');
    SELECT json_object_agg(p_threads[i], v_revs[i] + p_counts[i]) INTO v_receipt
      FROM generate_subscripts(p_threads, 1) i;
    IF p_commit IS NOT NULL THEN
        INSERT INTO {schema}.journal_commits (id, receipt, committed_at)
        VALUES (p_commit, v_receipt, clock_timestamp());
    END IF;
    RETURN v_receipt;
END $$;
