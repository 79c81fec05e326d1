-- Whoever removes the thread removes the cards.
CREATE OR REPLACE FUNCTION {schema}.forget_cards() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.backlog;
    RETURN NULL;
END $$;
