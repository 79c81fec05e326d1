"""The storage of facts."""
