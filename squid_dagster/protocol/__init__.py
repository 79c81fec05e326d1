"""Facts, threads and folds."""
