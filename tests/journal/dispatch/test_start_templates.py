"""Starts by template: whatever a workflow begins with and its payload holds, what is written is what was planned."""

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.dispatch.start_template import StartTemplate
from squid_dagster.protocol.errors import ConflictingCommand, InvalidFact, InvalidPayload, SquidError
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.runtime.commands.run_start import Start, prepare_start
from squid_dagster.workflow import Workflow
from tests.facts import queue_paused, queued
from tests.journal.access import (
    AWKWARD,
    WITHOUT_SHRINKING,
    LossyProxy,
    all_entries,
    assert_views_agree_with_the_journal,
    facts_of,
    put,
    raw,
    wait_for_a_lock,
)
from tests.journal.schema.version5 import start_arguments


class Anything(BaseModel):
    """A payload of two fields, which may hold anything."""

    left: JsonValue = None
    right: JsonValue = "value"


def one_step() -> Workflow:
    workflow = Workflow("one_step", payload=Anything)

    @workflow.step(priority=3, max_deliveries=2)
    def only(left: Any, right: Any) -> None:
        """Return nothing: only its facts matter."""

    return workflow


def fan_out() -> Workflow:
    workflow = Workflow("fan_out", payload=Anything, version="2")

    @workflow.step
    def first(left: Any) -> None:
        """Return nothing: only its facts matter."""

    @workflow.step(output="other")
    def second(right: Any, late: int = 1) -> None:
        """Return nothing: only its facts matter."""

    @workflow.step
    def join(first: Any, other: Any) -> None:
        """Return nothing: only its facts matter."""

    return workflow


def approval() -> Workflow:
    workflow = Workflow("approval", payload=Anything)
    workflow.approval("review", output="review")
    workflow.route("review", on="ok", to="complete")
    workflow.route("review", on="error", to="fail")
    return workflow


def waiting() -> Workflow:
    workflow = Workflow("waiting", payload=Anything)
    workflow.wait("settle", timedelta(hours=1))
    workflow.route("settle", to="complete")
    return workflow


WORKFLOWS = [one_step(), fan_out(), approval(), waiting()]
BY_TEMPLATE = {"one_step": True, "fan_out": True, "approval": True, "waiting": False}


@pytest.fixture
def squid(postgres_virtual: PostgresStorage) -> Squid:
    return Squid(postgres_virtual, WORKFLOWS)


@pytest.fixture
def by_template(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each start, whether it was written by a template."""
    fast: list[bool] = []
    usual = PostgresDispatchStore._start_fast

    def counted(store: PostgresDispatchStore, *given: Any) -> Any:
        at = usual(store, *given)
        fast.append(at is not None)
        return at

    monkeypatch.setattr(PostgresDispatchStore, "_start_fast", counted)
    return fast


def told(squid: Squid, run_id: str) -> list[Fact]:
    return facts_of(squid.journal.read_run(run_id))


def planned(squid: Squid, workflow: str, payload: dict[str, Any], run_id: str, **options: Any) -> list[Fact]:
    """Return what the planner makes of the same start; a queue's facts come before the run's."""
    start = prepare_start(squid.runtime, workflow, payload, run_id=run_id, **options)
    return sorted(start.facts(squid.runtime.now()), key=lambda fact: fact.thread.startswith("squid:run:"))


@pytest.mark.parametrize("name", BY_TEMPLATE)
def test_a_start_by_template_is_what_the_planner_makes_of_it(squid: Squid, by_template: list[bool], name: str) -> None:
    run = squid.start(name, AWKWARD_PAYLOAD, queue="other", priority=-2).run_id
    assert by_template == [BY_TEMPLATE[name]]
    assert told(squid, run) == planned(squid, name, AWKWARD_PAYLOAD, run, queue="other", priority=-2)
    assert_views_agree_with_the_journal(squid.journal)  # type: ignore[arg-type]  # it is one on Postgres


# All of it but what looks like a NUL, which takes the general way.
PLAIN = {**AWKWARD, "text": str(AWKWARD["text"]).replace("\\u0000", "")}
AWKWARD_PAYLOAD: dict[str, Any] = {"left": PLAIN, "right": [PLAIN, None, "\t\n"]}

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(texts, some, max_size=3),
    max_leaves=6,
)


@settings(
    max_examples=60,
    deadline=None,
    phases=WITHOUT_SHRINKING,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(name=st.sampled_from(sorted(BY_TEMPLATE)), left=values, right=values)
def test_whatever_the_payload_holds_a_start_reads_as_it_was_planned(
    squid: Squid, name: str, left: Any, right: Any
) -> None:
    payload = {"left": left, "right": right}
    run = squid.start(name, payload).run_id
    assert told(squid, run) == planned(squid, name, payload, run)


def test_after_many_starts_of_all_kinds_the_views_agree_with_the_journal(squid: Squid) -> None:
    for name in BY_TEMPLATE:
        squid.start_many(name, [{"left": i, "right": {"n": [i]}} for i in range(7)])
        squid.start(name, {"left": "x"}, idempotency_key=f'a "key" of {name}')
    assert verify(squid.journal) == []  # type: ignore[arg-type]  # it is one on Postgres
    assert_views_agree_with_the_journal(squid.journal)  # type: ignore[arg-type]
    assert squid.worker(until_idle=True).completed == 8 * (1 + 3), "of fan_out three steps, and the others wait"
    assert verify(squid.journal) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"left": "a\0b"}, InvalidFact),
        ({"left": "\ud800"}, InvalidPayload),
        ({"left": float("nan")}, InvalidPayload),
        ({"left": "x" * 2_000_000}, InvalidPayload),
    ],
    ids=["NUL", "half a character", "NaN", "too long"],
)
def test_what_cannot_be_written_is_refused_as_ever(
    squid: Squid, payload: dict[str, Any], error: type[SquidError]
) -> None:
    squid.start("one_step", {"left": 1})
    before = squid.journal.cut()
    with pytest.raises(error):
        squid.start("one_step", payload)
    with pytest.raises(error):
        squid.start_many("one_step", [{"left": 1}, payload])
    assert squid.journal.cut() == before


@pytest.mark.parametrize("left", ["NaNcy", "Infinity and beyond", "�", [[[[[]]]]] * 30, 10**400, "\\u0000"], ids=repr)
def test_what_looks_strange_takes_the_general_way_and_is_the_same(
    squid: Squid, by_template: list[bool], left: Any
) -> None:
    run = squid.start("one_step", {"left": left}).run_id
    assert by_template == [False]
    assert told(squid, run) == planned(squid, "one_step", {"left": left}, run)


def test_a_key_is_as_good_by_template_as_by_any_way(squid: Squid, by_template: list[bool]) -> None:
    first = squid.start("one_step", {"left": 1}, idempotency_key="k")
    again = squid.start("one_step", {"left": 1}, idempotency_key="k")
    assert (first.repeated, again.repeated, again.run_id) == (False, True, first.run_id)
    assert (again.received_at, again.signal_type) == (first.received_at, first.signal_type)
    with pytest.raises(ConflictingCommand):
        squid.start("one_step", {"left": 2}, idempotency_key="k")
    with pytest.raises(InvalidFact, match="idempotency_key"):
        squid.start("one_step", {"left": 1}, idempotency_key="k" * 1001)
    assert by_template[0]
    assert len(told(squid, first.run_id)) == 5


def test_commands_with_an_actor_are_recorded_whole(squid: Squid) -> None:
    run = squid.start("one_step", {"left": 1}, actor="ada", comment="now", metadata={"ticket": 7}).run_id
    (command,) = [fact for fact in told(squid, run) if fact.type == "run_signal_received"]
    assert (command.actor, command.comment, command.metadata) == ("ada", "now", {"ticket": 7})


def test_two_definitions_of_one_fingerprint_do_not_share_a_template(postgres_virtual: PostgresStorage) -> None:
    def twice(most: int) -> Squid:
        workflow = Workflow("same")

        @workflow.step(max_deliveries=most)
        def step() -> None:
            """Return nothing: only its facts matter."""

        return Squid(postgres_virtual, [workflow])

    for most in (2, 3):
        run = twice(most).start("same").run_id
        (scheduled,) = [fact for fact in told(twice(most), run) if fact.type == "attempt_scheduled"]
        assert scheduled.max_deliveries == most


def test_a_start_by_template_whose_answer_was_lost_is_made_once(
    lossy_proxy: LossyProxy, behind_lossy_proxy: PostgresStorage, postgres_virtual: PostgresStorage
) -> None:
    squid = Squid(behind_lossy_proxy, WORKFLOWS)
    squid.start("one_step", {"left": 0})
    before = len(all_entries(postgres_virtual))
    lossy_proxy.lose_answer_to("start_runs")
    receipt = squid.start("one_step", {"left": 1})
    assert lossy_proxy.lost == 1
    assert not receipt.repeated
    assert len(all_entries(postgres_virtual)) == before + 5
    assert told(squid, receipt.run_id)[0].occurred_at == receipt.received_at
    assert_views_agree_with_the_journal(postgres_virtual)


def test_a_start_waits_for_who_makes_the_thread_of_its_queue_and_goes_on_behind(
    squid: Squid, postgres_virtual: PostgresStorage
) -> None:
    # given a session that creates the thread of a queue, and has not committed yet
    commit_id, first = uuid4(), queue_paused("fresh")
    squid.start("one_step", {"left": 1})
    with raw(postgres_virtual, autocommit=False) as other, ThreadPoolExecutor(2) as pool:
        other.execute(
            "INSERT INTO journal_commits (id, receipt, committed_at) VALUES (%s, '{}', clock_timestamp())", (commit_id,)
        )
        writing = pool.submit(postgres_virtual.commit, [Append(first.thread, [first])], commit_id)
        wait_for_a_lock(postgres_virtual)
        # when a run is started on that queue
        starting = pool.submit(squid.start, "one_step", {"left": 2}, queue="fresh")
        wait_for_a_lock(postgres_virtual, 2)
        other.rollback()
        writing.result(30)
        run_id = starting.result(30).run_id
    # then its facts follow
    types = [entry.fact.type for entry in postgres_virtual.read(first.thread)]
    assert types == ["queue_paused", "run_queued", "attempt_scheduled"]
    assert squid.inspect_run(run_id).status == "running"
    assert verify(postgres_virtual) == []


def test_a_run_of_which_its_queue_knows_already_is_not_started_by_template(
    squid: Squid, postgres_virtual: PostgresStorage, by_template: list[bool]
) -> None:
    squid.start("one_step", {"left": 1})
    put(postgres_virtual, queued("known"))
    squid.start("one_step", {"left": 2}, run_id="known")
    assert by_template[-1] is False
    assert_views_agree_with_the_journal(postgres_virtual)
    assert verify(postgres_virtual) == []


def test_a_run_whose_row_is_missing_is_not_started_a_second_time(
    squid: Squid, postgres_virtual: PostgresStorage
) -> None:
    squid.start("one_step", {"left": 1}, run_id="run-1")
    before = all_entries(postgres_virtual)
    with raw(postgres_virtual) as connection:
        connection.execute("DELETE FROM attempts")
        connection.execute("DELETE FROM runs")
    assert squid.start("one_step", {"left": 1}, run_id="run-1").repeated
    assert all_entries(postgres_virtual) == before


def test_the_receipt_of_a_start_names_every_thread_that_it_moved(postgres: PostgresStorage) -> None:
    commit_id = uuid4()
    with raw(postgres) as connection:
        connection.execute(*start_arguments(["run-0"], "default"))
        connection.execute(*start_arguments(["run-1", "run-2"], "default", commit_id))
    threads = ["squid:dispatch:default", "squid:run:run-1", "squid:run:run-2"]
    assert postgres.find_commit(commit_id) == {thread: postgres.revision(thread) for thread in threads}
    assert [postgres.revision(thread) for thread in threads] == [3, 2, 2]


class ChangedStart(NamedTuple):
    """A start whose facts are changed."""

    start: Start
    change: Callable[[list[Fact]], list[Fact]]

    @property
    def run_id(self) -> str:
        return self.start.run_id

    def kind(self) -> Hashable:
        return self.start.kind()

    def values(self) -> JsonObject:
        return self.start.values()

    def facts_of(self, run_id: str, values: JsonObject, now: datetime) -> list[Fact]:
        return self.change(self.start.facts_of(run_id, values, now))


def test_runs_of_a_kind_that_a_template_does_not_know_have_none(squid: Squid) -> None:
    def template_of(name: str, change: Callable[[list[Fact]], list[Fact]] = list) -> StartTemplate | None:
        return StartTemplate.of(ChangedStart(prepare_start(squid.runtime, name, {"left": 1}), change), 1_000_000)

    assert template_of("one_step") is not None
    assert template_of("waiting") is None, "it is due at a time that is not the start's"
    # facts that are not the same for all runs, that are about a second queue, or about no queue
    counter = iter(range(100))
    assert template_of("one_step", lambda facts: [*facts, _signal(facts, next(counter))]) is None
    assert template_of("one_step", lambda facts: [*facts, _elsewhere(facts)]) is None
    assert (
        template_of("one_step", lambda facts: [fact for fact in facts if fact.thread.startswith("squid:run:")]) is None
    )


def _signal(facts: list[Fact], number: int) -> Fact:
    (first,) = [fact for fact in facts if fact.type == "run_signal_received"]
    return first.model_copy(update={"metadata": {"number": number}})


def _elsewhere(facts: list[Fact]) -> Fact:
    (queued,) = [fact for fact in facts if fact.type == "run_queued"]
    return queued.model_copy(update={"queue": "another"})
