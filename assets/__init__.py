"""The assets of this code location with their checks, jobs and schedules: the journal, and the tables made of it."""
