"""Whatever a journal holds: the live views answer every question as the fold of everything does."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.journal import FoldQueries, PostgresQueries, PostgresStorage, RunFilter
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.queries import RUN_STATUSES, JournalQueries
from squid_dagster.protocol import Fact, RunUnit
from tests.facts import QUEUES, RUNS, STEPS, WORKFLOW, entries, t, with_fields
from tests.histories import histories, renamed
from tests.journal.access import WITHOUT_SHRINKING, put
from tests.journal.queries.fixture import pages

_numbers = count(1)
_WINDOWS = ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+01:00", "no time")
_CONTEXTS: tuple[dict[str, Any], ...] = (
    {},
    *({"parent": {"run_id": run}} for run in RUNS),
    *({"schedule": {"intended_window": {"start_at": start}}} for start in _WINDOWS),
    {"parent": {"run_id": ""}, "schedule": None},
)


@st.composite
def related_histories(draw: st.DrawFn) -> list[Fact]:
    """Generate histories whose runs are also each other's children, and started by cron triggers."""
    changed: list[Fact] = []
    for fact in draw(histories(max_size=25)):
        changes: dict[str, Any] = {}
        if fact.type == "run_started":
            changes = {"context": draw(st.sampled_from(_CONTEXTS)), "trigger": draw(st.sampled_from((None, "cron")))}
        elif fact.type == "child_run_started":
            changes = {"child_run_id": draw(st.sampled_from((*RUNS, "nobody")))}
        changed.append(with_fields(fact, **changes) if changes else fact)
    return changed


@pytest.fixture(scope="module")
def storage(postgres_url: str, schema_names: Iterator[str]) -> Iterator[PostgresStorage]:
    """A journal for all examples, each of which brings runs and queues of its own."""
    made = PostgresStorage(postgres_url, next(schema_names), clock=VirtualClock(t(60)))
    made.upgrade()
    yield made
    made.close()


@pytest.fixture(scope="module")
def fold(storage: PostgresStorage) -> FoldQueries:
    """The fold of everything, which takes in what is new of each example."""
    return FoldQueries(storage)


filters = st.builds(
    RunFilter,
    workflow=st.sampled_from((None, None, WORKFLOW, STEPS[0])),
    status=st.one_of(
        st.none(), st.sampled_from(RUN_STATUSES), st.lists(st.sampled_from(RUN_STATUSES), max_size=4, unique=True)
    ),
    trigger=st.sampled_from((None, None, "cron")),
    started_after=st.sampled_from((None, None, t(10), t(60))),
    started_before=st.sampled_from((None, None, t(50))),
    open_only=st.booleans(),
)


def answers(queries: JournalQueries, where: RunFilter, mine: list[str], queue: str, size: int) -> dict[str, Any]:
    """Return the answers to every query, in pages of that size."""
    repair = [queries.runs_to_repair("", 10_000, one) for one in (None, queue)]
    return {
        "listed": pages(lambda before, n: queries.list_runs(where, before, n), lambda r: r.position, None, 7 * size),
        "of queue": queries.list_runs(RunFilter(queue=queue, open_only=where.open_only), None, size),
        "of parent": queries.list_runs(RunFilter(parent_run_id=mine[0], status=where.status), None, size),
        "rows": [queries.get_run(run) for run in mine],
        "to repair": repair,
        "to repair, in pages": pages(lambda after, n: queries.runs_to_repair(after, n), str, "", 20 * size)
        == repair[0],
        "to list": queries.runs_to_list(10_000),
        "dead": pages(lambda after, n: queries.dead_letters(None, n, after), lambda a: a.position, 0, 9 * size),
        "dead, of queue": queries.dead_letters(queue, size),
        "queues": queries.queues(),
        "backlog": queries.backlog([queue, "other"], None, size),
        "anomalies": queries.anomalies(None, 10_000),
        "anomalies of runs": [queries.anomalies(run, size) for run in mine],
        "latest": [queries.schedule_cursor(workflow, "cron") for workflow in (WORKFLOW, "other")],
    }


@settings(max_examples=60, phases=WITHOUT_SHRINKING)
@given(history=related_histories(), piece=st.integers(1, 6), where=filters, size=st.integers(1, 4))
def test_views_and_fold_give_the_same_answers(
    storage: PostgresStorage, fold: FoldQueries, history: list[Fact], piece: int, where: RunFilter, size: int
) -> None:
    # given any history, after all the others
    prefix = f"history{next(_numbers)}"
    facts = [renamed(fact, prefix) for fact in history]
    for start in range(0, len(facts), piece):
        put(storage, *facts[start : start + piece])
    # when both are asked the same, then both say the same
    mine = [f"{prefix}-{run[-1]}" for run in RUNS]
    asked = (where, mine, f"{prefix}-{QUEUES[0]}", size)
    assert answers(PostgresQueries(storage), *asked) == answers(fold, *asked)


def test_a_fold_from_the_beginning_gives_the_same_as_one_that_went_along(
    storage: PostgresStorage, fold: FoldQueries
) -> None:
    asked = (RunFilter(), ["history1-1"], "history1-default", 4)
    assert answers(FoldQueries(storage), *asked) == answers(fold, *asked)


@given(history=histories())
def test_every_status_that_a_run_can_have_is_listed(history: list[Fact]) -> None:
    for run in RUNS:
        mine = [fact for fact in history if getattr(fact, "run_id", None) == run]
        for upto in range(len(mine) + 1):
            assert RunUnit.fold(entries(mine[:upto])).run.status in RUN_STATUSES
