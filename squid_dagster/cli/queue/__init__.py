"""`squid queue`: show, pause and resume queues, and retry dead letters."""
