"""Rules by which a run is explained, a module for each state that a run can be in."""
