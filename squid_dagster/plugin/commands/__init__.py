"""Jobs that start, approve, cancel and retry runs from Dagster's launchpad."""
