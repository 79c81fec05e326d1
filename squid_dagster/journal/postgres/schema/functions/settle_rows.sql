-- Kept for code of schema version 6 and before; nothing of this version calls it.
--
-- What completions change in rows that are there: of runs, and of attempts whose run goes on.
CREATE OR REPLACE FUNCTION {schema}.settle_rows(p_runs json, p_attempts json) RETURNS void LANGUAGE plpgsql VOLATILE
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
