"""What `make demo` runs and the docs quote."""
