"""The simulated environment: processes, threads, time, storage and wakeups."""
