"""Limits that the code checks and the command's help shows. Imports nothing heavy, so that `--help` stays fast."""

from datetime import timedelta
from typing import Final

MIN_PRIORITY: Final = -10
"""The lowest priority of runs and their attempts."""
MAX_PRIORITY: Final = 10
"""The highest priority of runs and their attempts."""
MAX_CLAIMS: Final = 1000
"""The most attempts that one claim takes, and so the most steps that one worker runs at a time."""
MAX_LEASE: Final = timedelta(days=30)
"""The longest lease of an attempt or a card."""
CARD_NUMBER: Final = 2**31 - 1
"""The largest number in a card; its negative is the smallest."""
MAX_ROUND_MEMBERS: Final = 1000
"""The most members of a group that are written in one commit."""
MAX_ROUND_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of outcomes, or of payloads of starts, as JSON, in one commit; a larger one is written alone."""


def commit_bytes(max_fact_bytes: int) -> int:
    """Return how many bytes of facts one commit may hold: far below Postgres's limit of a message (1 GiB)."""
    return 8 * max_fact_bytes
