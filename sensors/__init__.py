"""The sensors and schedules of this code location with the jobs that they launch, and the jobs of the launchpad."""
