"""The contracts of all storages: journal, dispatch, queries, wakeups, worker liveness."""
