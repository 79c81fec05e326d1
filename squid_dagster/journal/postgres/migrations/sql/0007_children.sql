-- Whether a run has linked a child by a key, which may be longer than an index can hold. {suffix} is '' or '_shadow'.
CREATE INDEX children{suffix}_key ON {schema}.children{suffix} (run_id, left(child_key, 200));
