"""The backlog's cards: their state, the rules of their facts, and the fold. Pure."""
