-- Indexes of the views. {suffix} is '' or '_shadow'.

-- Whether a run has linked a child by a key, which may be longer than an index can hold.
CREATE INDEX children{suffix}_key ON {schema}.children{suffix} (run_id, left(child_key, 200));

-- Counting claims over all attempts of an idempotency key. Not by the run first: a plan that was made while the table was
-- small would take it for a look-up by run and key, and read all attempts of a long run.
DROP INDEX {schema}.attempts{suffix}_siblings;
CREATE INDEX attempts{suffix}_siblings ON {schema}.attempts{suffix} (idempotency_key, run_id);
