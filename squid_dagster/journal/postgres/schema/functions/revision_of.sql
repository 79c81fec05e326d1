-- The revision of a thread, given the one in its row: its last sequence number.
--
-- The row of a run's own thread is kept exact. The row of a thread that many runs share (a queue, an index, the catalog,
-- the cards) is locked by every commit and updated by none: under an old snapshot its versions would pile up, and every
-- commit would walk through all of them. Its number is a floor: where old entries are removed, it has to be raised first.
-- Call it in a statement of its own behind the lock of the row, which then sees what the holder before has written.
CREATE OR REPLACE FUNCTION {schema}.revision_of(p_thread text, p_rev bigint) RETURNS bigint LANGUAGE plpgsql STABLE
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    IF starts_with(p_thread, 'squid:run:') THEN
        RETURN p_rev;
    END IF;
    -- journal_entries_thread
    RETURN greatest(p_rev, (SELECT seq FROM {schema}.journal_entries WHERE thread = p_thread
                             ORDER BY seq DESC LIMIT 1));
END $$;
