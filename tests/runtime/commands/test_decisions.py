"""Decisions of people: approve, reject, resume. Recorded with their effect in one append, refused without a trace."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    IncompatibleDefinition,
    InvalidArgument,
    InvalidFact,
    InvalidTransition,
    NotFound,
    SquidError,
)
from squid_dagster.protocol.threads import run_thread
from squid_dagster.workflow import StepContext, Workflow
from tests.facts import quarantined
from tests.runtime.runs import MakeSquid, drain, facts, finish, run_facts, state_of, transitions, unit

Command = Callable[..., Any]


def review(version: str | None = None, wait: int = 1) -> Workflow:
    wf = Workflow("review", version=version)
    wf.approval("ask", output="verdict")
    wf.wait("rest", timedelta(hours=wait))

    @wf.step
    def refuse(verdict: dict[str, Any], ctx: StepContext) -> Any:
        return [verdict["decision"], ctx.state["verdict"]]

    wf.route("ask", to="rest")
    wf.route("ask", on="error", to=refuse)
    wf.route("rest", to="complete")
    wf.route(refuse, to="complete")
    return wf


def gate() -> Workflow:
    wf = Workflow("gate")
    wf.pause("stand")
    wf.step(name="go")(lambda: None)
    wf.route("stand", to="go")
    wf.route("go", to="complete")
    return wf


COMMANDS = {"approve": ("review", "approve_run"), "reject": ("review", "reject_run"), "resume": ("gate", "resume_run")}


@pytest.fixture(params=COMMANDS)
def decided(request: pytest.FixtureRequest, make_squid: MakeSquid) -> tuple[Squid, str, str, str]:
    """A run that waits for a decision: the squid, the command's name, its signal and the run."""
    squid = make_squid([review(), gate()])
    workflow, signal_type = COMMANDS[request.param]
    return squid, request.param, signal_type, squid.start(workflow).run_id


Decided = tuple[Squid, str, str, str]


def test_a_decision_and_what_follows_from_it_are_one_append(decided: Decided, clock: VirtualClock) -> None:
    squid, name, signal_type, run_id = decided
    before = squid.journal.revision(run_thread(run_id))
    clock.advance(timedelta(days=3))
    receipt = getattr(squid, name)(run_id, actor="ada", comment="fine", metadata={"ticket": 7})
    assert (receipt.run_id, receipt.signal_type, receipt.received_at) == (run_id, signal_type, clock.now())
    written = squid.journal.read(run_thread(run_id), before)
    assert [entry.fact.type for entry in written] == [
        "run_signal_received",
        "manual_step_resolved",
        "runnables_planned",
    ]
    assert [entry.seq for entry in written] == [before + 1, before + 2, before + 3]
    assert {entry.fact.occurred_at for entry in written} == {clock.now()}
    signal, resolved, planned = _facts(written)
    assert (signal.signal_type, signal.actor, signal.comment) == (signal_type, "ada", "fine")
    assert signal.metadata == {"ticket": 7}
    assert resolved.metadata["actor"] == "ada"
    assert planned.runnables[0].step == transitions(squid, run_id)[-1][2]
    snapshot = squid.inspect_run(run_id)
    assert snapshot.manual_state is None
    assert [command.signal_type for command in snapshot.command_history] == ["start_run", signal_type]
    assert (snapshot.command_history[1].actor, snapshot.command_history[1].comment) == ("ada", "fine")
    assert finish(squid, clock, run_id).status == "completed"
    assert not unit(squid, run_id).anomalies


def _facts(entries: list[Entry]) -> list[Any]:
    return [entry.fact for entry in entries]


def test_a_repeated_key_gives_the_first_receipt_at_any_later_time(decided: Decided, clock: VirtualClock) -> None:
    squid, name, _, run_id = decided
    command = getattr(squid, name)
    first = command(run_id, actor="ada", idempotency_key="k", comment="fine")
    finish(squid, clock, run_id)
    clock.advance(timedelta(days=1000))
    written = state_of(squid.journal)
    again = command(run_id, actor="ada", idempotency_key="k", comment="fine", metadata={"another": "try"})
    assert (again.run_id, again.received_at, again.repeated) == (run_id, first.received_at, True)
    assert again.snapshot.status == "completed"
    for other in ({"actor": "bob"}, {"comment": "bad"}):
        with pytest.raises(ConflictingCommand, match="'k'"):
            command(run_id, **{"actor": "ada", "comment": "fine", "idempotency_key": "k", **other})
    with pytest.raises(InvalidTransition):
        command(run_id, actor="ada", idempotency_key="another")
    assert state_of(squid.journal) == written


def test_a_second_decision_is_refused(decided: Decided, clock: VirtualClock) -> None:
    squid, name, _, run_id = decided
    command = getattr(squid, name)
    command(run_id, actor="ada")
    written = state_of(squid.journal)
    with pytest.raises(InvalidTransition, match=run_id):
        command(run_id, actor="ada")
    assert state_of(squid.journal) == written


def test_a_repeat_is_answered_where_the_definition_is_gone_and_a_new_decision_is_not(
    decided: Decided, make_squid: MakeSquid
) -> None:
    squid, name, _, run_id = decided
    first = getattr(squid, name)(run_id, actor="ada", idempotency_key="k")
    elsewhere = make_squid([review("2", wait=9)])
    assert getattr(elsewhere, name)(run_id, actor="ada", idempotency_key="k").received_at == first.received_at
    waiting = squid.start(COMMANDS[name][0]).run_id
    written = state_of(squid.journal)
    with pytest.raises(IncompatibleDefinition, match=f"{waiting}.*register that version"):
        getattr(elsewhere, name)(waiting, actor="ada")
    assert state_of(squid.journal) == written


@pytest.mark.parametrize(
    ("workflow", "command", "named"),
    [
        ("review", "resume", "waits at approval 'ask'"),
        ("gate", "approve", "waits at pause 'stand'"),
        ("gate", "reject", "waits at pause 'stand'"),
        ("work", "approve", "running"),
        ("work", "resume", "running"),
    ],
)
def test_a_command_that_does_not_fit_where_the_run_stands_is_refused(
    make_squid: MakeSquid, workflow: str, command: str, named: str
) -> None:
    work = Workflow("work")
    work.step(name="go")(lambda: None)
    squid = make_squid([review(), gate(), work])
    run_id = squid.start(workflow).run_id
    written = state_of(squid.journal)
    with pytest.raises(InvalidTransition, match=named):
        getattr(squid, command)(run_id, actor="ada", idempotency_key="k")
    assert state_of(squid.journal) == written, "refusals are not recorded"
    if workflow != "work":
        fitting = squid.approve if workflow == "review" else squid.resume
        assert not fitting(run_id, actor="ada", idempotency_key="k").repeated, "nor are their keys"


@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_a_run_that_has_ended_takes_no_decision(make_squid: MakeSquid, clock: VirtualClock, end: str) -> None:
    squid = make_squid(review())
    run_id = squid.start("review").run_id
    if end == "cancelled":
        squid.cancel(run_id)
    else:
        squid.approve(run_id, actor="ada")
        finish(squid, clock, run_id)
    written = state_of(squid.journal)
    for command in (squid.approve, squid.reject):
        with pytest.raises(InvalidTransition, match=f"{run_id}.*{end}"):
            command(run_id, actor="bob")
    with pytest.raises(InvalidTransition, match=f"{run_id}.*{end}"):
        squid.resume(run_id)
    assert state_of(squid.journal) == written


def test_a_quarantined_run_takes_no_decision(make_squid: MakeSquid) -> None:
    squid = make_squid(review())
    run_id = squid.start("review").run_id
    squid.journal.append(run_thread(run_id), [quarantined(run_id)])
    with pytest.raises(InvalidTransition, match=run_id):
        squid.approve(run_id, actor="ada")


@pytest.mark.parametrize("name", COMMANDS)
def test_there_must_be_a_run(make_squid: MakeSquid, name: str) -> None:
    squid = make_squid([review(), gate()])
    for run_id in ("nothing", "9d2f-"):
        with pytest.raises(NotFound, match=run_id):
            getattr(squid, name)(run_id, actor="ada")
    assert state_of(squid.journal) == []


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"actor": None}, InvalidArgument, "actor"),
        ({"actor": ""}, InvalidArgument, "actor"),
        ({"actor": {}}, InvalidArgument, "actor"),
        ({"actor": 7}, InvalidArgument, "actor"),
        ({"comment": ""}, InvalidFact, "comment"),
        ({"comment": 7}, InvalidArgument, "comment"),
        ({"metadata": "x"}, InvalidArgument, "metadata"),
        ({"metadata": {"x": float("nan")}}, InvalidArgument, "metadata"),
        ({"idempotency_key": ""}, InvalidArgument, "idempotency_key"),
        ({"idempotency_key": 7}, InvalidArgument, "idempotency_key"),
    ],
    ids=str,
)
def test_a_decision_that_cannot_be_recorded_is_refused_and_can_be_made_again(
    make_squid: MakeSquid, options: dict[str, Any], error: type[SquidError], named: str
) -> None:
    squid = make_squid(review())
    run_id = squid.start("review").run_id
    written = state_of(squid.journal)
    with pytest.raises(error, match=named):
        squid.approve(run_id, **{"actor": "ada", **options})
    assert state_of(squid.journal) == written
    squid.approve(run_id, actor="ada")


def test_resuming_needs_nobodys_name(make_squid: MakeSquid) -> None:
    squid = make_squid(gate())
    run_id = squid.start("gate").run_id
    squid.resume(run_id)
    assert squid.inspect_run(run_id).command_history[-1].actor is None


SECRETS = {"name": "ada", "session_token": "s3cret", "deep": [{"client_secret": "s3cret"}]}


@pytest.mark.parametrize("name", COMMANDS)
def test_secrets_in_what_a_person_says_never_reach_the_journal(
    make_squid: MakeSquid, clock: VirtualClock, name: str
) -> None:
    squid = make_squid([review(), gate()])
    run_id = squid.start(COMMANDS[name][0]).run_id
    getattr(squid, name)(run_id, actor=SECRETS, metadata=SECRETS, idempotency_key="k")
    finish(squid, clock, run_id)
    redacted = {"name": "ada", "session_token": "[REDACTED]", "deep": [{"client_secret": "[REDACTED]"}]}
    command = squid.inspect_run(run_id).command_history[-1]
    assert (command.actor, command.metadata) == (redacted, redacted)
    assert "s3cret" not in repr(squid.journal.read_run(run_id)), "actor and metadata are redacted when written"
    assert "s3cret" not in repr(squid.inspect_run(run_id, include_history=True).to_dict())
    assert getattr(squid, name)(run_id, actor=SECRETS, metadata=SECRETS, idempotency_key="k").repeated


def test_the_output_of_an_approval_is_the_decision(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(review())
    run_id = squid.start("review").run_id
    squid.reject(run_id, actor={"name": "ada"}, comment="too dear")
    expected = {
        "decision": "rejected",
        "actor": {"name": "ada"},
        "decided_at": clock.now().isoformat(),
        "comment": "too dear",
    }
    resolved = facts(squid, run_id, "manual_step_resolved")[0]
    assert (resolved.action, resolved.result) == ("rejected", expected)
    assert resolved.transition["error"]["decision"] == expected
    assert finish(squid, clock, run_id).outputs["refuse"] == ["rejected", expected]


def test_successors_stay_on_the_runs_own_queue_whoever_decides(make_squid: MakeSquid) -> None:
    squid = make_squid([review(), gate()], queue="here")
    run_id = squid.start("gate", queue="there").run_id
    make_squid([gate()], queue="elsewhere").resume(run_id)
    assert facts(squid, run_id, "attempt_scheduled")[0].queue == "there"
    assert squid.execute_next("here") is None
    assert drain(squid, "there") == 1
    assert squid.inspect_run(run_id).queue == "there"


def test_commands_are_told_in_the_order_in_which_they_came(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(review())
    run_id = squid.start("review", actor="web").run_id
    clock.advance(timedelta(minutes=1))
    squid.approve(run_id, actor="ada")
    clock.advance(timedelta(minutes=1))
    squid.cancel(run_id, actor="bob")
    commands = [(command.signal_type, command.actor) for command in squid.inspect_run(run_id).command_history]
    assert commands == [("start_run", "web"), ("approve_run", "ada"), ("cancel_run", "bob")]
    assert run_facts(squid, run_id)[-1] == "run_terminal"


def test_the_same_key_may_serve_different_commands_and_runs(make_squid: MakeSquid) -> None:
    squid = make_squid(review())
    one, two = (squid.start("review").run_id for _ in range(2))
    assert not squid.approve(one, actor="ada", idempotency_key="k").repeated
    assert not squid.approve(two, actor="ada", idempotency_key="k").repeated
    assert not squid.cancel(one, idempotency_key="k").repeated
