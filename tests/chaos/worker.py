"""The `squid` command in a process whose clock may be wrong by some hours, and jumps there and back."""

import os

from tests.shifted_clock import shift

shift(float(os.environ.get("SQUID_CHAOS_CLOCK_HOURS", "0")), moves=True)

from squid_dagster.cli import main  # noqa: E402  after the clock is wrong

if __name__ == "__main__":
    main()
