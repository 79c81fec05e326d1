"""The contracts that every storage keeps: journal, dispatch, queries, notifications, worker liveness."""
