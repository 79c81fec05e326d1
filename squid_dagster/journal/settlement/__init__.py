"""The facts that the members of one group of settlements write. Shared by all dispatch stores."""
