-- Functions stand in files of their own from here on (functions/), and are replaced as a whole by every upgrade that
-- finds other ones. Beside squid_schema rather than in it: code of version 5 knows that table by its two columns.
CREATE TABLE {schema}.squid_functions (digest text NOT NULL);
INSERT INTO {schema}.squid_functions (digest) VALUES ('');

UPDATE {schema}.squid_schema SET version = 6;
