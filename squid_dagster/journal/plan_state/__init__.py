"""The planner's state of open runs: a cache in memory, and checkpoints for a process that has none."""
