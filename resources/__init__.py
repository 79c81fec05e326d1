"""The resources of this code location, a module for each."""
