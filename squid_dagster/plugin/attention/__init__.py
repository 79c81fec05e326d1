"""The attention sensor: what needs a person, told once."""
