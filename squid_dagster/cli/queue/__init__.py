"""`squid queue`: look at queues, pause and resume them, and retry dead letters."""
