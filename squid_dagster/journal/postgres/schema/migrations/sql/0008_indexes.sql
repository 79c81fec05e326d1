-- Indexes of the views that are looked into by one key alone: by what statistics say of an empty table, a plan could take
-- one of several columns for one of another order, and read the whole index. {suffix} is '' or '_shadow'. The indexes of version 7 are missing where code of version 6 has
-- rebuilt the views since.

-- Attempts of one visit: the claims over all of them are counted.
DROP INDEX IF EXISTS {schema}.attempts{suffix}_siblings;
CREATE INDEX attempts{suffix}_siblings ON {schema}.attempts{suffix} (idempotency_key);

-- Whether a run has linked a child by a key, which may be longer than an index can hold.
DROP INDEX IF EXISTS {schema}.children{suffix}_key;
CREATE INDEX children{suffix}_key ON {schema}.children{suffix} (md5(run_id || ' ' || child_key));
