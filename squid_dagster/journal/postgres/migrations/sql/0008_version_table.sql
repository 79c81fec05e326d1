-- One version table. What it said of functions is said by their comments from here on; the other one was Alembic's.
DROP TABLE IF EXISTS {schema}.squid_schema_revision;
DROP TABLE {schema}.squid_functions;
UPDATE {schema}.squid_schema SET version = 8;
