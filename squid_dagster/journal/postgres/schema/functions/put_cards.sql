-- Write cards as a fold left them: new ones, and those that were locked. Those that are done free who waits for them.
CREATE OR REPLACE FUNCTION {schema}.put_cards(p_new json, p_changed json, p_done text[]) RETURNS void
  LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF p_new IS NOT NULL THEN
        INSERT INTO {schema}.backlog SELECT c.* FROM json_populate_recordset(NULL::{schema}.backlog, p_new) c;
    END IF;
    IF p_changed IS NOT NULL THEN
        -- backlog_pkey
        UPDATE {schema}.backlog b SET
               status = c.status, depends_on = c.depends_on, claim_owner = c.claim_owner,
               claim_ttl_seconds = c.claim_ttl_seconds, claimed_at = c.claimed_at, attempts = c.attempts,
               updated_at = c.updated_at, not_before = c.not_before, error = c.error,
               open_dependencies = c.open_dependencies, claim_token_hash = c.claim_token_hash,
               queued_at = c.queued_at, claim_expires_at = c.claim_expires_at
          FROM json_populate_recordset(NULL::{schema}.backlog, p_changed) c WHERE b.id = c.id;
    END IF;
    IF p_done IS NOT NULL THEN
        -- backlog_waiting
        UPDATE {schema}.backlog SET open_dependencies = open_dependencies - 1
         WHERE open_dependencies > 0 AND depends_on @> to_jsonb(p_done);
    END IF;
END $$;
