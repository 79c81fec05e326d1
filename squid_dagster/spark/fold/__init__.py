"""The protocol's folds, applied to all runs in Spark's workers."""
