"""CloudEvents in and out, with a list of the sources that may ask for something."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squid_dagster import Signal, SignalType, from_cloudevent, to_cloudevent
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    InvalidArgument,
)
from tests.facts import T0
from tests.runtime.commands.signal_forms import asked, orders
from tests.runtime.runs import MakeSquid, facts, state_of


def event(**changes: Any) -> dict[str, Any]:
    made = to_cloudevent(asked(SignalType.CANCEL_RUN, {"run_id": "r-1"}, actor="ada"), "e-1", T0)
    return {name: value for name, value in {**made, **changes}.items() if value is not ...}


def data(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**event()["data"], **changes}.items() if value is not ...}


def test_a_signal_leaves_as_a_cloudevent_of_version_1() -> None:
    signal = asked(SignalType.APPROVE_RUN, {"run_id": "r-1"}, actor={"name": "ada"}, comment="ok", idempotency_key="k")
    at = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert to_cloudevent(signal, "e-1", at) == {
        "specversion": "1.0",
        "id": "e-1",
        "source": "/squid/runtime/commands",
        "type": "squid.runtime.command.approve_run",
        "subject": "r-1",
        "time": "2026-01-01T00:00:00+00:00",
        "datacontenttype": "application/vnd.squid.runtime-signal+json",
        "data": {
            "type": "approve_run",
            "payload": {"run_id": "r-1"},
            "metadata": {},
            "actor": {"name": "ada"},
            "comment": "ok",
            "idempotency_key": "k",
            "occurred_at": "2026-01-01T00:00:00+00:00",
        },
    }


def test_the_subject_is_the_run_or_the_workflow() -> None:
    start = to_cloudevent(asked(SignalType.START_RUN, {"workflow": "orders"}), "e", T0)
    assert start["subject"] == "orders"
    assert event()["subject"] == "r-1"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


objects = st.dictionaries(st.text(max_size=10), json_values, max_size=4)


signals = st.builds(
    Signal,
    type=st.sampled_from([kind for kind in SignalType if kind is not SignalType.START_CHILD_RUN]),
    payload=objects,
    metadata=objects,
    idempotency_key=st.none() | st.text(min_size=1),
    actor=st.none() | st.text(min_size=1) | objects,
    comment=st.none() | st.text(min_size=1),
)


@given(signals, st.text(min_size=1, max_size=500), st.datetimes(timezones=st.just(UTC)))
def test_a_signal_comes_back_from_a_cloudevent_as_it_went(signal: Signal, event_id: str, at: datetime) -> None:
    key = signal.idempotency_key
    if key is None and not (signal.type == "start_cron" and signal.payload.get("intended_window")):
        key = f"/squid/runtime/commands {event_id}"
    expected = replace(signal, caller_time=at, idempotency_key=key)
    assert from_cloudevent(json.loads(json.dumps(to_cloudevent(signal, event_id, at)))) == expected


@given(st.recursive(json_values, lambda inner: st.dictionaries(st.sampled_from(sorted(event())), inner), max_leaves=5))
def test_no_json_whatever_breaks_the_reading(thing: Any) -> None:
    if isinstance(thing, dict):
        with pytest.raises(InvalidArgument):
            from_cloudevent({**thing, "specversion": "1.0"})
    with pytest.raises(InvalidArgument):
        from_cloudevent(thing)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (event(specversion="0.3"), "specversion.*0.3"),
        (event(specversion=...), "specversion"),
        (event(type="squid.runtime.command.drop_run"), "type.*drop_run"),
        (event(type="com.example.cancel_run"), "type"),
        (event(type=["x"]), "type"),
        (event(type={"x": 1}), "type"),
        (event(id=...), "id"),
        (event(id=""), "id"),
        (event(source=...), "source"),
        (event(source=7), "source"),
        (event(source="/desk"), "source.*desk.*known ones are '/squid/runtime/commands'.*event_sources"),
        (event(id="x" * 1000), "id.*idempotency_key"),
        (event(time="yesterday"), "time.*yesterday"),
        (event(time="2026-01-01T00:00:00"), "time.*timezone"),
        (event(time=7), "time"),
        (event(data=data(occurred_at="noon")), "occurred_at.*noon"),
        (event(type="squid.runtime.command.start_child_run"), "type.*start_child_run"),
        (event(data=data(type="start_child_run")), "type.*start_child_run"),
        (event(datacontenttype="text/xml"), "datacontenttype.*xml"),
        (event(data=...), "data"),
        (event(data="{}"), "data"),
        (event(subject="r-2"), "subject.*r-2.*r-1"),
        (event(type="squid.runtime.command.approve_run"), "data.type.*cancel_run.*approve_run"),
        (event(data=data(force=True)), "force"),
        (event(data=data(payload=[1])), "payload"),
        (event(data=data(type=...)), "type"),
        (event(data=data(actor=7)), "actor"),
    ],
    ids=str,
)
def test_a_cloudevent_that_does_not_fit_names_the_field(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        from_cloudevent(changed)


@pytest.mark.parametrize(
    "changed",
    [
        event(subject=...),
        event(time=...),
        event(datacontenttype=...),
        event(datacontenttype="application/json"),
        event(traceparent="00-ab-cd-01", dataschema="https://example.org/schema"),
        event(data=data(occurred_at=..., metadata=...)),
    ],
    ids=str,
)
def test_what_the_standard_leaves_open_is_left_open(changed: dict[str, Any]) -> None:
    signal = from_cloudevent(changed)
    key = "/squid/runtime/commands e-1"
    expected = asked(SignalType.CANCEL_RUN, {"run_id": "r-1"}, actor="ada", idempotency_key=key)
    assert replace(signal, caller_time=None) == expected
    assert signal.caller_time == T0


def order_event(event_id: str, source: str = "/shop", amount: int = 1, **fields: Any) -> dict[str, Any]:
    """Return an event of another system that starts a run."""
    content = {"type": "start_run", "payload": {"workflow": "orders", "input": {"amount": amount}}, **fields}
    about = {"specversion": "1.0", "id": event_id, "source": source, "time": "2020-02-29T12:00:00+02:00"}
    return {**about, "type": "squid.runtime.command.start_run", "data": content}


def test_only_events_of_known_sources_are_taken(make_squid: MakeSquid) -> None:
    squid = make_squid(orders(), event_sources=["/shop", "https://example.org/desk"])
    for unknown in ("/shop/other", "/Shop", "/squid/runtime/commands"):
        with pytest.raises(InvalidArgument, match=r"source.*'/shop', 'https://example.org/desk'"):
            squid.apply_signal(order_event("e-1", unknown))
    assert state_of(squid.journal) == []
    for known in ("/shop", "https://example.org/desk"):
        assert not squid.apply_signal(order_event("e-1", known)).repeated
    with pytest.raises(InvalidArgument, match="known ones are none"):
        make_squid(orders(), event_sources=[]).apply_signal(order_event("e-1"))


@pytest.mark.parametrize("sources", ["/shop", 7, None, [7], [""], ["a b"], ["a\n"]])
def test_sources_that_are_no_list_of_sources_are_refused(make_squid: MakeSquid, sources: Any) -> None:
    with pytest.raises(InvalidArgument, match="event_sources"):
        make_squid(orders(), event_sources=sources)


def test_source_and_id_of_an_event_are_its_identity(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders(), event_sources=["/shop", "/desk"])
    first = squid.apply_signal(order_event("e-1"))
    clock.advance(timedelta(days=400))
    again = squid.apply_signal(order_event("e-1"))
    assert (again.run_id, again.received_at, again.repeated) == (first.run_id, first.received_at, True)
    with pytest.raises(ConflictingCommand, match="/shop e-1"):
        squid.apply_signal(order_event("e-1", amount=2))
    others = [squid.apply_signal(order_event("e-2")), squid.apply_signal(order_event("e-1", "/desk"))]
    assert len({first.run_id, *(receipt.run_id for receipt in others)}) == 3
    # commands on a run as well
    stop = to_cloudevent(asked(SignalType.CANCEL_RUN, {"run_id": first.run_id}), "e-1", T0) | {"source": "/desk"}
    assert [squid.apply_signal(stop).repeated for _ in range(3)] == [False, True, True]


def test_a_key_that_an_event_brings_is_its_identity(make_squid: MakeSquid) -> None:
    squid = make_squid(orders(), event_sources=["/shop"])
    first = squid.apply_signal(order_event("e-1", idempotency_key="order-7"))
    assert first.idempotency_key == "order-7"
    assert squid.apply_signal(order_event("e-2", idempotency_key="order-7")).run_id == first.run_id
    assert squid.start("orders", {"amount": 1}, idempotency_key="order-7").run_id == first.run_id


def test_a_window_is_the_identity_of_the_events_that_start_it(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    window = {"start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-01T01:00:00Z"}
    first = squid.start_cron("orders", "nightly", intended_window=window)
    payload = {"workflow": "orders", "trigger": "nightly", "intended_window": window}
    signal = asked(SignalType.START_CRON, payload)
    assert {squid.apply_signal(to_cloudevent(signal, event_id, T0)).run_id for event_id in ("e-1", "e-2")} == {
        first.run_id
    }
    ticks = asked(SignalType.START_CRON, {"workflow": "orders", "trigger": "nightly"})
    runs = [squid.apply_signal(to_cloudevent(ticks, event_id, T0)).run_id for event_id in ("e-1", "e-1", "e-2")]
    assert (runs[0], len(set(runs))) == (runs[1], 2)


def test_the_time_of_an_event_is_kept_as_the_callers_and_decides_nothing(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(orders(), event_sources=["/shop"])
    receipt = squid.apply_signal(order_event("e-1"))
    assert receipt.received_at == clock.now()
    (fact,) = facts(squid, receipt.run_id, "run_signal_received")
    said = datetime(2020, 2, 29, 10, tzinfo=UTC)
    assert (fact.caller_time, fact.occurred_at) == (said, clock.now())
    assert squid.inspect_run(receipt.run_id).command_history[0].caller_time == said
    plain = squid.start("orders").run_id
    assert facts(squid, plain, "run_signal_received")[0].caller_time is None
    untimed = {name: value for name, value in order_event("e-2").items() if name != "time"}
    assert facts(squid, squid.apply_signal(untimed).run_id, "run_signal_received")[0].caller_time is None


def test_secrets_in_a_refused_event_are_not_repeated_in_full(make_squid: MakeSquid) -> None:
    squid: Squid = make_squid(orders())
    with pytest.raises(InvalidArgument) as refused:
        squid.apply_signal(event(data=data(password="hunter2")))
    assert "hunter2" not in str(refused.value)
