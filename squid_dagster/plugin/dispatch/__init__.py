"""The dispatch job and its sensor: Dagster runs that claim, execute and complete attempts."""
