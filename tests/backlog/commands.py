"""The commands that a holder gives."""

from collections.abc import Callable
from typing import Any

from squid_dagster.backlog import Backlog


def commands_of(backlog: Backlog) -> dict[str, Callable[..., Any]]:
    return {"complete": backlog.complete, "renew": backlog.renew, "fail": backlog.fail, "block": backlog.block}


COMMANDS = ["complete", "renew", "fail", "block"]
