"""What the members of one group of settlements write. Pure, and shared by all dispatch stores."""
