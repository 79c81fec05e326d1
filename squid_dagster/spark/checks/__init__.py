"""Checks of a whole journal by Spark: views, listings, sequences and anomalies."""
