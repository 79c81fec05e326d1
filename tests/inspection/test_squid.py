"""Inspection of runs that the runtime itself has driven, on every storage: what it says is what can be done."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.inspection import Explanation
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import IncompatibleDefinition, InvalidArgument, NotFound
from squid_dagster.workflow import Defer, Fail, Retry, Workflow, path
from tests.inspection.run_histories import nothing


class Shop:
    """A workflow whose steps do what the test tells them to."""

    def __init__(self, version: str = "1") -> None:
        self.answers: dict[str, list[Any]] = {}
        workflow = self.workflow = Workflow("shop", version=version)
        for name in ("charge", "ship"):
            workflow.step(name=name, compensate=nothing, **self._options(name))(self._step(name))
        workflow.approval("review")
        workflow.route("charge", to="review", when=path("charge.amount") > 100)
        workflow.route("charge", to="ship")
        workflow.route("review", to="ship")
        workflow.route("review", on="error", to="fail")
        workflow.route("ship", to="complete")

    @staticmethod
    def _options(name: str) -> dict[str, Any]:
        if name == "ship":
            return {"max_deliveries": 1}
        return {"retry": Retry(max_attempts=2, initial=timedelta(seconds=30), maximum=timedelta(seconds=30), jitter=0)}

    def _step(self, name: str) -> Any:
        def step() -> Any:
            given = self.answers.get(name) or [None]
            answer = given.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return step


@pytest.fixture(params=["memory", "memory, thread by thread", "postgres"])
def storage(request: pytest.FixtureRequest, clock: VirtualClock) -> Storage:
    """An empty journal, in every adapter."""
    if request.param == "postgres":
        storage: Storage = request.getfixturevalue("postgres_virtual")
        return storage
    return MemoryStorage(clock, atomic_across_threads=request.param == "memory")


@pytest.fixture
def shop() -> Shop:
    """The workflow and what its steps will do."""
    return Shop()


@pytest.fixture
def squid(storage: Storage, shop: Shop) -> Iterator[Squid]:
    """The runtime with that workflow."""
    made = Squid(storage, [shop.workflow])
    yield made
    made.runtime.notifier.close()


def _reason(squid: Squid, run_id: str) -> str:
    explanation: Explanation = squid.explain_run(run_id)
    assert explanation.reason == squid.explain_run(run_id).reason
    for proof in explanation.evidence:
        (entry,) = squid.journal.read(proof.thread, after=proof.revision - 1, limit=1)
        assert entry.fact.type == proof.type
    return explanation.reason


def _do(squid: Squid, run_id: str, action: str) -> None:
    """Execute what the explanation names, by the very call that it shows."""
    named = {action.action: action.call for action in squid.explain_run(run_id).next_actions}
    call = named[action]
    assert call is not None
    eval(call.replace("actor=...", "actor='ada'"), {"squid": squid})  # noqa: S307


def test_a_run_is_explained_all_the_way(squid: Squid, shop: Shop, clock: VirtualClock) -> None:
    shop.answers["charge"] = [ValueError("declined"), Defer("not yet", after=timedelta(seconds=60)), {"amount": 500}]
    run_id = squid.start("shop").run_id
    reasons = [_reason(squid, run_id)]
    squid.execute_next()
    reasons.append(_reason(squid, run_id))
    clock.advance(timedelta(seconds=30))
    squid.execute_next()
    reasons.append(_reason(squid, run_id))
    clock.advance(timedelta(seconds=60))
    squid.execute_next()
    reasons.append(_reason(squid, run_id))
    _do(squid, run_id, "approve")
    squid.execute_next()
    reasons.append(_reason(squid, run_id))

    assert reasons == [
        "no_worker_for_queue",
        "retry_scheduled",
        "deferred_continuation",
        "manual_intervention_required",
        "terminal",
    ]
    shown = squid.inspect_run(run_id)
    assert (shown.status, shown.anomalies) == ("completed", ())
    assert shown.outputs["charge"] == {"amount": 500}
    assert [command.signal_type for command in shown.command_history] == ["start_run", "approve_run"]


def test_every_earlier_revision_can_be_seen(squid: Squid, shop: Shop) -> None:
    shop.answers["charge"] = [{"amount": 500}]
    run_id = squid.start("shop").run_id
    squid.execute_next()
    squid.reject(run_id, actor="ada")
    while squid.execute_next() is not None:
        pass

    last = squid.inspect_run(run_id).thread_revisions["run"]
    statuses = [squid.inspect_run(run_id, at_revision=revision).status for revision in range(1, last + 1)]

    assert statuses[0] == "new"
    assert "paused" in statuses
    assert statuses[-1] == "failed"
    with pytest.raises(InvalidArgument, match=f"from 1 to {last}"):
        squid.inspect_run(run_id, at_revision=last + 1)


def test_a_paused_queue_is_resumed_by_the_call_that_the_explanation_names(squid: Squid) -> None:
    run_id = squid.start("shop").run_id
    squid.pause_queue("default", actor="ada")

    assert _reason(squid, run_id) == "queue_paused"
    assert "queue_paused" in [proof.type for proof in squid.explain_run(run_id).evidence]
    assert squid.execute_next() is None
    _do(squid, run_id, "resume_queue")
    assert squid.execute_next() is not None


def test_a_dead_letter_is_retried_by_the_call_that_the_explanation_names(squid: Squid, clock: VirtualClock) -> None:
    run_id = squid.start("shop").run_id
    squid.execute_next()
    squid.dispatch_agent().claim_next("w", lease=timedelta(seconds=10))
    clock.advance(timedelta(seconds=11))
    assert _reason(squid, run_id) in ("expired_claim", "no_worker_for_queue")
    assert squid.execute_next() is None

    assert squid.inspect_run(run_id).status == squid.list_runs().runs[0].status == "running"
    assert _reason(squid, run_id) == "dead_letter"
    _do(squid, run_id, "retry_attempt")
    squid.execute_next()
    assert squid.inspect_run(run_id).status == "completed"


def test_a_failed_run_is_undone_and_then_replayed(squid: Squid, shop: Shop) -> None:
    shop.answers["ship"] = [Fail("out of stock")]
    run_id = squid.start("shop").run_id
    squid.execute_next()
    squid.execute_next()

    drawn = squid.inspect_run_graph(run_id)
    squid.runtime.liveness.report(WorkerRow(worker_id="w", queues=("default",), host="h", pid=1))
    assert squid.inspect_run(run_id).reason == "compensating"
    assert drawn.current_node_ids == ("compensate:charge",)
    squid.execute_next()
    explanation = squid.explain_run(run_id)
    assert (explanation.reason, explanation.step, explanation.status) == ("terminal", "ship", "failed")
    assert "out of stock" in explanation.summary
    _do(squid, run_id, "replay")
    assert len(squid.list_runs().runs) == 2


def test_a_run_of_a_changed_workflow_is_held_until_its_version_is_back(squid: Squid, storage: Storage) -> None:
    run_id = squid.start("shop").run_id
    changed = Workflow("shop", version="2")
    changed.step(name="charge")(nothing)
    later = Squid(storage, [changed])

    assert later.inspect_run(run_id).status == "held"
    assert later.explain_run(run_id).reason == "held"
    assert [run.status for run in later.list_runs().runs] == ["held"]
    assert [run.status for run in later.list_runs(status="held").runs] == ["held"]
    assert later.execute_next() is None
    with pytest.raises(IncompatibleDefinition):
        later.replay(run_id)
    both = Squid(storage, [Shop().workflow, changed])
    assert both.inspect_run(run_id).status == "running"
    assert both.execute_next() is not None


def test_a_worker_that_announces_itself_is_named(squid: Squid) -> None:
    run_id = squid.start("shop").run_id
    liveness = squid.runtime.liveness
    liveness.report(WorkerRow(worker_id="w-1", queues=("default",), definitions=("shop/other",), host="h", pid=1))
    assert _reason(squid, run_id) == "no_worker_for_definition"

    keys = tuple(squid.runtime.registry.keys)
    liveness.report(WorkerRow(worker_id="w-2", queues=("default",), definitions=keys, host="h", pid=2))

    assert _reason(squid, run_id) == "attempt_visible"
    assert squid.explain_run(run_id).details["workers"] == ["w-2"]


def test_runs_are_listed_page_by_page(squid: Squid) -> None:
    ids = [squid.start("shop").run_id for _ in range(7)]
    squid.cancel(ids[3])

    first = squid.list_runs(limit=4)
    second = squid.list_runs(limit=4, cursor=first.next_cursor)

    assert [run.run_id for page in (first, second) for run in page.runs] == ids[::-1]
    assert second.next_cursor is None
    assert [run.run_id for run in squid.list_runs(status="cancelled").runs] == [ids[3]]
    with pytest.raises(InvalidArgument, match="other filters"):
        squid.list_runs(limit=4, cursor=first.next_cursor, status="cancelled")


def test_the_timeline_tells_every_fact_of_a_run(squid: Squid) -> None:
    run_id = squid.start("shop", actor="ada").run_id
    while squid.execute_next() is not None:
        pass

    events = squid.inspect_run_timeline(run_id)

    assert events[0].summary == "ada asked for the run."
    assert [event for event in events if event.refused] == []
    assert any(event.summary == "The run completed." for event in events)
    assert len(events) == len(squid.journal.read_run(run_id))


def test_what_does_not_exist_is_not_found(squid: Squid) -> None:
    for look in (squid.inspect_run, squid.explain_run, squid.inspect_run_graph, squid.inspect_run_timeline):
        with pytest.raises(NotFound, match="there is no run"):
            look("nobody")
