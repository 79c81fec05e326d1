"""A journal on Postgres in which `run-1` stands where a page of the runbook begins: one state for every reason.

The histories are those that the tests of inspection explain; here they are moved to the present, and written down.
"""

import os
import re
import socket
from datetime import datetime, timedelta
from typing import Any

from squid_dagster.inspection.explain.reasons import RunReason
from squid_dagster.journal import quarantine
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.facts.base import FactBase
from squid_dagster.runtime.adapters import adapters
from tests.inspection.reason_histories import HISTORIES
from tests.inspection.run_histories import changed_order, order, start_history
from tests.journal.access import EVERYTHING
from tests.recovery.damage import spoil

SHOP = """\
from tests.inspection.run_histories import order, saga

orders, trips = order(), saga()
"""
CHANGED_SHOP = """\
from tests.inspection.run_histories import changed_order

orders = changed_order()
"""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_WORKER = "w-1"


def bring_about(storage: PostgresStorage, reason: RunReason) -> None:
    """Write the history of `run-1` that leads to this reason, as if it had just happened, and announce workers."""
    damaged = reason in (RunReason.UNREADABLE_ENTRY, RunReason.QUARANTINED)
    if damaged:
        facts, known = start_history(order()), dict[str, Any]()
    else:
        facts, known = HISTORIES[reason]()
    shift = storage.now() - facts.now
    for entry in facts.storage.read_between(0, EVERYTHING):
        assert isinstance(entry.fact, FactBase)
        moved = _moved(entry.fact.model_dump(), shift)
        storage.append(entry.thread, [type(entry.fact).model_validate(moved)])
    if damaged:
        spoil(storage, facts.run_id)
    if reason is RunReason.QUARANTINED:
        quarantine(storage, storage.read_run(facts.run_id))
    definitions = (changed_order().freeze().key,) if reason is RunReason.HELD else None
    liveness = adapters(storage).liveness
    for worker in known.get("workers") or [_AnyValue()]:
        liveness.report(
            WorkerRow(
                worker_id=worker.worker_id,
                queues=worker.queues,
                definitions=worker.definitions if definitions is None else definitions,
                host=socket.gethostname(),
                pid=os.getpid(),
            )
        )


class _AnyValue:
    worker_id, queues, definitions = _WORKER, ("default",), None


def _moved(value: Any, shift: timedelta) -> Any:
    """Return a value with all of its times that much later."""
    match value:
        case datetime():
            return value + shift
        case str() if _TIME.fullmatch(value):
            return (datetime.fromisoformat(value) + shift).isoformat()
        case dict():
            return {name: _moved(item, shift) for name, item in value.items()}
        case list() | tuple():
            return [_moved(item, shift) for item in value]
        case _:
            return value
