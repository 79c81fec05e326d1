-- Lock cards and give them as they stand.
CREATE OR REPLACE FUNCTION {schema}.lock_cards(
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
