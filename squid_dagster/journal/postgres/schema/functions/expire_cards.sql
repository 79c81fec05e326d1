-- Release claims that ran out: ready again, or dead when no attempt is left. Gives the facts that say so. Holds the
-- thread from then on if it was to look for them, and waits for no card.
CREATE OR REPLACE FUNCTION {schema}.expire_cards(p_id text, p_limit integer, p_now timestamptz) RETURNS json
  LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_facts json;
BEGIN
    IF p_id IS NULL THEN
        -- backlog_leases
        IF NOT EXISTS (SELECT FROM {schema}.backlog WHERE status = 'claimed' AND claim_expires_at <= p_now) THEN
            RETURN NULL;
        END IF;
        -- One at a time: a rival would pass by all that are locked here, and find nothing where there is enough.
        PERFORM FROM {schema}.journal_threads WHERE id = 'squid:backlog:cards' FOR UPDATE;
    END IF;
    -- backlog_leases, then backlog_pkey
    WITH over AS MATERIALIZED (
        SELECT id, claim_expires_at AS until FROM {schema}.backlog
         WHERE status = 'claimed' AND claim_expires_at <= p_now AND id = coalesce(p_id, id)
         ORDER BY claim_expires_at, id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), freed AS (
        UPDATE {schema}.backlog b SET
               status = CASE WHEN b.attempts >= b.max_attempts THEN 'dead_lettered' ELSE 'ready' END,
               claim_owner = NULL, claim_ttl_seconds = NULL, claimed_at = NULL, claim_token_hash = NULL,
               claim_expires_at = NULL, updated_at = greatest(p_now, b.updated_at)
          FROM over o WHERE b.id = o.id
        RETURNING b.id, b.status = 'dead_lettered' AS dead, b.attempts, b.updated_at, o.until
    )
    SELECT json_agg(json_build_object(
               'type', CASE WHEN f.dead THEN 'card_dead_lettered' ELSE 'card_released' END, 'at', f.updated_at,
               'data', CASE WHEN f.dead
                   THEN json_build_object('card_id', f.id, 'fence', 'unfenced', 'cause', 'spent',
                                          'attempts', f.attempts)
                   ELSE json_build_object('card_id', f.id, 'cause', 'expired') END) ORDER BY f.until, f.id)
      INTO v_facts FROM freed f;
    RETURN v_facts;
END $$;
