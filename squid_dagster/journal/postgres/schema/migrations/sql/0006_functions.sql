-- Functions stand in files of their own from here on (functions/), and are replaced as a whole by every upgrade that
-- finds other ones. Beside squid_schema rather than in it: code of version 5 knows that table by its two columns.
CREATE TABLE {schema}.squid_functions (digest text NOT NULL);
INSERT INTO {schema}.squid_functions (digest) VALUES ('');

-- A commit takes one number, and its facts stand at number * 2^20 + 1, + 2, ... Facts that are there keep their
-- positions. The first number is behind all of them, and behind every cut that was ever taken of them.
CREATE SEQUENCE {schema}.journal_numbers CACHE 1;
SELECT setval('{schema}.journal_numbers', n.last >> 20)
  FROM (SELECT greatest((SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.journal_positions),
                        (SELECT max(position) FROM {schema}.journal_entries)) AS last) n
 WHERE n.last >> 20 > 0;

-- The cut that standbys go by.
CREATE TABLE {schema}.journal_published (position bigint NOT NULL) WITH (fillfactor = 10);
INSERT INTO {schema}.journal_published (position)
SELECT coalesce(max(position), 0) FROM {schema}.journal_entries;

-- A call of version 5 that waits while this is committed goes on as it began, and would take positions from the sequence
-- of its time. It finds a view instead, which tells it to begin again.
DROP SEQUENCE {schema}.journal_positions;
CREATE FUNCTION {schema}.refuse_stale() RETURNS bigint LANGUAGE plpgsql VOLATILE AS
    'BEGIN RAISE EXCEPTION ''the schema was upgraded meanwhile'' USING ERRCODE = ''SQ002''; END';
CREATE VIEW {schema}.journal_positions AS SELECT n AS last_value, true AS is_called FROM {schema}.refuse_stale() n;

UPDATE {schema}.squid_schema SET version = 6;
