"""The runtime: commands, workers and recovery over the journal. No state of its own: everything is in the facts."""
