-- Shorter ways for what happens most.
--
-- The short way of a settlement, for what nearly all of them are: the one attempt of a run in a group was completed. It
-- locks what the long way (lock_units) locks, in the same order, but tells only whether each claim still stands, and
-- writes only columns that a completion can change. What the columns become is decided by the same fold.

CREATE FUNCTION {schema}.lock_claims(
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
    -- never planned, or a claim that is not what it was, is for the long way to judge.
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

-- What completions change in rows that are there: of runs, and of attempts whose run goes on.
CREATE FUNCTION {schema}.settle_rows(p_runs json, p_attempts json) RETURNS void LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    -- runs_pkey
    UPDATE {schema}.runs r SET status = n.status, planned_visits = n.planned_visits, applied_visits = n.applied_visits,
           manual_state = n.manual_state, terminal_status = n.terminal_status, terminal_digest = n.terminal_digest,
           ended_at = n.ended_at, fenced = n.terminal_status IS NOT NULL
      FROM json_to_recordset(p_runs) AS n (run_id text, status text, planned_visits int, applied_visits int,
           manual_state json, terminal_status text, terminal_digest text, ended_at timestamptz)
     WHERE r.run_id = n.run_id;
    IF p_attempts IS NOT NULL THEN
        -- attempts_pkey
        UPDATE {schema}.attempts a SET status = n.status, input = NULL, outcome_digest = n.outcome_digest,
               settled_at = n.settled_at, last_at = n.last_at, due_at = NULL, applied_digest = n.applied_digest
          FROM json_to_recordset(p_attempts) AS n (run_id text, runnable_key text, status text, outcome_digest text,
               settled_at timestamptz, last_at timestamptz, applied_digest text)
         WHERE a.run_id = n.run_id AND a.runnable_key = n.runnable_key;
    END IF;
END $$;

-- Lock runs that are to be new, for a commit that comes in the same message. The caller says which time it is, as it
-- worked it out from an earlier answer: where that is not the database's time, or a run is there, it has to begin anew.
CREATE FUNCTION {schema}.lock_new(
    p_runs text[],
    p_now timestamptz                     -- null: any time will do, since the caller's clock is the one that counts
) RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({gate});
    PERFORM pg_advisory_xact_lock({buckets}, bucket)
       FROM (SELECT DISTINCT hashtext(id) & 511 AS bucket FROM unnest(p_runs) id ORDER BY 1) b;
    -- runs_pkey
    IF p_now > clock_timestamp() OR p_now < clock_timestamp() - interval '100 milliseconds'
       OR EXISTS (SELECT FROM {schema}.runs WHERE run_id = ANY (p_runs)) THEN
        RAISE EXCEPTION 'not new, or at another time' USING ERRCODE = 'SQ003';
    END IF;
END $$;

UPDATE {schema}.squid_schema SET version = 2;
