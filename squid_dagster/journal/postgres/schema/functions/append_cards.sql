-- Append facts to the cards' thread, as every other append is made.
CREATE OR REPLACE FUNCTION {schema}.append_cards(p_commit uuid, p_facts json) RETURNS void
  LANGUAGE plpgsql VOLATILE AS $$
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
