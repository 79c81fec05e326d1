"""Calls of the functions of the protocol, of inspection and of testing."""

from datetime import timedelta
from typing import Any

from squid_dagster import from_cloudevent, inspection, protocol, signal_from_json, testing, to_cloudevent
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import run_thread
from squid_dagster.workflow.registry import Registry
from tests.api.fixture import workflows
from tests.api.wrong_values import Call, Make
from tests.facts import T0, started


def protocol_calls() -> dict[str, Make]:
    """Return the calls of the protocol's functions."""
    fact = started("r")
    unit = RunUnit.fold([Entry(run_thread("r"), 1, 1, fact)])
    joined = {"run": unit.run, "dispatch": unit.dispatch}
    stored = {"thread": run_thread("r"), "type_name": "run_started", "run_id": "r", "occurred_at": T0, "data": "{}"}
    visit = {"run_id": "r", "step": "s", "visit": 1}
    return {
        "decode": lambda w: Call(protocol.decode, stored),
        "definition_key": lambda w: Call(protocol.definition_key, {"workflow": "w", "fingerprint": "f"}),
        "dispatch_thread": lambda w: Call(protocol.dispatch_thread, {"queue": "q"}),
        "encode": lambda w: Call(protocol.encode, {"fact": fact, "max_bytes": 10_000}),
        "idempotency_key": lambda w: Call(protocol.idempotency_key, visit),
        "parse_fact": lambda w: Call(protocol.parse_fact, {"value": protocol.to_json(fact)}),
        "parse_thread": lambda w: Call(protocol.parse_thread, {"thread_id": run_thread("r")}),
        "planned_but_unscheduled": lambda w: Call(protocol.planned_but_unscheduled, joined),
        "redact": lambda w: Call(protocol.redact, {"value": {"a": 1}}),
        "results_ready_to_apply": lambda w: Call(protocol.results_ready_to_apply, joined),
        "run_index_thread": lambda w: Call(protocol.run_index_thread, {"workflow": "w"}),
        "run_thread": lambda w: Call(protocol.run_thread, {"run_id": "r"}),
        "runnable_key": lambda w: Call(protocol.runnable_key, {**visit, "attempt_number": 1}),
        "to_json": lambda w: Call(protocol.to_json, {"fact": fact}),
        "unfenced_attempts": lambda w: Call(protocol.unfenced_attempts, joined),
    }


def event_calls() -> dict[str, Make]:
    """Return the calls of the functions about signals as data."""
    data = {"type": "start_run", "payload": {"workflow": "orders"}}
    signal = signal_from_json(data)
    event = {
        "specversion": "1.0",
        "type": "squid.runtime.command.start_run",
        "source": "/shop",
        "id": "1",
        "data": data,
    }
    return {
        "from_cloudevent": lambda w: Call(from_cloudevent, {"event": event, "sources": ["/shop"]}),
        "signal_from_json": lambda w: Call(signal_from_json, {"data": data}),
        "to_cloudevent": lambda w: Call(to_cloudevent, {"signal": signal, "event_id": "1", "occurred_at": T0}),
    }


def inspection_calls() -> dict[str, Make]:
    return {
        "list_runs": lambda w: Call(inspection.list_runs, {"queries": w.runtime.queries, "registry": Registry([])}),
    }


def testing_calls() -> dict[str, Make]:
    def squid() -> Any:
        made = testing.make_squid(workflows())
        made.start("orders", {}, run_id="open")
        return made

    return {
        "make_squid": lambda w: Call(testing.make_squid, {"workflows": workflows()}),
        "advance": lambda w: Call(testing.advance, {"squid": squid(), "by": timedelta(1)}),
        "drain": lambda w: Call(testing.drain, {"squid": squid()}),
        "execute_until_blocked": lambda w: Call(testing.execute_until_blocked, {"squid": squid(), "run_id": "open"}),
        "golden": lambda w: Call(testing.golden, {"source": squid(), "run_id": "open"}),
        "assert_invariants": lambda w: Call(testing.assert_invariants, {"source": squid()}),
        "check_invariants": lambda w: Call(testing.check_invariants, {"source": squid()}),
        "simulate": lambda w: Call(
            testing.simulate,
            {"workflows": workflows()[:1], "payloads": [{}], "schedules": 1},
            {
                "schedules": "as many as one wants",
                "payloads": "of the runs",
                "resources": "of the steps",
                "approves": "a person",
            },
        ),
        "violations": lambda w: Call(testing.violations, {"entries": []}),
    }
