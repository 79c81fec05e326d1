"""Spark: the journal as a data source, and the protocol's folds applied to all runs. Only this room imports pyspark."""
