-- Refuse a call that began before an upgrade; code of every version begins again when it is told so. Also behind the view
-- journal_positions, the sequence of version 5.
CREATE OR REPLACE FUNCTION {schema}.refuse_stale() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'the schema was upgraded meanwhile: begin again, with newer code if this comes again'
        USING ERRCODE = 'SQ002';
END $$;
