"""`squid run`: start, list, look at and control runs."""
