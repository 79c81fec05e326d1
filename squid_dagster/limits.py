"""Limits that the code holds to and the help of the command shows. Loads nothing, so that `--help` stays quick."""

from datetime import timedelta
from typing import Final

MIN_PRIORITY: Final = -10
"""Of runs and their attempts; the lowest."""
MAX_PRIORITY: Final = 10
"""Of runs and their attempts; the highest."""
MAX_CLAIMS: Final = 1000
"""Attempts that are claimed at a time, and so steps that one worker runs."""
MAX_LEASE: Final = timedelta(days=30)
"""Of attempts and of cards."""
CARD_NUMBER: Final = 2**31 - 1
"""What a number of a card may be at most, and its negative at least."""
MAX_ROUND_MEMBERS: Final = 1000
"""Members of a group that are written in one commit."""
MAX_ROUND_BYTES: Final = 16 * 1024 * 1024
"""Outcomes, or payloads of starts, as JSON, that are written in one commit; one that is larger stands alone."""


def commit_bytes(max_fact_bytes: int) -> int:
    """Return how many bytes of facts one commit may hold: far below what a message to Postgres may (1 GiB)."""
    return 8 * max_fact_bytes
