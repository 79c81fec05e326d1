"""`python -m squid_dagster.testing.simulation`: simulate random workflows, or your own, with every kind of fault."""

import argparse
import sys
import time

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.testing.simulation.campaign import Campaign, SimulationReport, load_scenario, repeat

_EVERY = 10.0  # seconds between two lines of progress


def main(arguments: list[str] | None = None) -> int:
    """Simulate as the arguments say; return 0 when no promise was broken."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="where to begin; by default by the time of day")
    parser.add_argument("--schedules", type=int, default=None, help="how many (default: as many as the time allows)")
    parser.add_argument(
        "--minutes", type=float, default=None, help="how long (default: 10, unless --schedules is given)"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--workflow", help="module:name of a workflow or Scenario of yours (default: random workflows)")
    parser.add_argument("--repeat", type=int, metavar="SEED", help="play one schedule again, and shrink it if it fails")
    parser.add_argument("--keep", help="with --repeat: the numbers of the faults that befall, such as 0,3, or none")
    options = parser.parse_args(arguments)
    try:
        if options.repeat is not None:
            return _repeat(options.repeat, options.keep, options.workflow)
        minutes = 10.0 if options.minutes is None and options.schedules is None else options.minutes
        seed = int(time.time()) % 1_000_000 if options.seed is None else options.seed
        campaign = Campaign(seed, options.schedules, minutes, options.processes, options.workflow)
    except InvalidArgument as error:
        sys.stderr.write(f"{error}\n")
        return 2
    _say(f"simulating from seed {seed}")
    report = campaign.run(Progress().show)
    for failure in report.failures:
        _say(str(failure))
    _say(str(report))
    return 1 if report.failures else 0


class Progress:
    """Progress on stdout, one line every `_EVERY` seconds."""

    def __init__(self) -> None:
        """Start without a line."""
        self._shown = 0.0

    def show(self, report: SimulationReport, seconds: float) -> None:
        """Print the counts so far."""
        if seconds - self._shown >= _EVERY:
            self._shown = seconds
            rate = report.schedules / seconds * 3600
            _say(
                f"{seconds:6.0f} s: {report.schedules:,} schedules, {report.faults:,} faults, "
                f"{len(report.failures)} failures, {rate:,.0f} schedules an hour"
            )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _repeat(seed: int, keep: str | None, workflow: str | None) -> int:
    numbers = None if keep is None else [int(part) for part in keep.split(",") if part not in ("", "none")]
    failure = repeat(seed, numbers, None if workflow is None else load_scenario(workflow))
    _say(str(failure or f"seed {seed} holds"))
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
