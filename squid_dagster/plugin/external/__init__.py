"""External steps: Dagster jobs and assets as steps of a workflow."""
