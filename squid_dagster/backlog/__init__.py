"""Cards: atomic claims, a dependency DAG, every change a fact; also the reference lease backend.

Exported lazily, so that the command line loads a database driver only when it uses a database.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squid_dagster.backlog.backlog import DEFAULT_TTL, Backlog
    from squid_dagster.backlog.card_store import CardRebuild, Stats
    from squid_dagster.backlog.lease_backend import BacklogLeases
    from squid_dagster.protocol.backlog.card import Card, CardStatus

_HOMES = {
    "DEFAULT_TTL": "squid_dagster.backlog.backlog",
    "Backlog": "squid_dagster.backlog.backlog",
    "BacklogLeases": "squid_dagster.backlog.lease_backend",
    "Card": "squid_dagster.protocol.backlog.card",
    "CardStatus": "squid_dagster.protocol.backlog.card",
    "CardRebuild": "squid_dagster.backlog.card_store",
    "Stats": "squid_dagster.backlog.card_store",
}

__all__ = ["DEFAULT_TTL", "Backlog", "BacklogLeases", "Card", "CardRebuild", "CardStatus", "Stats"]


def __getattr__(name: str) -> Any:
    """Import a name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
