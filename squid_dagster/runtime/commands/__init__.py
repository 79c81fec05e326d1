"""Commands: start, signals and decisions about runs, and the receipts that answer them."""
