"""Timeouts of waits for the network, and the TCP settings by which the kernel enforces some of them.

`postgres/connection/probe.py` enforces the others.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from squid_dagster.protocol.errors import InvalidArgument

_KEEPALIVES = 3  # that go unanswered


@dataclass(frozen=True, slots=True)
class NetworkBounds:
    """Timeouts of waits for Postgres, in seconds.

    After `silence` without a byte, a probe asks the server whether it works on the statement. If not, a second probe
    follows after `confirmation`, and then the connection is closed. While it does, probes repeat in pauses that grow up
    to `longest_pause`. A server that has too many connections for a probe is assumed to work for `untold`. `connect`
    bounds the opening of a connection, `probe` the answer to a probe. With `keepalive` and `unacknowledged`, the kernel
    gives up a lost peer.
    """

    silence: float = 5.0
    confirmation: float = 1.0
    longest_pause: float = 30.0
    untold: float = 300.0
    probe: float = 5.0
    connect: float = 10.0
    keepalive: float = 30.0
    unacknowledged: float = 30.0

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` unless all of them are positive numbers."""
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
                raise InvalidArgument(f"{name} must be a positive number of seconds, not {value!r:.40}")


def tcp_settings(bounds: NetworkBounds, environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Return libpq's parameters for these bounds; a connect timeout of the environment takes precedence."""
    settings = {
        "keepalives": 1,
        "keepalives_idle": max(1, round(bounds.keepalive / 2)),
        "keepalives_interval": max(1, round(bounds.keepalive / 2 / _KEEPALIVES)),
        "keepalives_count": _KEEPALIVES,
        "tcp_user_timeout": round(bounds.unacknowledged * 1000),
    }
    if not environ.get("PGCONNECT_TIMEOUT"):
        settings["connect_timeout"] = max(2, round(bounds.connect))  # libpq's minimum
    return settings
