-- Kept for code of schema version 6 and before; of this version, only take_positions, announce_positions and the view
-- journal_positions (the sequence of version 5) call it, which are kept for the same code.
--
-- Refuse a call that began before an upgrade; code of every version begins again when it is told so.
CREATE OR REPLACE FUNCTION {schema}.refuse_stale() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'the schema was upgraded meanwhile: begin again, with newer code if this comes again'
        USING ERRCODE = 'SQ002';
END $$;
