-- Kept for code of schema version 6 and before; of this version, only end_runs calls it, which is kept for the same code.
--
-- Lock for a settlement where nearly all members are alike: the one attempt of a run in a group was completed. It locks
-- what the general way of that code (lock_units) locks, in the same order, but tells only whether each claim stands;
-- settle_rows writes only columns that a completion can change. What the columns become is decided by the same fold.
CREATE OR REPLACE FUNCTION {schema}.lock_claims(
    p_hold_ms integer,                    -- how long the caller may go quiet while it holds these locks
    p_runs text[],                        -- of each claim, by run; no run twice
    p_claims json,                        -- runnable key, claim id, hash of the token, queue
    p_now timestamptz                     -- null: the database's clock
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now   timestamptz;
    v_going boolean[];
    v_held  json;
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', p_hold_ms::text, true);
    PERFORM pg_advisory_xact_lock_shared({gate});
    -- runs_pkey
    SELECT array_agg(coalesce(r.going, false) ORDER BY n.i) INTO v_going
      FROM unnest(p_runs) WITH ORDINALITY n (id, i)
      LEFT JOIN LATERAL (
            SELECT NOT fenced AND NOT quarantined AND terminal_status IS NULL AND quarantine IS NULL AS going
              FROM {schema}.runs WHERE run_id = n.id FOR UPDATE) r ON true;
    v_now := coalesce(p_now, clock_timestamp());
    -- attempts_pkey. All attempts of a run, since its end touches them all; `alone`: no other one is open. One that was
    -- never planned, or a claim that is not what it was, is for the general way to judge.
    SELECT json_agg(json_build_array(c.i, c.alone)) INTO v_held FROM (
        SELECT m.i, bool_and(a.runnable_key = m.key OR a.status NOT IN ('available', 'retry_scheduled', 'claimed'))
                    AS alone
          FROM (SELECT n.i, n.c->>0 AS key, n.c->>1 AS claim_id, n.c->>2 AS token_hash, n.c->>3 AS queue
                  FROM json_array_elements(p_claims) WITH ORDINALITY n (c, i) OFFSET 0) m
          CROSS JOIN LATERAL (SELECT * FROM {schema}.attempts WHERE run_id = p_runs[m.i] FOR UPDATE) a
         WHERE v_going[m.i]
         GROUP BY m.i
        HAVING bool_and(a.planned_digest IS NOT NULL AND a.status IS NOT NULL)
           AND bool_or(a.runnable_key = m.key AND a.status = 'claimed' AND a.claim_id = m.claim_id
                       AND a.claim_token_hash = m.token_hash AND a.queue = m.queue
                       AND a.lease_until > v_now AND a.last_at <= v_now)
    ) c;
    RETURN json_build_object('now', v_now, 'held', v_held);
END $$;
