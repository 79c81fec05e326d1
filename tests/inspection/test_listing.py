"""Listing runs: filters, pages, held runs, and runs with which something is wrong."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from squid_dagster.inspection import RunPage, list_runs
from squid_dagster.inspection.run_list import LISTED_STATUSES
from squid_dagster.journal.contract.queries import JournalQueries, RunFilter, RunRow
from squid_dagster.journal.fold_store.queries import FoldQueries
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol import definition_key
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.registry import Registry
from tests.facts import applied, child, planned, quarantined, queued, scheduled, started, step_paused, t, terminal
from tests.inspection.run_histories import LiveWorker, changed_order, order

OLD, NEW = order().freeze(), changed_order().freeze()


@pytest.fixture
def storage() -> MemoryStorage:
    """Runs of every kind, the oldest first."""
    storage = MemoryStorage()
    of_old = {"workflow": "orders", "definition_version": "1", "definition_fingerprint": OLD.fingerprint}
    parent = {"parent": {"run_id": "running", "step": "a"}}
    for fact in (
        started("completed", at=1, workflow="orders"),
        terminal("completed", at=9),
        started("failed", at=2, trigger="cron"),
        terminal("failed", at=9, status="failed", error={"message": "no"}),
        started("running", at=3, **of_old),
        planned(run="running"),
        started("paused", at=4, **of_old),
        queued("paused", at=4),
        step_paused("paused", at=5),
        started("slow", at=5, queue="slow", context=parent),
        queued("slow", at=5, queue="slow"),
        quarantined("slow"),
        queued("loose", at=6),
        started("idle", at=7, **of_old),
        planned(run="idle"),
        applied("idle"),
        started("plain", at=8, definition_version="9"),
    ):
        storage.append(fact.thread, [fact])
    return storage


@pytest.fixture
def queries(storage: MemoryStorage) -> FoldQueries:
    """The questions that a listing asks."""
    return FoldQueries(storage)


def _ids(page: RunPage) -> list[str]:
    return [run.run_id for run in page.runs]


ALL = ["plain", "idle", "loose", "slow", "paused", "running", "failed", "completed"]


def test_all_runs_are_listed_newest_first(queries: FoldQueries) -> None:
    page = list_runs(queries)

    assert _ids(page) == ALL
    assert page.next_cursor is None
    assert {run.run_id: run.status for run in page.runs} == {
        "plain": "started",
        "idle": "idle",
        "loose": "new",
        "slow": "quarantined",
        "paused": "paused",
        "running": "running",
        "failed": "failed",
        "completed": "completed",
    }


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"workflow": "orders"}, ["idle", "paused", "running", "completed"]),
        ({"status": "failed"}, ["failed"]),
        ({"status": ["failed", "paused"]}, ["paused", "failed"]),
        ({"status": []}, []),
        ({"queue": "slow"}, ["slow"]),
        ({"trigger": "cron"}, ["failed"]),
        ({"parent_run_id": "running"}, ["slow"]),
        ({"definition_version": "9"}, ["plain"]),
        ({"started_after": t(4), "started_before": t(8)}, ["idle", "slow"]),
        ({"open_only": True, "workflow": "orders"}, ["idle", "paused", "running"]),
        ({"open_only": True, "status": "failed"}, []),
    ],
)
def test_every_filter_must_fit(queries: FoldQueries, filters: dict[str, Any], expected: list[str]) -> None:
    assert _ids(list_runs(queries, **filters)) == expected


# --- pages ----------------------------------------------------------------------------------------------------------


def _pages(queries: JournalQueries, **options: Any) -> Iterator[RunPage]:
    cursor = None
    while True:
        page = list_runs(queries, cursor=cursor, **options)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


@pytest.mark.parametrize("limit", range(1, 10))
def test_pages_together_are_the_whole_listing(queries: FoldQueries, limit: int) -> None:
    pages = list(_pages(queries, limit=limit))

    assert [run_id for page in pages for run_id in _ids(page)] == ALL
    assert all(page.runs for page in pages)
    assert all(len(page.runs) == limit for page in pages[:-1])


def test_a_new_run_does_not_disturb_the_pages_that_follow(storage: MemoryStorage, queries: FoldQueries) -> None:
    first = list_runs(queries, limit=3)
    fact = started("newest")
    storage.append(fact.thread, [fact])

    second = list_runs(queries, limit=3, cursor=first.next_cursor)

    assert _ids(second) == ["slow", "paused", "running"]


@pytest.mark.parametrize("limit", [0, -1, 501, True, "5", None, 1.5])
def test_a_limit_out_of_range_is_refused(queries: FoldQueries, limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="limit must be a whole number"):
        list_runs(queries, limit=limit)


def test_a_cursor_is_bound_to_its_filters(queries: FoldQueries) -> None:
    cursor = list_runs(queries, limit=1, workflow="orders").next_cursor

    assert _ids(list_runs(queries, limit=5, workflow="orders", cursor=cursor)) == ["paused", "running", "completed"]
    others: tuple[dict[str, Any], ...] = ({}, {"workflow": "billing"}, {"workflow": "orders", "open_only": True})
    for other in others:
        with pytest.raises(InvalidArgument, match="other filters: repeat those"):
            list_runs(queries, cursor=cursor, **other)


def test_the_order_in_which_statuses_are_named_does_not_matter(queries: FoldQueries) -> None:
    cursor = list_runs(queries, limit=1, status=["paused", "failed"]).next_cursor

    assert _ids(list_runs(queries, limit=1, status=("failed", "paused"), cursor=cursor)) == ["failed"]


def test_a_damaged_or_foreign_cursor_is_refused(queries: FoldQueries) -> None:
    cursor = list_runs(queries, limit=1).next_cursor
    assert cursor is not None
    changed = [cursor[:i] + ("A" if cursor[i] != "A" else "B") + cursor[i + 1 :] for i in range(len(cursor))]

    for wrong in (*changed, cursor[:-1], cursor + "x", "", "r1.", "r2." + cursor[3:], "7", "ü" * 50, "r" * 10_000):
        if wrong[:-1] == cursor[:-1]:
            continue  # the last sign may hold bits that mean nothing
        with pytest.raises(InvalidArgument, match="begin again without a cursor"):
            list_runs(queries, cursor=wrong)
    with pytest.raises(InvalidArgument, match="cursor must be a text"):
        list_runs(queries, cursor=7)  # type: ignore[arg-type]


def test_a_filter_that_makes_no_sense_is_refused(queries: FoldQueries) -> None:
    with pytest.raises(InvalidArgument, match=r"'retrying' is unknown: take one of .*held"):
        list_runs(queries, status="retrying")
    with pytest.raises(InvalidArgument, match="status must be a text or a list"):
        list_runs(queries, status=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="started_after must be a datetime with a zone"):
        list_runs(queries, started_after=t(0).replace(tzinfo=None))


# --- held runs ------------------------------------------------------------------------------------------------------


def test_an_open_run_of_another_definition_is_held(queries: FoldQueries) -> None:
    page = list_runs(queries, registry=Registry([NEW]), workflow="orders")

    assert {run.run_id: run.status for run in page.runs} == {
        "idle": "held",
        "paused": "paused",
        "running": "held",
        "completed": "completed",
    }


def test_a_run_whose_definition_somebody_has_is_not_held(queries: FoldQueries) -> None:
    old = LiveWorker("old", definitions=(definition_key("orders", OLD.fingerprint),))

    knowing: dict[str, Any] = {"registry": Registry([NEW]), "workers": [old]}
    for known in ({"registry": Registry([OLD, NEW])}, knowing, {}):
        page = list_runs(queries, workflow="orders", **known)
        assert "held" not in [run.status for run in page.runs]


def test_held_is_a_status_to_ask_for_and_the_others_do_not_hold_it(queries: FoldQueries) -> None:
    registry = Registry([NEW])

    assert _ids(list_runs(queries, registry=registry, status="held")) == ["idle", "running"]
    assert _ids(list_runs(queries, registry=registry, status=["running", "idle"])) == []
    assert _ids(list_runs(queries, registry=registry, status=["held", "failed"])) == ["idle", "running", "failed"]
    pages = list(_pages(queries, registry=registry, status=["held", "failed"], limit=1))
    assert [run_id for page in pages for run_id in _ids(page)] == ["idle", "running", "failed"]


def test_statuses_that_the_listing_knows_are_those_that_it_shows() -> None:
    assert {*LISTED_STATUSES} == {
        "new",
        "started",
        "running",
        "idle",
        "paused",
        "quarantined",
        "completed",
        "failed",
        "cancelled",
        "held",
    }


class _Counting(FoldQueries):
    """Questions that are counted, and answered from a long list of open runs."""

    def __init__(self, rows: int) -> None:
        super().__init__(MemoryStorage())
        history = {"status": "running", "workflow": "orders", "definition_fingerprint": "x", "anomalies": 0}
        empty: dict[str, Any] = {**dict.fromkeys(RunRow._fields), **history}
        self.rows = [RunRow(**{**empty, "run_id": f"r{n}", "position": n}) for n in range(rows, 0, -1)]
        self.asked: list[int] = []

    def list_runs(self, where: RunFilter, before: int | None, limit: int) -> list[RunRow]:
        self.asked.append(limit)
        return [row for row in self.rows if before is None or row.position < before][:limit]


def test_a_page_asks_for_what_it_shows_and_one_more() -> None:
    counting: Any = _Counting(5000)

    page = list_runs(counting, limit=50)

    assert counting.asked == [51]
    assert len(page.runs) == 50
    assert page.next_cursor is not None


def test_looking_for_rare_runs_ends_and_the_cursor_leads_on() -> None:
    counting: Any = _Counting(5000)

    page = list_runs(counting, status="running", registry=Registry([NEW]), limit=50)

    assert len(counting.asked) == 20
    assert page.runs == ()
    assert page.next_cursor is not None
    pages = list(_pages(counting, status="running", registry=Registry([NEW]), limit=50))
    assert len(pages) == 5
    assert pages[-1].next_cursor is None


# --- what a line shows ----------------------------------------------------------------------------------------------


def test_a_bad_run_is_one_bad_line(storage: MemoryStorage, queries: FoldQueries) -> None:
    for fact in (scheduled("bad", queue="slow"), queued("bad"), child("bad"), started("bad", workflow="billing")):
        storage.append(fact.thread, [fact])

    page = list_runs(queries)

    assert _ids(page) == ["bad", *ALL]
    assert page.runs[0].anomalies == 1


def test_a_line_is_json_and_holds_no_contents(storage: MemoryStorage, queries: FoldQueries) -> None:
    (line,) = list_runs(queries, status="paused").to_dict()["runs"]

    assert json.loads(json.dumps(line)) == line
    assert line == {
        "run_id": "paused",
        "workflow": "orders",
        "trigger": None,
        "queue": "default",
        "status": "paused",
        "terminal": False,
        "terminal_status": None,
        "definition_version": "1",
        "definition_fingerprint": OLD.fingerprint,
        "parent_run_id": None,
        "replayed_from_run_id": None,
        "started_at": t(4).isoformat(),
        "ended_at": None,
        "manual_step": "review",
        "manual_kind": "approval",
        "paused_at": t(5).isoformat(),
        "quarantined": False,
        "indexed": False,
        "cataloged": False,
        "anomalies": 0,
    }
    assert list_runs(queries, status="paused").runs[0].to_dict() == line
