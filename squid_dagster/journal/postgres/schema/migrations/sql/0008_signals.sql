-- Commands by their idempotency key, so that a repeat is found however long its run is. Of a fixed size, since keys are
-- not, and of one column that nothing else is found by: no plan can take the index of threads in its place, and walk
-- through a long one. The first entry of a run, nearly always the command that started it, is not here: starts are found
-- by their runs, and are to pay nothing.
CREATE INDEX journal_entries_signals ON {schema}.journal_entries
    (hashtextextended(thread || ' ' || (data->>'idempotency_key'), 0))
    WHERE type = 'run_signal_received' AND seq > 1 AND data->>'idempotency_key' IS NOT NULL;

