"""The fifteen defects of the original, by their numbers: each is provoked here, and each is absent.

What the original does is told in each docstring; the tests run on every storage where that makes a difference.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import Completed, PostgresStorage, Settlement, verify
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol import RunTerminal, run_thread
from squid_dagster.protocol.errors import (
    ConflictingCompletion,
    ExpiredClaim,
    InvalidArgument,
    SquidError,
    TerminalRun,
)
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.workflow import Code, Fail, InvalidWorkflow, Retry, StepContext, Workflow, path
from tests.journal.access import at_once, raw
from tests.runtime.runs import MakeSquid
from tests.runtime.workers import facts_of, status_of

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Order(BaseModel):
    """What the workflows here are started with."""

    order_id: str = "o-1"
    amount: int = 7


def drain(squid: Squid, queue: str | None = None) -> None:
    """Execute what is due now, and what comes of it."""
    while squid.execute_next(queue) is not None:
        pass


def line(name: str = "line") -> Workflow:
    """Three steps, one after another."""
    workflow = Workflow(name, payload=Order)
    workflow.step(name="first")(lambda: 1)
    workflow.step(name="second", after="first")(lambda: 2)
    workflow.step(name="third", after="second")(lambda: 3)
    return workflow


def spoil(storage: PostgresStorage, run_id: str, type_name: str = "run_started") -> None:
    """Make a fact of a run unreadable, as only the owner of the database can."""
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER journal_entries_append_only")
        connection.execute(
            "UPDATE journal_entries SET data = json_build_object('workflow', 7) WHERE thread = %s AND type = %s",
            (run_thread(run_id), type_name),
        )
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")


def test_defect_01_queue_poisoning_by_a_step_that_nothing_follows(make_squid: MakeSquid) -> None:
    """A finished step without a matching route makes every later execution on its queue fail.

    Here such a definition is refused when it is handed over, and whatever goes wrong after a step ends its own run.
    """
    unfinished = Workflow("unfinished", payload=Order)
    unfinished.step(name="rate")(lambda: 1)
    unfinished.step(name="last")(lambda: 2)
    unfinished.route("rate", to="last", when=path("rate") > 100)
    with pytest.raises(InvalidWorkflow) as refused:
        make_squid(unfinished)
    assert {problem.code for problem in refused.value.problems} == {Code.MISSING_FALLBACK, Code.MISSING_OK_ROUTE}

    looping = Workflow("looping", payload=Order, entry="again")
    looping.step(name="again", max_visits=2)(lambda: 1)
    looping.route("again", to="again", when=path("again") == 1)
    looping.route("again", to="complete")
    squid = make_squid([looping, line()])
    bad, good = squid.start("looping").run_id, squid.start("line").run_id
    drain(squid)
    assert [squid.inspect_run(run).status for run in (bad, good)] == ["failed", "completed"]
    assert "max_visits" in str(squid.inspect_run(bad).error)


@pytest.mark.parametrize("type_name", ["run_started", "runnables_planned", "runnable_applied"])
def test_defect_01_queue_poisoning_by_a_run_that_cannot_be_read(
    postgres_virtual: PostgresStorage, type_name: str
) -> None:
    """One undecodable run thread makes every operation on its queue fail.

    Here, where what follows depends on what a run did before and its thread has to be read, that run is stopped by a
    fact that says so, nothing is decided without the lost entry, and the others go on.
    """
    turning = Workflow("turning", payload=Order, entry="again")
    turning.step(name="again", max_visits=3)(lambda: 1)
    turning.route("again", to="again", when=path("amount") < 0)
    turning.route("again", to="last")
    turning.step(name="last")(lambda: 2)
    turning.route("last", to="complete")
    bad = Squid(postgres_virtual, turning).start("turning").run_id
    Squid(postgres_virtual, turning).execute_next()
    squid = Squid(postgres_virtual, [line(), turning])  # knows nothing of what the other did
    good = [squid.start("line").run_id for _ in range(3)]
    spoil(postgres_virtual, bad, type_name)
    assert squid.worker(until_idle=True).completed == 10, "what was claimed is done, and its outcome kept"
    assert [squid.inspect_run(run).status for run in good] == ["completed"] * 3
    snapshot = squid.inspect_run(bad)
    assert (snapshot.status, snapshot.terminal) == ("quarantined", False)
    assert len(facts_of(postgres_virtual, bad, "attempt_completed")) == 2
    assert facts_of(postgres_virtual, bad)[-1].type in ("entry_quarantined", "run_cataloged")
    squid.recover()
    assert squid.worker(until_idle=True).claimed == 0
    assert squid.inspect_run(bad).status == "quarantined"
    assert verify(postgres_virtual)[0].run_id == bad, (
        "and whoever verifies the journal is told of it, and of nothing else"
    )
    assert {finding.run_id for finding in verify(postgres_virtual)} == {bad}


def test_defect_02_starts_stop_being_idempotent(make_squid: MakeSquid, clock: VirtualClock) -> None:
    """A repeated start, child start or replay is a conflict once the first successor was planned.

    Here it gives the first receipt whenever it is repeated: in the middle, after the end, after the definition changed.
    """
    parent = Workflow("parent")
    children: list[tuple[str, bool]] = []

    @parent.step(retry=Retry(max_attempts=2, initial=timedelta(0)))
    def spawn(ctx: StepContext) -> None:
        receipt = ctx.start_child_run("line", {"amount": 1}, child_key="only")
        children.append((receipt.run_id, receipt.repeated))
        drain(squid, "line-queue")
        if ctx.attempt == 1:
            raise ValueError("once more")

    squid = make_squid([line(), parent])
    first = squid.start("line", {"amount": 1}, idempotency_key="k", queue="slow")
    for _ in range(4):
        again = squid.start("line", {"amount": 1}, idempotency_key="k", queue="slow")
        assert (again.run_id, again.repeated) == (first.run_id, True)
        squid.execute_next("slow")
    assert squid.inspect_run(first.run_id).status == "completed"
    replays = [squid.replay(first.run_id, idempotency_key="r")]
    drain(squid, "slow")
    replays.append(squid.replay(first.run_id, idempotency_key="r"))
    assert [each.repeated for each in replays] == [False, True]
    assert len({each.run_id for each in replays}) == 1
    squid.start("parent", queue="line-queue")
    drain(squid, "line-queue")
    assert [repeated for _, repeated in children] == [False, True]
    assert len({run for run, _ in children}) == 1
    changed = Workflow("line", payload=Order)
    changed.step(name="other")(lambda: 1)
    assert make_squid(changed).start("line", {"amount": 1}, idempotency_key="k").run_id == first.run_id


@pytest.mark.parametrize("way", ["recover", "repeated start", "agent"])
def test_defect_03_results_are_applied_without_a_successor(make_squid: MakeSquid, way: str) -> None:
    """A result that is applied by recovery plans no successor: the run is stuck as `idle`, and nothing repairs it."""
    squid = make_squid(line())
    run_id = squid.start("line", idempotency_key="k").run_id
    # given a crash after the completion and before anything followed from it
    (claim,) = squid.runtime.dispatch.claim("default", "doomed")
    squid.runtime.dispatch.settle([Settlement(claim.ref, Completed(1))])[0].unwrap()
    assert squid.execute_next() is None
    match way:
        case "recover":
            assert squid.recover().applied == 1
        case "repeated start":
            squid.start("line", idempotency_key="k")
            squid.recover()
        case "agent":
            squid.workflow_agent(run_id).apply_pending_results()
    drain(squid)
    assert squid.inspect_run(run_id).status == "completed"
    assert squid.inspect_run(run_id).outputs == {"first": 1, "second": 2, "third": 3}


def test_defect_04_completion_time_is_taken_before_the_step_runs(make_squid: MakeSquid, clock: VirtualClock) -> None:
    """Durations are lost, retry and wait delays are too short, and a lease that was overrun goes unnoticed.

    Here times are taken after the step, by the storage's clock.
    """
    workflow = Workflow("slow", payload=Order)

    @workflow.step(retry=Retry(max_attempts=2, initial=MINUTE))
    def step(ctx: StepContext, amount: int) -> None:
        clock.advance(timedelta(minutes=amount))
        if ctx.attempt == 1:
            raise ValueError("later")

    squid = make_squid(workflow)
    run_id = squid.start("slow", {"amount": 3}).run_id
    squid.execute_next(lease=HOUR)
    (claimed,), (failed,) = (
        facts_of(squid.journal, run_id, "attempt_claimed"),
        facts_of(squid.journal, run_id, "attempt_failed"),
    )
    assert failed.occurred_at - claimed.occurred_at == timedelta(minutes=3)
    assert failed.retry_visible_at - failed.occurred_at == MINUTE
    clock.advance(MINUTE)
    with pytest.raises(ExpiredClaim):
        squid.execute_next(lease=2 * MINUTE)
    assert not facts_of(squid.journal, run_id, "attempt_completed")


@pytest.mark.usefixtures("spoilt")
def test_defect_05_claims_give_nothing_although_others_are_claimable(
    make_squid: MakeSquid, storage: Storage, clock: VirtualClock
) -> None:
    """When the run of the first candidate has just ended, a claim gives nothing; and conflicts go to the worker."""
    squid = make_squid(line())
    ended, other = squid.start("line").run_id, squid.start("line").run_id
    # given a run that has ended, of which the queue has not heard yet
    storage.append(run_thread(ended), [RunTerminal(run_id=ended, status="cancelled", occurred_at=clock.now())])
    found = squid.execute_next()
    assert found is not None
    assert found.run_id == other
    # and many who claim at once
    runs = {each.run_id for each in squid.start_many("line", [{}] * 30)} | {other}
    with ThreadPoolExecutor(6) as pool:
        taken = [pool.submit(squid.runtime.dispatch.claim, "default", f"w-{n}", limit=10) for n in range(6)]
        claims = [claim.ref.run_id for future in taken for claim in future.result(60)]
    assert sorted(claims) == sorted(runs)


@pytest.mark.usefixtures("spoilt")
def test_defect_06_checkpoints_make_false_anomalies(make_squid: MakeSquid, storage: Storage) -> None:
    """Each start adds an anomaly for every applied step of every finished run of the queue, and shows it on every run.

    Here finished runs cost nothing and are no anomaly, and what is wrong with one run is shown on that run only.
    """
    squid = make_squid(line())
    runs = [squid.start("line").run_id for _ in range(10)]
    drain(squid)
    for run_id in runs:  # a checkpoint, and what comes after it
        squid.inspect_run(run_id)
        squid.start("line", run_id=run_id)
    squid.recover()
    assert all(squid.inspect_run(run_id).anomalies == () for run_id in runs)
    assert not squid.dispatch_agent().projection.anomalies
    # and one real anomaly
    again = facts_of(storage, runs[0], "run_terminal")[0].model_copy(update={"status": "failed"})
    storage.append(run_thread(runs[0]), [again])
    assert [len(squid.inspect_run(run_id).anomalies) for run_id in runs] == [1] + [0] * 9
    if isinstance(storage, PostgresStorage):
        assert verify(storage) == []


def test_defect_07_two_answers_to_which_idempotency_key_a_retry_has(make_squid: MakeSquid) -> None:
    """A retry's planned runnable and its attempt carry different keys. Here plan, queue and step agree."""
    keys: list[str] = []
    workflow = Workflow("flaky")

    @workflow.step(retry=Retry(max_attempts=3, initial=timedelta(0)))
    def step(ctx: StepContext) -> None:
        keys.append(ctx.idempotency_key)
        if ctx.attempt < 3:
            raise ValueError("again")

    squid = make_squid(workflow)
    run_id = squid.start("flaky").run_id
    drain(squid)
    unit = RunUnit.fold(squid.journal.read_run(run_id))
    planned = [each.runnable.idempotency_key for each in unit.run.planned.values() if each.runnable is not None]
    queued = [each.idempotency_key for each in unit.dispatch.attempts.values()]
    assert keys == planned == queued == [f"{run_id}:step:1"] * 3


def test_defect_08_a_repeated_failure_is_stale(make_squid: MakeSquid, clock: VirtualClock) -> None:
    """A failure that is reported twice, after a lost answer, is `stale_claim`. Here the repeat changes nothing."""
    squid = make_squid(line())
    run_id = squid.start("line").run_id
    agent = squid.dispatch_agent()
    claim = agent.claim_next("me")
    assert claim is not None
    agent.fail(claim, {"message": "no"}, retry_after=MINUTE)
    before = squid.journal.read_run(run_id)
    clock.advance(timedelta(seconds=1))
    assert agent.fail(claim, {"message": "no"}, retry_after=MINUTE).attempt.status == "failed"
    assert squid.journal.read_run(run_id) == before
    with pytest.raises(ConflictingCompletion):
        agent.fail(claim, {"message": "something else"}, retry_after=MINUTE)
    assert squid.journal.read_run(run_id) == before


def test_defect_09_the_payload_is_lost_after_a_join_or_an_approval(make_squid: MakeSquid) -> None:
    """A join sees only the outputs of steps, and an approval is seen by its direct successor only."""
    joined = Workflow("joined", payload=Order)
    joined.step(name="left")(lambda: "l")
    joined.step(name="right")(lambda: "r")

    @joined.step(after=["left", "right"])
    def join(order_id: str, amount: int, left: str, right: str) -> list[Any]:
        return [order_id, amount, left, right]

    reviewed = Workflow("reviewed", payload=Order)
    reviewed.approval("review")
    reviewed.step(name="between")(lambda: 0)

    @reviewed.step
    def last(ctx: StepContext, order_id: str, review: dict[str, Any]) -> list[Any]:
        return [order_id, review["decision"], sorted(ctx.state)]

    reviewed.route("review", to="between")
    reviewed.route("review", on="error", to="fail")
    reviewed.route("between", to=last)
    reviewed.route(last, to="complete")
    squid = make_squid([joined, reviewed])
    one, two = squid.start("joined", {"order_id": "o-9"}).run_id, squid.start("reviewed", {"order_id": "o-9"}).run_id
    drain(squid)
    squid.approve(two, actor="ada")
    drain(squid)
    assert squid.inspect_run(one).outputs["join"] == ["o-9", 7, "l", "r"]
    assert squid.inspect_run(two).outputs["last"] == ["o-9", "approved", ["amount", "between", "order_id", "review"]]


def _waits(hours: int = 1, payload: type[BaseModel] = Order, version: str = "1", **markers: Any) -> Workflow:
    workflow = Workflow("waits", payload=payload, version=version)
    workflow.step(name="first", **markers)(lambda: 1)
    workflow.wait("rest", timedelta(hours=hours), after="first")
    return workflow


class Other(BaseModel):
    """Another payload."""

    order_id: int = 0


@pytest.mark.parametrize(
    "change",
    [{"hours": 2}, {"payload": Other}, {"irreversible": True}, {"compensate": lambda: None}],
    ids=["wait", "payload", "irreversible", "compensation"],
)
def test_defect_10_the_fingerprint_misses_what_matters(make_squid: MakeSquid, change: dict[str, Any]) -> None:
    """A changed wait, payload or recovery marker goes unnoticed by runs that are under way. Here they are held."""
    run_id = make_squid(_waits()).start("waits").run_id
    changed = make_squid(_waits(**change))
    assert changed.execute_next() is None
    assert changed.inspect_run(run_id).status == "held"
    both = make_squid([_waits(), _waits(version="2", **change)])
    assert both.execute_next() is not None, "and it goes on beside the new one"


def test_defect_11_redelivery_without_end(make_squid: MakeSquid, clock: VirtualClock) -> None:
    """An attempt whose worker dies is delivered for ever, and always before newer work.

    Here it takes its place by the end of its lease, and is parked after `max_deliveries`.
    """
    workflow = Workflow("deadly")
    workflow.step(name="step", max_deliveries=3)(lambda: None)
    squid = make_squid(workflow)
    agent = squid.dispatch_agent()
    deadly = squid.start("deadly").run_id
    assert agent.claim_next("doomed", lease=10 * MINUTE) is not None
    clock.advance(5 * MINUTE)
    newer = squid.start("deadly").run_id
    clock.advance(6 * MINUTE)
    order = [claim.attempt.run_id for claim in agent.claim_many("doomed", 2, lease=MINUTE)]
    assert order == [newer, deadly], "by due time: the newer one has waited for longer"
    for _ in range(4):
        clock.advance(HOUR)
        agent.claim_many("doomed", 2, lease=MINUTE)
    assert agent.claim_next("doomed") is None
    assert {attempt.run_id for attempt in squid.dead_letters()} == {deadly, newer}
    assert [len(facts_of(squid.journal, run, "attempt_claimed")) for run in (deadly, newer)] == [3, 3]
    squid.retry_attempt(deadly)
    assert squid.execute_next() is not None
    assert squid.inspect_run(deadly).status == "completed"


def test_defect_12_races_between_the_end_of_a_run_and_its_results(make_squid: MakeSquid, storage: Storage) -> None:
    """A cancel between check and append leaves facts of dead runs on the queue. Here one of the two wins, wholly."""
    squid = make_squid(line())
    agent = squid.dispatch_agent()
    outcomes = []
    for _ in range(10):
        run_id = squid.start("line").run_id
        claim = agent.claim_next("me")
        assert claim is not None

        def attempt(call: Any) -> str:
            try:
                call()
            except SquidError as error:
                return type(error).__name__
            return "done"

        completed, cancelled = at_once(
            [
                lambda claim=claim: attempt(lambda: agent.complete(claim, 1)),  # type: ignore[misc]
                lambda run_id=run_id: attempt(lambda: squid.cancel(run_id)),  # type: ignore[misc]
            ]
        )
        outcomes.append((completed, cancelled))
        assert status_of(storage, run_id) == "cancelled"
        types = [entry.fact.type for entry in storage.read_run(run_id)]
        assert ("attempt_completed" in types) == (completed == "done")
        assert squid.execute_next() is None, "nothing of it can be claimed"
    assert {completed for completed, _ in outcomes} <= {"done", "TerminalRun"}
    assert {cancelled for _, cancelled in outcomes} == {"done"}


def test_defect_13_a_control_moves_a_run_to_another_queue(make_squid: MakeSquid) -> None:
    """After a manual step the successor goes to the queue that the control call names, and then no listing works.

    Here a run stays on its own queue, and controls name none.
    """
    workflow = Workflow("reviewed")
    workflow.approval("review")
    workflow.step(name="last")(lambda: 1)
    workflow.route("review", to="last")
    workflow.route("review", on="error", to="fail")
    workflow.route("last", to="complete")
    run_id = make_squid(workflow).start("reviewed", queue="billing").run_id
    elsewhere = make_squid(workflow, queue="elsewhere")
    with pytest.raises((InvalidArgument, TypeError)):
        elsewhere.approve(run_id, actor="ada", queue="elsewhere")
    elsewhere.approve(run_id, actor="ada")
    assert elsewhere.execute_next() is None
    assert elsewhere.execute_next("billing") is not None
    assert {fact.queue for fact in facts_of(elsewhere.journal, run_id) if fact.type.startswith("attempt_")} == {
        "billing"
    }
    (listed,) = elsewhere.list_runs().runs
    assert (listed.run_id, listed.queue, listed.status) == (run_id, "billing", "completed")


def test_defect_14_errors_are_reduced_to_a_code(make_squid: MakeSquid) -> None:
    """What failed is replaced by a fixed message. Here an operator sees type, message, place and details."""
    workflow = Workflow("failing", payload=Order)

    @workflow.step
    def charge(order_id: str) -> None:
        if order_id == "final":
            raise Fail("card declined", details={"reason": "stolen", "card_token": "tok_1"})
        raise LookupError(f"no account for order {order_id}")

    squid = make_squid(workflow)
    plain, final = (
        squid.start("failing", {"order_id": "o-5"}).run_id,
        squid.start("failing", {"order_id": "final"}).run_id,
    )
    drain(squid)
    error = squid.inspect_run(plain).error
    assert error is not None
    assert (error["type"], error["message"]) == ("LookupError", "no account for order o-5")
    assert "test_defects.py" in error["traceback"]
    assert "in charge" in error["traceback"]
    assert squid.inspect_run(final).error == {
        "type": "Fail",
        "message": "card declined",
        "details": {"reason": "stolen", "card_token": "[REDACTED]"},
    }
    assert "no account for order o-5" in str(squid.explain_run(plain).to_dict())


def test_defect_15_one_bad_fact_hides_every_run(postgres_virtual: PostgresStorage) -> None:
    """A listing is all or nothing. Here a run that cannot be read is one line of it.

    What follows in it needs none of its entries: it goes on, and those who verify the journal are told of the entry.
    """
    squid = Squid(postgres_virtual, line())
    runs = [squid.start("line").run_id for _ in range(5)]
    spoil(postgres_virtual, runs[2])
    assert [row.run_id for row in squid.list_runs().runs] == list(reversed(runs))
    squid.worker(until_idle=True)
    listed = {row.run_id: row.status for row in squid.list_runs().runs}
    assert [listed[run] for run in runs if run != runs[2]] == ["completed"] * 4
    assert listed[runs[2]] == squid.inspect_run(runs[2]).status == "completed", "and it can be looked at"
    assert {finding.run_id for finding in verify(postgres_virtual)} == {runs[2]}


def test_a_claim_of_a_run_that_has_ended_is_told_so(make_squid: MakeSquid) -> None:
    """Whoever lost a race of defect 12 hears why."""
    squid = make_squid(line())
    run_id = squid.start("line").run_id
    agent = squid.dispatch_agent()
    claim = agent.claim_next("me")
    assert claim is not None
    squid.cancel(run_id)
    calls: list[Callable[[], object]] = [
        lambda: agent.complete(claim, 1),
        lambda: agent.fail(claim, {"message": "no"}),
        lambda: agent.heartbeat(claim),
        lambda: agent.release(claim),
    ]
    for call in calls:
        with pytest.raises(TerminalRun, match="has ended"):
            call()
