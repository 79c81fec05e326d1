-- One version table; the other one was Alembic's. squid_functions stays as it is and is read by nothing of this version,
-- which goes by the comments on functions: code of versions 6 and 7 that connects during this upgrade still looks at it.
DROP TABLE IF EXISTS {schema}.squid_schema_revision;
UPDATE {schema}.squid_schema SET version = 8;
