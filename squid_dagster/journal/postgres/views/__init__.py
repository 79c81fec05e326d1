"""The live views: rows of runs and attempts; their rebuild, comparison and verification."""
