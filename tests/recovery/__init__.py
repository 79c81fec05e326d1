"""Recovery, proven by enumeration: every boundary between two appends is a place where a process has ended."""
