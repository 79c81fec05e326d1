"""A run as it stands or stood: one snapshot, and the parts that it is made of."""
