-- Publish a cut for standbys, in a transaction of its own; return it. What is visible to the cut has its commit record
-- before this one's, so that a standby that sees the row sees all that lies under it. Nothing is written when the cut
-- has not moved, and a published cut never falls.
CREATE OR REPLACE FUNCTION {schema}.publish_cut() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_cut bigint := {schema}.cut();
BEGIN
    IF EXISTS (SELECT FROM {schema}.journal_published WHERE position < v_cut) THEN
        UPDATE {schema}.journal_published SET position = v_cut WHERE position < v_cut;
    END IF;
    RETURN v_cut;
END $$;
