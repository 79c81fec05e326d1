"""Calls of every command that can be asked for as data."""

from collections.abc import Callable
from typing import Any

from squid_dagster import Signal, to_cloudevent
from tests.api.calls.squid import retry_call
from tests.api.fixture import OPTIONS, ApiFixture, numbers
from tests.api.wrong_values import Call, Make
from tests.facts import T0


def _dead_letter(w: ApiFixture) -> dict[str, Any]:
    return {name: value for name, value in retry_call(w).kwargs.items() if name in ("run_id", "runnable_key")}


def _external(w: ApiFixture) -> dict[str, Any]:
    if w.outside is None:
        run_id = w.squid.start("outside").run_id
        w.outside = {"run_id": run_id, "runnable_key": w.squid.inspect_run(run_id).attempts[0].runnable_key}
    return {**w.outside}


def _signals() -> dict[str, Callable[[ApiFixture], dict[str, Any]]]:
    """Return a valid payload with all of its fields for every kind of signal."""

    def start(w: ApiFixture) -> dict[str, Any]:
        return {"workflow": "orders", "trigger": None, "input": {}, "queue": None, "priority": None, "version": None}

    def start_cron(w: ApiFixture) -> dict[str, Any]:
        return {
            "workflow": "nightly",
            "trigger": "night",
            "signal_id": f"s-{next(numbers)}",
            "intended_window": None,
            "queue": None,
            "input": None,
        }

    def note(w: ApiFixture) -> dict[str, Any]:
        return {**_external(w), "launcher": "dagster", "external_run_id": None, "launch": None}

    outcome = {"succeeded": True, "result": None, "error": None, "final": None, "external_run_id": None}
    decision = {"step": None, "actor": None, "comment": None}
    return {
        "start_run": start,
        "start_cron": start_cron,
        "replay_run": lambda w: {"run_id": w.open, "allow_irreversible": True},
        "approve_run": lambda w: {"run_id": w.waiting, **decision},
        "reject_run": lambda w: {"run_id": w.waiting, **decision},
        "resume_run": lambda w: {"run_id": w.paused, **decision},
        "cancel_run": lambda w: {"run_id": w.open, "cascade": True},
        "retry_attempt": _dead_letter,
        "external_requested": lambda w: {**note(w), "launch": 1},
        "external_started": lambda w: {**note(w), "external_run_id": "x-1"},
        "external_completed": lambda w: {**_external(w), **outcome},
    }


def signal_calls() -> dict[str, Make]:
    """Return the calls of every signal: by the fields of its payload, by its own, and by those of a CloudEvent."""
    made: dict[str, Make] = {}
    for kind, payload in _signals().items():

        def fields(w: ApiFixture, kind: str = kind, payload: Any = payload) -> Call:
            def apply(**given: Any) -> Any:
                return w.squid.apply_signal({"type": kind, "payload": given, "actor": "ada"})

            return Call(apply, payload(w))

        def envelope(w: ApiFixture, kind: str = kind, payload: Any = payload) -> Call:
            def apply(**given: Any) -> Any:
                return w.squid.apply_signal(given)

            return Call(apply, {"type": kind, "payload": payload(w), "occurred_at": T0.isoformat(), **OPTIONS})

        def model(w: ApiFixture, kind: str = kind, payload: Any = payload) -> Call:
            def apply(**given: Any) -> Any:
                return w.squid.apply_signal(Signal(**given))

            return Call(apply, {"type": kind, "payload": payload(w), "caller_time": T0, **OPTIONS})

        def event(w: ApiFixture, kind: str = kind, payload: Any = payload) -> Call:
            def apply(**given: Any) -> Any:
                return w.squid.apply_signal({name: value for name, value in given.items() if value is not None})

            signal = Signal(type=kind, payload=payload(w), actor="ada")
            made = to_cloudevent(signal, f"e-{next(numbers)}", T0)
            return Call(apply, {**made, "subject": made["subject"], "an_extension": "x"})

        made |= {
            f"{kind}: payload": fields,
            f"{kind}: fields": envelope,
            f"{kind}: Signal": model,
            f"{kind}: event": event,
        }
    return made
