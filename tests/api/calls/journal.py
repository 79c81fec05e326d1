"""Calls of a storage, of a dispatch store and of queries."""

import dataclasses
from typing import Any

from squid_dagster import journal
from squid_dagster.journal import Append
from squid_dagster.journal.contract.command_target import CommandTarget
from squid_dagster.protocol.threads import run_thread
from tests.api.fixture import ApiFixture
from tests.api.wrong_values import Call, Make
from tests.facts import started


def storage_calls(name: str) -> dict[str, Make]:
    return {
        f"{name}.append": lambda w: Call(w.storage.append, {"thread": run_thread("r"), "entries": [started("r")]}),
        f"{name}.commit": lambda w: Call(w.storage.commit, {"appends": [Append(run_thread("r"), [started("r")])]}),
        f"{name}.cut": lambda w: Call(w.storage.cut),
        f"{name}.find_commit": lambda w: Call(w.storage.find_commit, {"commit_id": __import__("uuid").uuid4()}),
        f"{name}.read": lambda w: Call(w.storage.read, {"thread": run_thread(w.open)}),
        f"{name}.revision": lambda w: Call(w.storage.revision, {"thread": run_thread(w.open)}),
        f"{name}.read_between": lambda w: Call(w.storage.read_between, {"after": 0, "upto": 5}),
        f"{name}.read_run": lambda w: Call(w.storage.read_run, {"run_id": w.open}),
        f"{name}.put_checkpoint": lambda w: Call(
            w.storage.put_checkpoint, {"thread": run_thread(w.open), "revision": 1, "data": "{}"}
        ),
        f"{name}.get_checkpoint": lambda w: Call(w.storage.get_checkpoint, {"thread": run_thread(w.open)}),
        f"{name}.delete_checkpoint": lambda w: Call(w.storage.delete_checkpoint, {"thread": run_thread(w.open)}),
        f"{name}.delete_thread": lambda w: Call(w.storage.delete_thread, {"thread": run_thread("gone")}),
        f"{name}.now": lambda w: Call(w.storage.now),
    }


def dispatch_calls(name: str) -> dict[str, Make]:
    def settle(w: ApiFixture) -> Call:
        return Call(
            w.runtime.dispatch.settle,
            {"settlements": [journal.Settlement(w.claim.claim.ref, journal.Completed("tea"))]},
        )

    def shown(w: ApiFixture) -> Call:
        def heartbeat(**parts: str) -> Any:
            return w.runtime.dispatch.heartbeat([journal.ClaimRef(**parts)])

        ref = w.claim.claim.ref
        return Call(heartbeat, {f.name: getattr(ref, f.name) for f in dataclasses.fields(ref) if f.init})

    return {
        "ClaimRef": shown,
        f"{name}.claim": lambda w: Call(w.runtime.dispatch.claim, {"queue": w.queue, "owner_id": "ada", "limit": 1}),
        f"{name}.heartbeat": lambda w: Call(w.runtime.dispatch.heartbeat, {"refs": [w.claim.claim.ref]}),
        f"{name}.settle": settle,
        f"{name}.release": lambda w: Call(w.runtime.dispatch.release, {"refs": [w.claim.claim.ref], "reason": "r"}),
        f"{name}.visible": lambda w: Call(w.runtime.dispatch.visible, {"queue": w.queue}),
        f"{name}.expired": lambda w: Call(w.runtime.dispatch.expired, {"queue": w.queue}),
        f"{name}.dead_letter_expired": lambda w: Call(w.runtime.dispatch.dead_letter_expired, {"queue": w.queue}),
        f"{name}.decide": lambda w: Call(
            w.runtime.dispatch.decide,
            {"run_ids": [w.open], "decision": lambda units, now: []},
            {"decision": "what it gives is its own business"},
        ),
        f"{name}.command": lambda w: Call(
            w.runtime.dispatch.command,
            {"targets": [CommandTarget(w.open)], "decision": lambda runs, now: []},
            {"decision": "what it gives is its own business"},
        ),
        f"{name}.start_runs": lambda w: Call(w.runtime.dispatch.start_runs, {"runs": []}),
    }


def query_calls(name: str) -> dict[str, Make]:
    return {
        f"{name}.list_runs": lambda w: Call(
            w.runtime.queries.list_runs, {"where": journal.RunFilter(), "before": None, "limit": 5}
        ),
        f"{name}.get_run": lambda w: Call(w.runtime.queries.get_run, {"run_id": w.open}),
        f"{name}.runs_to_repair": lambda w: Call(w.runtime.queries.runs_to_repair, {"after": "", "limit": 5}),
        f"{name}.runs_to_list": lambda w: Call(w.runtime.queries.runs_to_list, {"limit": 5}),
        f"{name}.dead_letters": lambda w: Call(w.runtime.queries.dead_letters, {"queue": None, "limit": 5}),
        f"{name}.queues": lambda w: Call(w.runtime.queries.queues),
        f"{name}.backlog": lambda w: Call(
            w.runtime.queries.backlog, {"queues": [w.queue], "definitions": None, "limit": 5}
        ),
        f"{name}.children": lambda w: Call(w.runtime.queries.children, {"run_id": w.open}),
        f"{name}.anomalies": lambda w: Call(w.runtime.queries.anomalies, {"run_id": None, "limit": 5}),
        f"{name}.schedule_cursor": lambda w: Call(
            w.runtime.queries.schedule_cursor, {"workflow": "nightly", "trigger": "night"}
        ),
    }
