"""What every public call does with arguments that make no sense."""
