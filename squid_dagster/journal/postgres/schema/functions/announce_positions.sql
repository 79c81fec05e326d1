-- Kept for code of schema version 5 and before; nothing of this version calls it.
--
-- Functions of that code call it before they take positions of their own: one that began before an upgrade, and waited
-- for it, must not end after it.
CREATE OR REPLACE FUNCTION {schema}.announce_positions() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM {schema}.refuse_stale();
END $$;
