-- Which version this schema has, and the oldest code that can work with it.
CREATE TABLE {schema}.squid_schema (version integer NOT NULL, oldest_code integer NOT NULL);
INSERT INTO {schema}.squid_schema (version, oldest_code) VALUES (1, 1);
