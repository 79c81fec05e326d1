"""`squid backlog`: cards that people and programs claim."""
