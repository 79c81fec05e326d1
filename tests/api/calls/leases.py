"""Calls of every lease backend."""

from collections.abc import Callable
from typing import Any

from squid_dagster import JournalLeases, QueueLeases, work_one_lease
from squid_dagster.backlog import BacklogLeases
from squid_dagster.backlog.lease_backend import BacklogQueue
from tests.api.fixture import ApiFixture
from tests.api.wrong_values import Call, Make


def lease_calls() -> dict[str, Make]:
    """Return the calls of every lease backend, on an attempt that it has claimed."""
    made: dict[str, Make] = {
        "JournalLeases": lambda w: Call(JournalLeases, {"runtime": w.runtime}),
        "QueueLeases": lambda w: Call(QueueLeases, {"runtime": w.runtime, "queue": BacklogQueue(w.cards)}),
        "BacklogLeases": lambda w: Call(BacklogLeases, {"runtime": w.runtime, "backlog": w.cards}),
        "work_one_lease": lambda w: Call(
            work_one_lease,
            {"runtime": w.runtime, "backend": JournalLeases(w.runtime), "queue": w.queue, "owner": "ada"},
        ),
    }
    for name, backend in _BACKENDS.items():
        made |= _backend_calls(name, backend)
    for name in ("QueueLeases", "BacklogLeases"):
        made[f"{name}.offer"] = lambda w, name=name: Call(_BACKENDS[name](w).offer, {"queue": w.queue})  # type: ignore[misc]
    return made


def _queue_leases(w: ApiFixture) -> QueueLeases:
    return QueueLeases(w.runtime, BacklogQueue(w.cards))


_BACKENDS: dict[str, Callable[[ApiFixture], Any]] = {
    "JournalLeases": lambda w: JournalLeases(w.runtime),
    "QueueLeases": _queue_leases,
    "BacklogLeases": lambda w: BacklogLeases(w.runtime, w.cards),
}


def _backend_calls(name: str, backend: Callable[[ApiFixture], Any]) -> dict[str, Make]:
    def with_lease(method: str, **arguments: Any) -> Make:
        def make(w: ApiFixture) -> Call:
            leases = backend(w)
            if w.lease is None:
                (w.lease,) = leases.claim(w.queue, "ada")
            # An outcome that cannot be written down is on record as a failure that says so.
            return Call(getattr(leases, method), {"lease": w.lease, **arguments}, on_record=frozenset(arguments))

        return make

    return {
        f"{name}.claim": lambda w: Call(backend(w).claim, {"queue": w.queue, "owner": "ada"}),
        f"{name}.heartbeat": with_lease("heartbeat"),
        f"{name}.complete": with_lease("complete", result="tea"),
        f"{name}.fail": with_lease("fail", error="no tea"),
        f"{name}.settled": with_lease("settled"),
    }
