-- What happens to cards. Lock order: the gate, then the lock of all links ({cards}: shared by whoever changes cards,
-- exclusive for whoever changes what depends on what), card rows by id, the thread, positions. Claims lock cards with
-- SKIP LOCKED, or one by its id while they hold nothing else, and so wait for no card, whatever they hold already.

-- The history of a card. Only entries of the cards' thread are in here.
CREATE INDEX journal_entries_card ON {schema}.journal_entries ((data->>'card_id'), seq)
    WHERE thread = 'squid:backlog:cards';

-- Facts of queues that belong to no run: pauses. Cards belong to no run either, and are many.
DROP INDEX {schema}.journal_entries_loose;
CREATE INDEX journal_entries_loose ON {schema}.journal_entries (position)
    WHERE run_id IS NULL AND starts_with(thread, 'squid:dispatch:');

-- Whoever removes the thread removes the cards.
CREATE FUNCTION {schema}.forget_cards() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.backlog;
    RETURN NULL;
END $$;
CREATE TRIGGER journal_threads_cards AFTER DELETE ON {schema}.journal_threads
    FOR EACH ROW WHEN (OLD.id = 'squid:backlog:cards') EXECUTE FUNCTION {schema}.forget_cards();

-- Lock cards and give them as they stand.
CREATE FUNCTION {schema}.lock_cards(
    p_hold_ms integer,                    -- how long the caller may go quiet while it holds these locks
    p_ids text[],
    p_key text,                           -- the card of this idempotency key, too
    p_closure text,                       -- what does this card depend on, in the end?
    p_links boolean,                      -- edges are about to change
    p_frees boolean                       -- cards that wait for these are about to change
) RETURNS json LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids   text[] := p_ids;
    v_more  text[];
    v_cards json;
    v_edges json;
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', p_hold_ms::text, true);
    PERFORM pg_advisory_xact_lock_shared({gate});
    IF p_links THEN
        PERFORM pg_advisory_xact_lock({cards});
    ELSE
        PERFORM pg_advisory_xact_lock_shared({cards});
    END IF;
    IF p_key IS NOT NULL THEN
        -- backlog_key
        v_ids := v_ids || ARRAY(SELECT id FROM {schema}.backlog WHERE idempotency_key = p_key);
    END IF;
    IF p_frees THEN
        -- backlog_waiting
        v_more := ARRAY(SELECT id FROM {schema}.backlog
                         WHERE open_dependencies > 0 AND depends_on @> to_jsonb(p_ids));
    END IF;
    -- backlog_pkey, twice
    PERFORM FROM {schema}.backlog WHERE id = ANY (v_ids || v_more) ORDER BY id FOR UPDATE;
    SELECT json_agg(c) INTO v_cards FROM {schema}.backlog c WHERE id = ANY (v_ids);
    IF p_closure IS NOT NULL THEN
        -- backlog_pkey
        WITH RECURSIVE reached (id) AS (
            SELECT p_closure
            UNION
            SELECT d.id FROM reached r JOIN {schema}.backlog b ON b.id = r.id
             CROSS JOIN LATERAL jsonb_array_elements_text(b.depends_on) d (id)
        )
        SELECT json_object_agg(b.id, b.depends_on) INTO v_edges FROM reached r JOIN {schema}.backlog b ON b.id = r.id;
    END IF;
    RETURN json_build_object('now', clock_timestamp(), 'cards', v_cards, 'edges', v_edges);
END $$;

-- Write cards as a fold left them: new ones, and those that were locked. Those that are done free who waits for them.
CREATE FUNCTION {schema}.put_cards(p_new json, p_changed json, p_done text[]) RETURNS void LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
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

-- Release claims that ran out: ready again, or dead when no attempt is left. Gives the facts that say so. Holds the
-- thread from then on if it was to look for them, and waits for no card.
CREATE FUNCTION {schema}.expire_cards(p_id text, p_limit integer, p_now timestamptz) RETURNS json LANGUAGE plpgsql
  VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Append facts to the cards' thread, as every other append is made.
CREATE FUNCTION {schema}.append_cards(p_commit uuid, p_facts json) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM {schema}.journal_threads WHERE id = 'squid:backlog:cards' FOR UPDATE;
    IF EXISTS (SELECT FROM {schema}.journal_commits WHERE id = p_commit) THEN
        -- This very commit was under way when it was repeated: nothing may change a second time.
        RAISE EXCEPTION 'the commit appeared meanwhile' USING ERRCODE = 'SQ002';
    END IF;
    PERFORM {schema}.append_entries(
        p_commit, ARRAY['squid:backlog:cards'], ARRAY[NULL]::bigint[], ARRAY[json_array_length(p_facts)],
        (SELECT json_agg(json_build_object('ord', i, 't', 1, 'k', i, 'type', f->'type', 'run_id', NULL, 'at', f->'at',
                                           'data', f->'data') ORDER BY i)
           FROM json_array_elements(p_facts) WITH ORDINALITY n (f, i)),
        NULL, NULL, NULL, NULL, NULL, NULL);
END $$;

-- Claim one card, in one call: the best of those that are claimable, of a phase if one is given, or the one that is
-- named. Gives the card, or null. Enforces in SQL what the fold demands of card_claimed, card_released and
-- card_dead_lettered. Plans are made once per session, for the named indexes.
CREATE FUNCTION {schema}.claim_card(
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

-- Release up to so many claims that ran out; gives these cards.
CREATE FUNCTION {schema}.release_cards(p_commit uuid, p_limit integer, p_now timestamptz) RETURNS json LANGUAGE plpgsql
  VOLATILE SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_facts json;
    v_cards json;
BEGIN
    PERFORM pg_advisory_xact_lock_shared({gate});
    PERFORM pg_advisory_xact_lock_shared({cards});
    v_facts := {schema}.expire_cards(NULL, p_limit, coalesce(p_now, clock_timestamp()));
    IF v_facts IS NOT NULL THEN
        PERFORM {schema}.append_cards(p_commit, v_facts);
        -- backlog_pkey
        SELECT json_agg(b ORDER BY n.i) INTO v_cards
          FROM json_array_elements(v_facts) WITH ORDINALITY n (f, i)
          JOIN {schema}.backlog b ON b.id = n.f->'data'->>'card_id';
    END IF;
    RETURN v_cards;
END $$;

UPDATE {schema}.squid_schema SET version = 4;
