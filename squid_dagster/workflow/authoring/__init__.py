"""What an author writes: steps, routes, retries, conditions; and the definition that is built from it."""
