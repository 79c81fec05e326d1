"""What waits in named lanes: shown alike by every storage, page by page, and at the cost of these lanes alone."""

from collections.abc import Iterator
from typing import Any, LiteralString

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.lanes import _WAITING, waiting_in_lanes
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread
from squid_dagster.protocol.facts import Fact
from tests.facts import T0, claimed, fenced, queue_paused, queued, scheduled, started, t
from tests.journal.access import put, raw
from tests.journal.queries.test_plans import touched, ways
from tests.journal.query_plans import explain

LANE = "orders/abc:external"
# Thousands that a worker may claim, in another lane.
_MORE_ATTEMPTS: LiteralString = """
    INSERT INTO attempts
    SELECT (jsonb_populate_record(a, jsonb_build_object(
               'run_id', 'copy-' || n, 'runnable_key', 'copy-' || n || ':c:1:1',
               'position', 1000 + n, 'definition', 'orders/abc'))).*
      FROM attempts a, generate_series(1, 5000) n WHERE a.runnable_key = 'run-1:charge:1:1'"""


@pytest.fixture(params=["memory", "postgres"])
def storage(request: pytest.FixtureRequest, clock: VirtualClock) -> Storage:
    """An empty journal by the virtual clock."""
    if request.param == "memory":
        return MemoryStorage(clock)
    postgres: PostgresStorage = request.getfixturevalue("postgres_virtual")
    return postgres


def lane(run: str, queue: str = "default", **fields: Any) -> Iterator[Fact]:
    """Yield facts of a run with one attempt in the lane."""
    external: dict[str, Any] = {
        "workflow": "orders",
        "definition_fingerprint": "abc:external",
        "visible_at": T0,
        **fields,
    }
    return iter((started(run, queue=queue), queued(run, queue=queue), scheduled(run, queue=queue, **external)))


def fill(storage: Storage) -> None:
    """Put four attempts into the lane: one not due, one of a run that has ended, one on another queue."""
    for run in ("run-1", "run-2"):
        put(storage, *lane(run))
    put(storage, *lane("later", visible_at=t(600)))
    put(storage, *lane("ended"), fenced("ended"))
    put(storage, *lane("other", queue="slow"))
    put(storage, started("plain"), queued("plain"), scheduled("plain", workflow="orders", definition_fingerprint="abc"))


def runs(storage: Storage, *queues: str, **options: int) -> list[str]:
    return [lane.attempt.run_id for lane in waiting_in_lanes(storage, queues or ("default",), [LANE], **options)]


def test_a_bad_question_is_refused(storage: Storage) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        waiting_in_lanes(storage, ["default"], [LANE], limit=0)
    with pytest.raises(InvalidArgument, match="after"):
        waiting_in_lanes(storage, ["default"], [LANE], after=-1)
    with pytest.raises(InvalidThread):
        waiting_in_lanes(storage, ["a b"], [LANE])


def test_only_what_is_due_and_unclaimed_in_these_lanes_is_shown(storage: Storage, clock: VirtualClock) -> None:
    fill(storage)
    assert runs(storage) == ["run-1", "run-2"]
    assert runs(storage, "default", "slow") == ["run-1", "run-2", "other"]
    assert runs(storage, "nowhere") == []
    assert waiting_in_lanes(storage, ["default"], []) == []
    clock.advance(t(600) - T0)
    assert runs(storage) == ["run-1", "run-2", "later"]
    # a claim that ran out is taken over by the next worker, and waits nowhere
    put(storage, claimed("run-1", at=0, lease=10))
    assert runs(storage) == ["run-2", "later"]


def test_pages_follow_each_other_by_position(storage: Storage) -> None:
    fill(storage)
    (first,) = waiting_in_lanes(storage, ["default"], [LANE], limit=1)
    assert first.attempt.run_id == "run-1"
    assert first.attempt.input == {"amount": 5}
    assert runs(storage, after=first.attempt.position) == ["run-2"]


def test_a_paused_queue_is_told(storage: Storage) -> None:
    fill(storage)
    put(storage, queue_paused("slow"))
    lanes = waiting_in_lanes(storage, ["default", "slow"], [LANE])
    assert [waiting.paused for waiting in lanes] == [False, False, True]


def test_it_costs_what_waits_in_the_lane_whatever_else_is_on_the_queue(postgres_virtual: PostgresStorage) -> None:
    fill(postgres_virtual)
    with raw(postgres_virtual) as connection:
        connection.execute(_MORE_ATTEMPTS)
        connection.execute("VACUUM ANALYZE attempts")
        values = {"queues": ["default"], "definitions": [LANE], "now": T0, "after": 0, "limit": 200}
        plan = explain(connection, postgres_virtual.sql(_WAITING), values)
    assert touched(plan, "attempts") <= 4
    assert ways(plan, "attempts") == {"attempts_due"}
