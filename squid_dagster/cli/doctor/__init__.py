"""`squid doctor`: find what is wrong, name it, and say what to do."""
