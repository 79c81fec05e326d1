"""Synthetic journals of any size, written through the real storage path in bulk: for tests and measurements.

`python -m tests.spark.journal_generator --facts 1000000` writes into the journal that the configuration names.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from random import Random
from uuid import UUID, uuid5

import click

from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.protocol import Fact
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.threads import ThreadKind, parse_thread
from tests.spark.synthetic_runs import EventRates, Moment, SyntheticRun, make_run

_NAMESPACE = UUID("6b6f1c1e-6a3e-4f5f-9a53-3a3c6c6d1f55")
_COUNTED = ("retries", "expiries", "approvals", "children", "anomalies", "unfinished")
# Queues first: within a commit their facts must stand before the ends of the runs that they are about.
_ORDER = {kind: place for place, kind in enumerate((ThreadKind.DISPATCH, ThreadKind.RUN))}

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Generated:
    """What was written."""

    facts: int = 0
    runs: int = 0
    next_run: int = 0  # the `first_run` of the next call
    retries: int = 0
    expiries: int = 0
    approvals: int = 0
    children: int = 0
    anomalies: int = 0
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write. The same plan gives the same facts, and done again it writes none of them twice."""

    facts: int
    seed: int = 0
    start: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    every: timedelta = timedelta(seconds=1)  # between the starts of runs
    mix: EventRates = field(default_factory=EventRates)
    workflow: str = "synthetic"
    queue: str = "default"
    steps: int = 2
    runs_per_commit: int = 500
    first_run: int = 0

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for a number that makes no sense."""
        for name, least in (("facts", 1), ("steps", 1), ("runs_per_commit", 1), ("first_run", 0)):
            if getattr(self, name) < least:
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}: use {least} or more")


def generate(storage: Storage, plan: Plan, progress: Progress | None = None) -> Generated:
    """Write runs, many in one commit, until there are at least as many facts as planned; say what was written.

    `progress` is told the number of facts so far. Raises as `Storage.commit`.
    """
    report, counts = progress or (lambda _: None), Counter[str]()
    number, same = plan.first_run, replace(plan, facts=1, first_run=0)  # a longer plan goes on where a shorter one ends
    while counts["facts"] < plan.facts:
        cohort = [run for n in range(number, number + plan.runs_per_commit) for run in _runs_of(plan, n)]
        for place, moments in enumerate(zip_longest(*(run.moments for run in cohort), fillvalue=())):
            storage.commit(_appends(moments), uuid5(_NAMESPACE, f"{same!r}:{number}:{place}"))
        number += plan.runs_per_commit
        counts.update(_counted(cohort))
        report(counts["facts"])
    return Generated(**counts, next_run=number)


def _runs_of(plan: Plan, number: int) -> Iterator[SyntheticRun]:
    # Its own randomness for each run: what one does never changes what the next one does.
    random = Random(f"{plan.seed}:{number}")
    return make_run(
        f"run-{plan.seed}-{number:09d}",
        random=random,
        mix=plan.mix,
        start=plan.start + number * plan.every,
        workflow=plan.workflow,
        queue=plan.queue,
        steps=plan.steps,
    )


def _appends(moments: Iterable[Sequence[Fact] | Moment]) -> list[Append]:
    """Return appends that combine one moment of many runs, by thread."""
    threads: dict[str, list[Fact]] = {}
    for moment in moments:
        for fact in moment:
            threads.setdefault(fact.thread, []).append(fact)
    ordered = sorted(threads, key=lambda thread: _ORDER.get(parse_thread(thread).kind, len(_ORDER)))
    return [Append(thread, threads[thread]) for thread in ordered]


def _counted(cohort: Sequence[SyntheticRun]) -> dict[str, int]:
    counts = {name: sum(getattr(run, name) for run in cohort) for name in _COUNTED}
    return {**counts, "facts": sum(len(m) for run in cohort for m in run.moments), "runs": len(cohort)}


@click.command()
@click.option("--facts", type=click.IntRange(1), required=True, help="How many facts, at least.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same facts.")
@click.option("--url", default=None, help="The database; else what the environment names. Better there: this is shown.")
@click.option("--schema", default=None, help="The journal's schema.")
def main(facts: int, seed: int, url: str | None, schema: str | None) -> None:
    """Write a synthetic journal."""
    from squid_dagster.journal.journal_factory import open_journal

    storage = open_journal(url, schema=schema)
    try:
        done = generate(storage, Plan(facts, seed), lambda n: click.echo(f"{n:,} facts", err=True))
    finally:
        storage.close()
    click.echo(", ".join(f"{one.name}={getattr(done, one.name)}" for one in fields(done)))


if __name__ == "__main__":
    main()
