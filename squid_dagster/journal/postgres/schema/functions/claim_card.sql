-- Claim one card, in one call: the best of those that are claimable, of a phase if one is given, or the one that is
-- named. Gives the card, or null. Enforces in SQL what the fold demands of card_claimed, card_released and
-- card_dead_lettered. Plans are made once per session, for the named indexes.
CREATE OR REPLACE FUNCTION {schema}.claim_card(
    p_commit uuid, p_owner text, p_ttl integer, p_token_hash text, p_id text, p_phase text,
    p_now timestamptz                       -- null: the database's clock
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
  SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now      timestamptz;
    v_facts    json;
    v_id       text;
    v_priority bigint := 9223372036854775807;
    v_card     json;
    v_claimed  json;
    v_expired  CONSTANT integer := 1000;    -- released in one commit; the next claim goes on
BEGIN
    PERFORM pg_advisory_xact_lock_shared({gate});
    PERFORM pg_advisory_xact_lock_shared({cards});
    -- A repeat waits for the first one, whose caller is gone: there must be no second card under a lost token.
    PERFORM pg_advisory_xact_lock(hashtextextended(p_commit::text, 0));
    -- journal_commits_pkey, journal_entries_thread, backlog_pkey. The answer was lost: give it again, unless it is over.
    IF EXISTS (SELECT FROM {schema}.journal_commits WHERE id = p_commit) THEN
        SELECT to_json(b) INTO v_card FROM {schema}.journal_commits c
          JOIN {schema}.journal_entries e ON e.thread = 'squid:backlog:cards'
           AND e.seq = (c.receipt->>'squid:backlog:cards')::bigint
          JOIN {schema}.backlog b ON b.id = e.data->>'card_id' AND b.claim_token_hash = p_token_hash
         WHERE c.id = p_commit AND b.status = 'claimed';
        RETURN json_build_object('known', true, 'card', v_card);
    END IF;
    IF p_id IS NOT NULL THEN
        PERFORM FROM {schema}.backlog WHERE id = p_id FOR UPDATE;
        IF NOT FOUND THEN
            RETURN json_build_object('known', false, 'card', NULL);
        END IF;
    END IF;
    v_now := coalesce(p_now, clock_timestamp());
    v_facts := {schema}.expire_cards(p_id, v_expired, v_now);

    IF p_id IS NOT NULL THEN
        SELECT id INTO v_id FROM {schema}.backlog
         WHERE id = p_id AND status = 'ready' AND open_dependencies = 0 AND queued_at <= v_now
           AND (p_phase IS NULL OR phase = p_phase);
    ELSIF p_phase IS NULL THEN
        LOOP
            -- backlog_claimable: the next lane, then its oldest card that nobody else is holding.
            SELECT priority INTO v_priority FROM {schema}.backlog
             WHERE status = 'ready' AND open_dependencies = 0 AND priority < v_priority
             ORDER BY priority DESC LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT id INTO v_id FROM {schema}.backlog
             WHERE status = 'ready' AND open_dependencies = 0 AND priority = v_priority AND queued_at <= v_now
             ORDER BY queued_at, id LIMIT 1 FOR UPDATE SKIP LOCKED;
            EXIT WHEN FOUND;
        END LOOP;
    ELSE
        LOOP
            -- backlog_phase, in the same way.
            SELECT priority INTO v_priority FROM {schema}.backlog
             WHERE status = 'ready' AND open_dependencies = 0 AND phase = p_phase AND priority < v_priority
             ORDER BY priority DESC LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT id INTO v_id FROM {schema}.backlog
             WHERE status = 'ready' AND open_dependencies = 0 AND phase = p_phase AND priority = v_priority
               AND queued_at <= v_now
             ORDER BY queued_at, id LIMIT 1 FOR UPDATE SKIP LOCKED;
            EXIT WHEN FOUND;
        END LOOP;
    END IF;

    IF v_id IS NOT NULL THEN
        -- The claim begins when nobody has to be waited for any more.
        PERFORM FROM {schema}.journal_threads WHERE id = 'squid:backlog:cards' FOR UPDATE;
        v_now := coalesce(p_now, clock_timestamp());
        -- backlog_pkey
        UPDATE {schema}.backlog b SET status = 'claimed', claim_owner = p_owner, claim_ttl_seconds = p_ttl,
               claimed_at = greatest(v_now, b.updated_at), attempts = b.attempts + 1, claim_token_hash = p_token_hash,
               updated_at = greatest(v_now, b.updated_at),
               claim_expires_at = greatest(v_now, b.updated_at) + make_interval(secs => p_ttl)
         WHERE b.id = v_id
        RETURNING to_json(b), json_build_object('type', 'card_claimed', 'at', b.updated_at, 'data', json_build_object(
                'card_id', b.id, 'claim_owner', p_owner, 'claim_ttl_seconds', p_ttl,
                'claim_token_hash', p_token_hash, 'attempt', b.attempts))
          INTO v_card, v_claimed;
        v_facts := (coalesce(v_facts::jsonb, '[]') || v_claimed::jsonb)::json;
    END IF;
    IF v_facts IS NOT NULL THEN
        PERFORM {schema}.append_cards(p_commit, v_facts);
    END IF;
    RETURN json_build_object('known', true, 'card', v_card);
END $$;
