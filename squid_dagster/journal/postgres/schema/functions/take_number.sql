-- Take the number of one commit, after its last lock, and with it the positions of its facts: they stand at the returned
-- base + 1, + 2, ... So the facts of a commit follow each other, and no other commit's stand between.
-- First the commit announces itself, until it is visible or gone: by a shared advisory lock whose number is (the low 32
-- bits of) the last number that was taken, so that its own is greater. The sequence must have CACHE 1 for that.
CREATE OR REPLACE FUNCTION {schema}.take_number(p_count bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_last   bigint;
    v_locked text;                        -- nothing: an assignment is done without the executor, which PERFORM is not
BEGIN
    IF p_count >= 1 << 20 THEN
        RAISE EXCEPTION 'a commit of % facts: it can hold 1048575', p_count USING ERRCODE = 'SQ004';
    END IF;
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO v_last FROM {schema}.journal_numbers;
    v_locked := pg_advisory_xact_lock_shared({positions}, (v_last & 4294967295)::bit(32)::int)::text;
    RETURN nextval('{schema}.journal_numbers') << 20;
END $$;
