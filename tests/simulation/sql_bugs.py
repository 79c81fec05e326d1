"""Plant one bug at a time in the SQL functions: the simulation on Postgres must catch each of them.

`python -m tests.simulation.sql_bugs [words]`, with a server of its own.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.postgres.connection.pool import connect
from squid_dagster.journal.postgres.schema.functions import sources
from squid_dagster.journal.postgres.schema.names import fill_in
from squid_dagster.testing.simulation.campaign import quiet
from squid_dagster.testing.simulation.environment.postgres import PostgresJournals
from squid_dagster.testing.simulation.scenario import random_scenario
from squid_dagster.testing.simulation.schedule import ScheduleResult, expectation, play

SCHEDULES = 200  # after so many without a violation, a bug is not caught
_SEEDS, _PER_SCENARIO = 1000, 2


class SqlBug(NamedTuple):
    """A bug: in a function's file, `text` is replaced wherever it stands, `times` times.

    `scenario` is the first one that is played: one in which the bug is seen soon, where that takes many else.
    """

    name: str
    function: str
    text: str
    replacement: str
    times: int = 1
    scenario: int = 0


SQL_BUGS = (
    # --- leases and fences
    SqlBug(
        "a lease ends before its time",
        "claim_attempts",
        "due_at <= v_now",
        "due_at <= v_now + interval '3 seconds'",
        times=3,
    ),
    SqlBug(
        "a lease never ends",
        "claim_attempts",
        "due_at = CASE WHEN f.dead THEN NULL ELSE f.at + p_lease END",
        "due_at = NULL",
    ),
    SqlBug("fencing tokens do not grow", "claim_attempts", "coalesce(max(s.fencing_token), 0)", "0"),
    SqlBug("a paused queue gives claims", "claim_attempts", "WHERE queue = p_queue AND paused", "WHERE false", times=2),
    # --- dead letters
    SqlBug(
        "a dead letter one delivery too early",
        "claim_attempts",
        "a.deliveries >= a.max_deliveries AS dead",
        "a.deliveries + 1 >= a.max_deliveries AS dead",
        scenario=16,
    ),
    SqlBug(
        "a dead letter one delivery too late",
        "claim_attempts",
        "a.deliveries >= a.max_deliveries AS dead",
        "a.deliveries > a.max_deliveries AS dead",
    ),
    # --- cuts
    SqlBug("a cut ignores who has announced a commit", "cut", "coalesce(v_behind, 0)", "0"),
    # One higher would be safe: the commit after the earliest announcement is open itself, or there is none before it.
    SqlBug("a cut is too high by a commit that may be open", "cut", "+ 1) << 20", "+ 3) << 20"),
    SqlBug(
        "a commit does not announce itself",
        "take_number",
        "v_locked := pg_advisory_xact_lock_shared({positions}, (v_last & 4294967295)::bit(32)::int)::text;",
        "",
    ),
    # --- templates of starts and ends
    SqlBug("a start counts a fact too many", "start_runs", "SELECT 'squid:run:' || id, p_run_facts FROM unnest(p_runs) id O", "SELECT 'squid:run:' || id, p_run_facts + 1 FROM unnest(p_runs) id O"),  # noqa: E501
    SqlBug("a start is due at another time", "start_runs", "due_at, planned_digest, applied_digest\n          FROM json_populate_recordset(NULL::{schema}.attempts, p_attempts)", "due_at + interval '1 day', planned_digest, applied_digest\n          FROM json_populate_recordset(NULL::{schema}.attempts, p_attempts)"),  # noqa: E501
    SqlBug("an end leaves attempts behind", "settle_runs", "WHERE p_ends[m] AND v_ok[m]));", "WHERE false));"),
    SqlBug("an end is not a fence", "settle_runs", "fenced = p_ends[n.m]", "fenced = false"),
    SqlBug("a completed attempt stays due", "settle_runs", "due_at = NULL,", "due_at = a.due_at,"),
    SqlBug("a plan by an earlier revision is written", "settle_runs", "t.rev = coalesce(p_revs[n.m], t.rev)", "t.rev >= coalesce(p_revs[n.m], t.rev)"),  # noqa: E501
)  # fmt: skip


class HuntResult(NamedTuple):
    """The first schedule that shows a bug, if there is one."""

    schedules: int
    played: ScheduleResult | None
    seconds: float


@contextmanager
def planted(bug: SqlBug, journals: PostgresJournals) -> Iterator[None]:
    """Replace a function for the time of a block."""
    text = sources()[bug.function]
    assert text.count(bug.text) == bug.times, f"{bug.name}: the text stands {text.count(bug.text)} times"
    _apply(journals, text.replace(bug.text, bug.replacement))
    try:
        yield
    finally:
        _apply(journals, text)


def _apply(journals: PostgresJournals, text: str) -> None:
    with connect(journals.engine) as connection:
        connection.execute(fill_in(text, journals.schema))
    connection.close()
    journals.engine.dispose()  # sessions keep plans of what was there before


def hunt(bug: SqlBug, journals: PostgresJournals, most: int = SCHEDULES) -> HuntResult:
    """Run schedules with a bug planted until one fails that does not fail without it."""
    began = time.monotonic()
    left = iter(range(most))
    with quiet():
        while (failing := _first_failure(bug, journals, left)) is not None:
            number, played = failing
            scenario = random_scenario(played.seed // _SEEDS)
            if not play(scenario, expectation(scenario), played.seed, make_journal=journals).problems:
                return HuntResult(number + 1, played, time.monotonic() - began)
    return HuntResult(most, None, time.monotonic() - began)


def _first_failure(
    bug: SqlBug, journals: PostgresJournals, numbers: Iterator[int]
) -> tuple[int, ScheduleResult] | None:
    """Run the schedules of these numbers with a bug planted, up to the first that fails."""
    with planted(bug, journals):
        for number in numbers:
            scenario_seed, offset = divmod(number, _PER_SCENARIO)
            scenario = random_scenario(bug.scenario + scenario_seed)
            seed = (bug.scenario + scenario_seed) * _SEEDS + offset
            played = play(scenario, expectation(scenario), seed, make_journal=journals)
            if played.problems:
                return number, played
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run the hunt for all bugs, or for those whose names contain a word."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    options = parser.parse_args(arguments)
    wanted = [bug for bug in SQL_BUGS if not options.words or any(word in bug.name for word in options.words)]
    caught = 0
    with tempfile.TemporaryDirectory(prefix="squid-bugs-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        server = EmbeddedPostgres(Path(directory) / "postgres")
        journals = PostgresJournals(server.ensure_running(), "bugs")
        try:
            for bug in wanted:
                hunted = hunt(bug, journals, options.schedules)
                caught += hunted.played is not None
                said = hunted.played.problems[0][:150] if hunted.played else "NOT CAUGHT"
                print(f"{bug.name}: {hunted.schedules} schedules, {hunted.seconds:.1f} s: {said}", flush=True)
        finally:
            journals.close()
            server.stop()
    word = "OK" if caught == len(wanted) else "FAILED"
    print(f"SQL BUGS {word}: planted={len(wanted)} caught={caught}")
    return 0 if caught == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
