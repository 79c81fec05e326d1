"""`squid quickstart`: a workflow, Dagster's UI and two workers, on the embedded Postgres."""
