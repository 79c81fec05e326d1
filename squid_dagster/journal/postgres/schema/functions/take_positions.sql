-- Kept for code of schema version 6 and before; nothing of this version calls it.
--
-- Functions of that code take the revision of a shared thread from its row alone: one that began before an upgrade, and
-- waited for it, must not end after it. Later ones call take_number.
CREATE OR REPLACE FUNCTION {schema}.take_positions(p_count bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN {schema}.refuse_stale();
END $$;
