"""The `squid` command."""
