-- Release up to so many claims that ran out; gives these cards.
CREATE OR REPLACE FUNCTION {schema}.release_cards(p_commit uuid, p_limit integer, p_now timestamptz) RETURNS json
  LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
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
