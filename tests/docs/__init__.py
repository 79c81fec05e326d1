"""The documents as they are executed: README, and everything in `docs/`."""
