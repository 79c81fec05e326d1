"""The planner: which facts follow from a start, an outcome or a decision. Pure."""
