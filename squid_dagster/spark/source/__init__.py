"""The data source `squid_journal`: partitions, filters, columns and connections."""
