"""Golden histories: the same text for the same run, nothing that chance or a machine has given, and no secret."""

import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from squid_dagster import Fail, Workflow
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import dispatch_thread
from squid_dagster.protocol.errors import InvalidThread, NotFound
from squid_dagster.testing import (
    GoldenMismatch,
    SquidFactory,
    VirtualSquid,
    advance,
    assert_golden,
    execute_until_blocked,
    golden,
)
from squid_dagster.testing.aliases import offset
from tests.facts import cataloged, claimed, heartbeat, indexed, malformed, planned, scheduled, started, unknown, wakeup
from tests.journal.access import put
from tests.testing.flows import Script, circle, deferring, diamond, family, review, scripted

FILE = Path(__file__).parent / "golden" / "review.jsonl"


def lines(text: str) -> list[Any]:
    """Read a history."""
    return [json.loads(line) for line in text.splitlines()]


def reviewed(app: VirtualSquid, **start: Any) -> str:
    """Execute a run of `review` to its end; return its id."""
    run_id = app.start("review", {"amount": 21}, **start).run_id
    execute_until_blocked(app, run_id)
    advance(app, timedelta(days=3))
    app.approve(run_id, actor="ada", comment=f"fine with me, see {run_id}")
    execute_until_blocked(app, run_id)
    app.resume(run_id)
    assert execute_until_blocked(app, run_id).status == "completed"
    return run_id


# --- the text -------------------------------------------------------------------------------------------------------


def test_the_history_is_the_one_on_file_in_memory_and_on_postgres(
    squid: SquidFactory, postgres_virtual: PostgresStorage, clock: VirtualClock
) -> None:
    for storage in (MemoryStorage(clock), postgres_virtual):
        app = squid(review(), storage=storage, clock=clock)
        assert_golden(app, reviewed(app), FILE)
        assert_golden(storage, "run-1", FILE)


def test_where_commits_are_split_only_the_order_of_facts_of_one_commit_is_another(squid: SquidFactory) -> None:
    clock = VirtualClock()
    app = squid(review(), storage=MemoryStorage(clock, atomic_across_threads=False), clock=clock)
    assert sorted(golden(app, reviewed(app)).splitlines()) == sorted(FILE.read_text("utf-8").splitlines())


def test_it_does_not_depend_on_ids_nor_on_the_hour_nor_on_what_else_happens(squid: SquidFactory) -> None:
    # given a run with an id by chance, hours later, on a queue that others use too, with heartbeats and listings
    clock = VirtualClock(datetime(2031, 5, 5, 17, 3, tzinfo=UTC))
    app = squid(
        [review(), circle()],
        clock=clock,
        storage=MemoryStorage(clock),
        new_run_id=lambda: str(uuid.uuid4()),
    )
    app.start("circle")
    run_id = reviewed(app)
    app.recover()
    assert uuid.UUID(run_id)
    # then its history is the same
    assert_golden(app, run_id, FILE)


def test_nothing_that_chance_or_the_machine_has_given_is_shown(squid: SquidFactory) -> None:
    app = squid(review(), new_run_id=lambda: str(uuid.uuid4()))
    text = golden(app, reviewed(app))
    assert not re.search(r"[0-9a-f]{16}", text)
    assert not re.search(r"20[0-9]{2}-[0-9]{2}", text)
    assert "token_hash" not in text
    named = [line["data"] for line in lines(text) if line["type"] == "attempt_claimed"]
    assert [(data["claim_id"], data["owner_id"], data["fencing_token"]) for data in named] == [
        ("claim-1", "worker-1", 1),
        ("claim-2", "worker-1", 1),
        ("claim-3", "worker-1", 1),
    ]
    assert "fine with me, see run-1" in text


def test_times_are_offsets_also_where_a_step_is_given_one(squid: SquidFactory) -> None:
    app = squid(review())
    actual = lines(golden(app, reviewed(app)))
    paused = next(line for line in actual if line["type"] == "manual_step_paused")
    assert (paused["at"], paused["data"]["metadata"]["deadline"]["due_at"]) == ("+1h", "+2d1h")
    pay = next(line for line in actual if line["type"] == "attempt_scheduled" and line["data"]["step"] == "pay")
    assert pay["data"]["input"]["decision"]["decided_at"] == "+3d1h"


def test_what_the_user_has_given_is_shown_as_it_is(squid: SquidFactory) -> None:
    # given results that look like what the runtime writes
    workflow = Workflow("lookalike")
    result = {"owner_id": "cust-7", "claim_id": "c-1", "started_at": "2020-02-02T00:00:00+00:00", "traceback": "none"}

    @workflow.step
    def look() -> dict[str, str]:
        return result

    app = squid(workflow)
    execute_until_blocked(app, app.start(workflow).run_id)
    completed = next(line for line in lines(golden(app, "run-1")) if line["type"] == "attempt_completed")
    assert completed["data"]["result"] == result


def test_secrets_are_redacted_and_errors_come_without_their_traceback(squid: SquidFactory) -> None:
    workflow = Workflow("leaky")

    @workflow.step
    def leak() -> dict[str, str]:
        return {"api_key": "hunter2", "note": "fine"}

    @workflow.step
    def burst(leak: dict[str, str]) -> None:
        raise ValueError("burst")

    app = squid(workflow)
    execute_until_blocked(app, app.start(workflow, metadata={"password": "hunter2"}).run_id)
    text = golden(app, "run-1")
    assert "hunter2" not in text
    assert "test_golden.py" not in text
    assert lines(text)[-1]["data"] == {"error": {"message": "burst", "type": "ValueError"}, "status": "failed"}


def test_parents_and_children_have_aliases_of_their_own(squid: SquidFactory) -> None:
    app = squid(family(), new_run_id=lambda: "p")
    parent = execute_until_blocked(app, app.start("parent").run_id)
    child = parent.child_runs[0].child_run_id
    execute_until_blocked(app, child)
    link = next(line for line in lines(golden(app, "p")) if line["type"] == "child_run_started")
    assert link["data"]["child_run_id"] == "run-2"
    begun = next(line for line in lines(golden(app, child)) if line["type"] == "run_started")
    assert begun["data"]["context"]["parent"]["run_id"] == "run-2"
    assert begun["data"]["context"]["parent"]["runnable_key"] == "run-2:spawn:1:1"


def test_two_histories_that_differ_are_told_apart(squid: SquidFactory) -> None:
    app = squid(scripted(), resources={"script": Script(ValueError("no"), deferring())})
    one, two = (app.start("scripted").run_id for _ in range(2))
    for run_id in (one, two):
        execute_until_blocked(app, run_id)
    assert golden(app, one) != golden(app, two)


def test_what_only_says_when_somebody_looked_is_left_out() -> None:
    storage = MemoryStorage()
    put(storage, started(), planned(), scheduled(), claimed())
    before = golden(storage, "run-1")
    put(storage, heartbeat(), wakeup(at=21), indexed(), cataloged())
    assert golden(storage, "run-1") == before


def test_what_cannot_be_read_is_shown_without_its_content() -> None:
    class Damaged(MemoryStorage):
        """A storage with entries that no version of ours has written."""

        def read_run(self, run_id: str, before: int | None = None) -> list[Any]:
            """Return them beside what is there."""
            stored = super().read_run(run_id, before)
            strange = [malformed().fact, unknown().fact]
            return [*stored, *(stored[0]._replace(thread=dispatch_thread("default"), fact=fact) for fact in strange)]

    storage = Damaged()
    put(storage, started())
    assert lines(golden(storage, "run-1"))[1:] == [
        {
            "at": "+20s",
            "thread": "dispatch:default",
            "type": "attempt_claimed",
            "unreadable": "runnable_key: Field required",
        },
        {"at": "+20s", "thread": "dispatch:default", "type": "attempt_teleported", "data": {"to": "mars"}},
    ]


@pytest.mark.parametrize(
    ("since", "text"),
    [
        (timedelta(0), "+0s"),
        (timedelta(seconds=90), "+1m30s"),
        (timedelta(days=3), "+3d"),
        (timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=50), "+1d2h3m4.05s"),
        (timedelta(microseconds=1), "+0.000001s"),
        (timedelta(hours=-1), "-1h"),
    ],
)
def test_an_offset_is_exact_and_short(since: timedelta, text: str) -> None:
    assert offset(since) == text


# --- the file -------------------------------------------------------------------------------------------------------


def test_a_file_that_is_missing_says_how_to_make_it(squid: SquidFactory, tmp_path: Path) -> None:
    app, file = squid(circle(1)), tmp_path / "new" / "circle.jsonl"
    app.start("circle")
    with pytest.raises(GoldenMismatch, match=r"no golden history at .*circle\.jsonl: .* SQUID_UPDATE_GOLDEN=1"):
        assert_golden(app, "run-1", file, environ={})
    assert not file.exists()
    assert_golden(app, "run-1", file, update=True, environ={})
    assert_golden(app, "run-1", str(file), environ={})


def test_another_history_is_shown_as_a_diff_and_the_file_stays(squid: SquidFactory, tmp_path: Path) -> None:
    file = tmp_path / "diamond.jsonl"
    one = squid(diamond(), resources={"script": Script()})
    execute_until_blocked(one, one.start("diamond").run_id)
    assert_golden(one, "run-1", file, environ={"SQUID_UPDATE_GOLDEN": "1"})
    before = file.read_text("utf-8")

    other = squid(diamond(), resources={"script": Script(Fail("out of paint"))})
    execute_until_blocked(other, other.start("diamond").run_id)
    with pytest.raises(GoldenMismatch) as mismatch:
        assert_golden(other, "run-1", file, environ={})

    assert isinstance(mismatch.value, AssertionError)
    removed, added = (
        [line for line in str(mismatch.value).splitlines() if line.startswith(f"{sign}{{")] for sign in ("-", "+")
    )
    assert any('"attempt_completed"' in line and "left" in line for line in removed)
    assert any('"attempt_failed"' in line and "out of paint" in line for line in added)
    assert file.read_text("utf-8") == before
    assert_golden(other, "run-1", file, environ={"SQUID_UPDATE_GOLDEN": "yes"})
    assert_golden(other, "run-1", file, environ={"SQUID_UPDATE_GOLDEN": "0"})


def test_a_run_that_is_not_there_is_not_found(squid: SquidFactory, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="run-9"):
        assert_golden(squid(), "run-9", tmp_path / "none", update=True)
    with pytest.raises(InvalidThread):
        golden(squid(), "no such id")
    assert not (tmp_path / "none").exists()
