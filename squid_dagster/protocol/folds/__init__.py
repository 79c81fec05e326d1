"""The folds: what the facts of a run, a queue and an index mean. Pure."""
