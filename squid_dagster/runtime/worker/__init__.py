"""The worker: claim loop, step threads, committers, heartbeats, maintenance."""
