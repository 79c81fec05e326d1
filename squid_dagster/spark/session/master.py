"""The setting `spark_master`, parsed and checked: in this process, a standalone cluster, or Spark Connect.

Opens no session. No error message contains what might be a token.
"""

import re
import socket
from dataclasses import dataclass
from enum import StrEnum

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.errors import SparkUnavailable

CONNECT_PORT, STANDALONE_PORT = 15002, 7077
OLDEST = (4, 1)  # of Spark: filters reach Python data sources from here on
_ANSWER_SECONDS = 5.0
_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*[1-9]\d*\s*,\s*[1-9]\d*\s*,\s*[1-9]\d*\s*\]")
_PLACE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:(?P<port>\d{1,5}))?")
_LOOPBACK = ("localhost", "127.", "::1")


class Kind(StrEnum):
    """The ways to run Spark."""

    LOCAL = "local"
    LOCAL_CLUSTER = "local-cluster"
    STANDALONE = "standalone"
    CONNECT = "connect"


@dataclass(frozen=True, slots=True)
class Master:
    """A parsed master. Its text may hold a token (Connect) and is never part of the representation."""

    kind: Kind
    text: str
    places: tuple[tuple[str, int], ...] = ()

    def __repr__(self) -> str:
        """Return the kind and the place, without the text."""
        return f"Master({self.kind.value}, {self.shown})"

    @property
    def shown(self) -> str:
        """The master for messages: its hosts and ports, never a token."""
        return ",".join(f"{host}:{port}" for host, port in self.places) or self.text

    @property
    def on_this_machine(self) -> bool:
        """Whether all of Spark's processes are here."""
        return all(host.startswith(_LOOPBACK) for host, _ in self.places)


def parse_master(text: str) -> Master:
    """Parse `spark_master`.

    Raises:
        InvalidArgument: it is none of `local[...]`, `local-cluster[...]`, `spark://host:port`, `sc://host:port`.
    """
    if _LOCAL.fullmatch(text):
        return Master(Kind.LOCAL, text)
    if _LOCAL_CLUSTER.fullmatch(text):
        return Master(Kind.LOCAL_CLUSTER, text)
    scheme, _, rest = text.partition("://")
    if scheme == "spark":
        return Master(Kind.STANDALONE, text, tuple(_place(one, STANDALONE_PORT) for one in rest.split(",")))
    if scheme == "sc":
        return Master(Kind.CONNECT, text, (_place(rest.partition("/")[0], CONNECT_PORT),))
    raise InvalidArgument(
        f"spark_master {text.partition('://')[0]!r:.60} is none that is known: use local[2] or local[*], "
        "spark://host:7077 for a standalone cluster, or sc://host:15002 for Spark Connect"
    )


def check_reachable(master: Master) -> None:
    """Connect to the master's port, so that an unreachable one is an error at once and not after Spark's own minute.

    Raises:
        SparkUnavailable: no host of the master accepts a connection.
    """
    reasons = []
    for host, port in master.places:
        try:
            with socket.create_connection((host, port), timeout=_ANSWER_SECONDS):
                return
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    if reasons:
        raise SparkUnavailable(
            f"no Spark master answers ({'; '.join(reasons)}): start it, or set spark_master to local[*]"
        )


def check_connect(master: Master) -> None:
    """Check that Spark Connect's packages are here and that the server speaks gRPC. Sends nothing but a handshake.

    Raises:
        InvalidArgument: what follows the port in `spark_master` cannot be parsed; not shown, as it may be a token.
        SparkUnavailable: packages are missing here, or the server does not speak gRPC.
    """
    try:
        from pyspark.sql.connect.utils import check_dependencies

        check_dependencies()
    except ImportError as error:
        raise SparkUnavailable(
            f"Spark Connect needs packages that are not here ({_first_line(error)}): pip install 'pyspark[connect]'"
        ) from None
    import grpc  # type: ignore[import-untyped]
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        channel = DefaultChannelBuilder(master.text).toChannel()
    except ValueError:
        raise InvalidArgument(
            f"spark_master says something behind sc://{master.shown} that cannot be understood: "
            "use sc://host:15002, or sc://host:15002/;token=...;use_ssl=true"
        ) from None
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWER_SECONDS)
    except grpc.FutureTimeoutError:
        raise SparkUnavailable(
            f"whoever listens at {master.shown} does not speak Spark Connect (gRPC): look at the port of the server, "
            "and at use_ssl"
        ) from None
    finally:
        channel.close()


def check_version(version: str, master: Master) -> None:
    """Raise `SparkUnavailable` for a server that is too old for Python data sources with filters."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise SparkUnavailable(
            f"Spark at {master.shown} is {version}: the journal needs Spark {'.'.join(map(str, OLDEST))} or newer"
        )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _place(text: str, port: int) -> tuple[str, int]:
    match = _PLACE.fullmatch(text)
    if match is None or int(match["port"] or port) > 65535:
        raise InvalidArgument("spark_master names no host and port: use spark://host:7077 or sc://host:15002")
    return match["host"].strip("[]"), int(match["port"] or port)
