"""`python -m bench [name ...]`: run the benchmarks and print their ratios. Exits with 1 if a bound or target is missed.

Without names all of them run, the comparison with the peers first. Only when named: `tune`, which looks for the best
settings of the peers, and `long`, which drains runs of 100,000 steps and children.
"""

import argparse
import signal
import sys
from collections.abc import Callable

from bench import append, claim, dagster, fold, long, memory, read, settle, snapshot
from bench.peers.process import BenchError
from bench.peers.run import ROUNDS, compare
from bench.peers.systems import OURS, SYSTEMS
from bench.peers.tune import tune
from bench.report import Measure, show

ALONE: dict[str, Callable[[], list[Measure]]] = {
    "fold": fold.measure,
    "append": append.measure,
    "claim": claim.measure,
    "read": read.measure,
    "settle": settle.measure,
    "memory": memory.measure,
    "dagster": dagster.measure,
}
ALL = ["peers", *ALONE, "snapshot", "spark"]


def _spark(facts: int | None) -> list[Measure]:
    from bench import spark  # only when asked for: it requires Java and pyspark

    return spark.measure(facts or spark.FACTS)


def main() -> int:
    """Run the benchmarks that the command line names. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"any of {', '.join([*ALL, 'tune', 'long'])}; default: {ALL}"
    )
    parser.add_argument("--quick", action="store_true", help="peers: one small round, judges nothing, writes no file")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"peers: how many rounds ({ROUNDS})")
    parser.add_argument("--minutes", type=float, default=snapshot.MINUTES, help="snapshot: of work in each database")
    parser.add_argument("--facts", type=int, default=None, help="spark: facts in the end; bounds are for 5,000,000")
    parser.add_argument("--steps", type=int, default=long.STEPS, help=f"long: of each run ({long.STEPS:,})")
    parser.add_argument("--beside", nargs="*", default=None, help="peers, tune: only these peers")
    options = parser.parse_args()
    names = options.names or ALL
    peers = [name for name in SYSTEMS if name != OURS and (options.beside is None or name in options.beside)]
    unknown = sorted({*names} - {*ALL, "tune", "long"}) + sorted({*(options.beside or ())} - {*SYSTEMS})
    if unknown or options.rounds < 1:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else f"rounds must be 1 or more, not {options.rounds}")
    # SIGTERM runs all `finally` blocks, which end the server and the processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    reached = True
    try:
        if "tune" in names:
            tune(peers)
        if "peers" in names:
            reached = compare([OURS, *peers], options.rounds, quick=options.quick)
    except BenchError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    measures = [measure for name in names if name in ALONE for measure in ALONE[name]()]
    measures += long.measure(options.steps) if "long" in names else []
    try:
        measures += snapshot.measure(options.minutes) if "snapshot" in names else []
        measures += _spark(options.facts) if "spark" in names else []
    except BenchError as error:
        sys.stderr.write(f"{error}\n")
        reached = False  # the measures so far are shown
    return 0 if (not measures or show(measures)) and reached else 1


if __name__ == "__main__":
    sys.exit(main())
