"""`squid journal`: follow, verify, export and import the facts."""
