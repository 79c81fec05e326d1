"""Commands as data: the envelope and its JSON form, applied as the methods of `Squid` are."""

from typing import Any

import pytest

from squid_dagster import SignalType, signal_from_json
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    InvalidArgument,
    InvalidPayload,
    InvalidTransition,
    NotFound,
)
from tests.runtime.commands.signal_forms import FORMS, asked, in_form, orders
from tests.runtime.runs import MakeSquid, drain, facts, finish, seconds, state_of

WINDOW = {"start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-02T00:00:00Z"}


@pytest.mark.parametrize("form", FORMS)
def test_every_command_can_be_asked_for_as_data(make_squid: MakeSquid, clock: VirtualClock, form: str) -> None:
    squid = make_squid(orders())

    def apply(kind: SignalType, payload: dict[str, Any], **fields: Any) -> str:
        fields = {"idempotency_key": f"{kind}-1", "actor": "ada", "comment": "by data", "metadata": {"n": 1}, **fields}
        receipt = squid.apply_signal(in_form(asked(kind, payload, **fields), form))
        assert receipt.signal_type == kind
        history = squid.inspect_run(receipt.run_id).command_history
        command = [recorded for recorded in history if recorded.signal_type == kind][-1]
        assert (command.actor, command.comment, command.metadata) == ("ada", "by data", {"n": 1})
        return receipt.run_id

    start = {
        "workflow": "orders",
        "trigger": "manual",
        "input": {"amount": 3},
        "queue": "q",
        "priority": 2,
        "version": "1",
    }
    run_id = apply(SignalType.START_RUN, start)
    started = facts(squid, run_id, "run_started")[0]
    assert (started.input, started.queue, started.priority) == ({"amount": 3}, "q", 2)
    assert apply(SignalType.APPROVE_RUN, {"run_id": run_id}) == run_id
    assert apply(SignalType.RESUME_RUN, {"run_id": run_id}) == run_id
    squid.dispatch_agent("q").claim_next("w", lease=seconds(1))
    clock.advance(seconds(2))
    assert squid.execute_next("q") is None
    key = f"{run_id}:act:1:1"
    assert apply(SignalType.RETRY_ATTEMPT, {"run_id": run_id, "runnable_key": key}) == run_id
    assert drain(squid, "q") == 1
    assert squid.inspect_run(run_id).status == "completed"
    replayed = apply(SignalType.REPLAY_RUN, {"run_id": run_id, "allow_irreversible": True})
    assert apply(SignalType.REJECT_RUN, {"run_id": replayed}) == replayed
    assert squid.inspect_run(replayed).status == "failed"
    nightly = apply(SignalType.START_CRON, {"workflow": "orders", "trigger": "nightly", "intended_window": WINDOW})
    assert apply(SignalType.CANCEL_RUN, {"run_id": nightly, "cascade": True}) == nightly
    assert squid.inspect_run(nightly).status == "cancelled"


@pytest.mark.parametrize("form", FORMS)
def test_a_signal_that_comes_twice_is_one_command_and_the_method_knows_its_key(
    make_squid: MakeSquid, form: str
) -> None:
    squid = make_squid(orders())
    signal = asked(SignalType.START_RUN, {"workflow": "orders", "input": {"amount": 3}}, idempotency_key="k")
    first = squid.apply_signal(in_form(signal, form))
    written = state_of(squid.journal)
    again = squid.apply_signal(in_form(signal, form))
    assert (again.run_id, again.received_at, again.repeated) == (first.run_id, first.received_at, True)
    assert squid.start("orders", {"amount": 3}, idempotency_key="k").run_id == first.run_id
    other = asked(SignalType.START_RUN, {"workflow": "orders", "input": {"amount": 4}}, idempotency_key="k")
    with pytest.raises(ConflictingCommand):
        squid.apply_signal(in_form(other, form))
    assert state_of(squid.journal) == written


def test_a_command_that_was_recorded_can_be_applied_again_as_it_was(make_squid: MakeSquid, clock: VirtualClock) -> None:
    # What `command_history` holds is what `apply_signal` takes: an export can be imported.
    squid = make_squid(orders())
    run_id = squid.start("orders", {"amount": 2}, idempotency_key="s", actor="ada").run_id
    squid.approve(run_id, actor="ada", comment="ok", idempotency_key="a")
    squid.resume(run_id, idempotency_key="r", actor="bob")
    finish(squid, clock, run_id)
    replayed = squid.replay(run_id, idempotency_key="p").run_id
    squid.cancel(replayed, idempotency_key="c")
    cron = squid.start_cron("orders", "nightly", intended_window=WINDOW).run_id
    for started in (run_id, replayed, cron):
        for fact in facts(squid, started, "run_signal_received"):
            recorded = {name: value for name, value in fact.model_dump(mode="json").items() if name in _RECORDED}
            receipt = squid.apply_signal(
                {"type": fact.signal_type, **{k: v for k, v in recorded.items() if v is not None}}
            )
            assert (receipt.run_id, receipt.repeated) == (started, True)


_RECORDED = ("payload", "metadata", "idempotency_key", "actor", "comment")


def test_what_a_command_refuses_is_refused_as_data_too(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id = squid.start("orders").run_id
    written = state_of(squid.journal)
    for signal, error in (
        (asked(SignalType.START_RUN, {"workflow": "nothing"}), NotFound),
        (asked(SignalType.START_RUN, {"workflow": "orders", "input": {"amount": "x"}}), InvalidPayload),
        (asked(SignalType.APPROVE_RUN, {"run_id": "nothing"}, actor="ada"), NotFound),
        (asked(SignalType.APPROVE_RUN, {"run_id": run_id}), InvalidArgument),
        (asked(SignalType.RESUME_RUN, {"run_id": run_id}), InvalidTransition),
        (asked(SignalType.RETRY_ATTEMPT, {"run_id": run_id}), InvalidTransition),
        (asked(SignalType.START_CRON, {"workflow": "orders", "trigger": "nightly"}), InvalidArgument),
    ):
        with pytest.raises(error):
            squid.apply_signal(signal)
    assert state_of(squid.journal) == written


@pytest.mark.parametrize(
    ("kind", "payload", "named"),
    [
        (SignalType.START_RUN, {}, "workflow"),
        (SignalType.START_RUN, {"workflow": 7}, "workflow.*7"),
        (SignalType.START_RUN, {"workflow": "orders", "run_id": "mine"}, "run_id"),
        (SignalType.START_RUN, {"workflow": "orders", "input": [1]}, "input"),
        (SignalType.START_RUN, {"workflow": "orders", "priority": "high"}, "priority"),
        (SignalType.START_RUN, {"workflow": "orders", "priority": True}, "priority"),
        (SignalType.START_CRON, {"workflow": "orders", "signal_id": "s"}, "trigger"),
        (SignalType.START_CRON, {"workflow": "orders", "trigger": "nightly", "signal_id": "s", "now": 1}, "now"),
        (SignalType.CANCEL_RUN, {"run_id": "r", "cascade": "yes"}, "cascade"),
        (SignalType.CANCEL_RUN, {"run_id": "r", "force": True}, "force"),
        (SignalType.REPLAY_RUN, {"run_id": "r", "allow_irreversible": "true"}, "allow_irreversible"),
        (SignalType.REPLAY_RUN, {"run_id": None}, "run_id"),
        (SignalType.APPROVE_RUN, {"run_id": "r", "decision": "no"}, "decision"),
        (SignalType.RETRY_ATTEMPT, {"runnable_key": "k"}, "run_id"),
        (SignalType.START_CHILD_RUN, {"workflow": "orders"}, "start_child_run"),
    ],
    ids=str,
)
def test_a_payload_field_that_is_missing_unknown_or_wrong_is_named(
    make_squid: MakeSquid, kind: SignalType, payload: dict[str, Any], named: str
) -> None:
    squid = make_squid(orders())
    with pytest.raises(InvalidArgument, match=named):
        squid.apply_signal(asked(kind, payload, actor="ada"))
    assert state_of(squid.journal) == []


def test_an_input_that_a_cron_start_does_not_have_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    payload = {"workflow": "orders", "trigger": "nightly", "signal_id": "s"}
    with pytest.raises(InvalidArgument, match="input"):
        squid.apply_signal(asked(SignalType.START_CRON, {**payload, "input": {"amount": 9}}))
    assert state_of(squid.journal) == []
    squid.apply_signal(asked(SignalType.START_CRON, {**payload, "input": {}}))


@pytest.mark.parametrize("thing", [None, 7, "start_run", ["start_run"], object()])
def test_what_is_no_signal_is_refused(make_squid: MakeSquid, thing: Any) -> None:
    with pytest.raises(InvalidArgument, match=type(thing).__name__):
        make_squid(orders()).apply_signal(thing)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"type": "drop_run"}, "drop_run"),
        ({"type": None}, "type"),
        ({"type": ["start_run"]}, "type"),
        ({"payload": [1]}, "payload"),
        ({"payload": None}, "payload"),
        ({"metadata": "m"}, "metadata"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": 7}, "idempotency_key"),
        ({"comment": 7}, "comment"),
        ({"actor": [1]}, "actor"),
        ({"idempotencyKey": "k"}, "idempotencyKey"),
        ({"run_id": "r"}, "run_id"),
    ],
    ids=str,
)
def test_a_field_of_the_json_form_that_does_not_fit_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        signal_from_json({"type": "start_run", "payload": {"workflow": "orders"}, **change})
