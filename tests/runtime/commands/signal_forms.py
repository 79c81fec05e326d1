"""A workflow that takes every command, and signals in their forms: object, JSON, CloudEvent."""

import json
from typing import Any

from pydantic import BaseModel

from squid_dagster import Signal, SignalType, to_cloudevent
from squid_dagster.workflow import Cron, Workflow
from tests.facts import T0


class Order(BaseModel):
    amount: int = 1


def orders() -> Workflow:
    wf = Workflow("orders", payload=Order, version="1", triggers=[Cron("0 0 * * *", name="nightly")])
    wf.approval("ask")
    wf.pause("stand")
    wf.step(name="act", max_deliveries=1)(lambda: None)
    wf.route("ask", to="stand")
    wf.route("ask", on="error", to="fail")
    wf.route("stand", to="act")
    wf.route("act", to="complete")
    return wf


def asked(kind: SignalType, payload: dict[str, Any], **fields: Any) -> Signal:
    return Signal(type=kind, payload=payload, **fields)


def in_form(signal: Signal, form: str) -> Any:
    """Return a signal as an object, as JSON, or as a CloudEvent that was serialized."""
    event = json.loads(json.dumps(to_cloudevent(signal, "event-1", T0)))
    return {"object": signal, "json": event["data"], "cloudevent": event}[form]


FORMS = ["object", "json", "cloudevent"]
