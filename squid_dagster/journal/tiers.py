"""Which Postgres holds the journal, decided by configuration alone, and its URL without credentials.

Only `open_tier` has an effect: it starts the embedded server, if that is the tier.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from squid_dagster.protocol.errors import EmbeddedUnavailable, InvalidArgument

DRIVER = "postgresql+psycopg"
ROOT_DATA_DIR = Path("/var/lib/squid_dagster")  # the server's user cannot enter root's home

_SCHEMES = ("postgres", "postgresql", DRIVER)
_URL_VARIABLES = ("SQUID_DATABASE_URL", "DATABASE_URL")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(:\d+)?")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

# The parameters of a query that may be shown; all others might be secrets.
_HARMLESS = frozenset(
    {"application_name", "connect_timeout", "dbname", "host", "port", "sslmode", "target_session_attrs"}
)
_HIDDEN = "***"
_PING_SECONDS = 5


@dataclass(frozen=True, slots=True)
class ServerTier:
    """A Postgres of the user's own. The URL may hold a password and is never part of the representation."""

    url: str
    source: str

    def __repr__(self) -> str:
        """Show the URL without credentials."""
        return f"ServerTier(url={display_url(self.url)!r}, source={self.source!r})"


@dataclass(frozen=True, slots=True)
class EmbeddedTier:
    """An embedded Postgres in a directory."""

    data_dir: Path
    source: str


Tier = ServerTier | EmbeddedTier


def resolve_tier(url: str | None = None, environ: Mapping[str, str] = os.environ) -> Tier:
    """Decide by the argument, else SQUID_DATABASE_URL, DATABASE_URL, SQUID_DATA_DIR, else the user's data directory.

    An empty variable counts as unset. Raises InvalidArgument for a URL that is not one of Postgres with psycopg, and
    EmbeddedUnavailable inside Kubernetes if no directory is named: the journal would be lost with its pod.
    """
    if url is not None:
        return ServerTier(normalized_url(url, source="the given URL"), "argument")
    for variable in _URL_VARIABLES:
        if value := environ.get(variable):
            return ServerTier(normalized_url(value, source=variable), variable)
    if named := environ.get("SQUID_DATA_DIR"):
        return EmbeddedTier(_absolute(named), "SQUID_DATA_DIR")
    if environ.get("KUBERNETES_SERVICE_HOST"):
        raise EmbeddedUnavailable(
            "no database is configured, and inside Kubernetes an embedded one would die with its pod: set "
            "SQUID_DATABASE_URL, or set SQUID_DATA_DIR to a directory on a persistent volume"
        )
    return EmbeddedTier(default_data_dir(environ), "default")


def open_tier(tier: Tier) -> str:
    """Return the SQLAlchemy URL to connect to; start an embedded server if it does not run.

    Raises EmbeddedUnavailable if it cannot be started.
    """
    match tier:
        case ServerTier(url=url):
            return url
        case EmbeddedTier(data_dir=data_dir):
            if sys.platform == "win32":
                msg = "the embedded Postgres does not run on Windows: set SQUID_DATABASE_URL to a Postgres of your own"
                raise EmbeddedUnavailable(msg)
            from squid_dagster.journal.embedded import EmbeddedPostgres

            return EmbeddedPostgres(data_dir).ensure_running()


def is_answering(tier: ServerTier) -> bool:
    """Return whether a server accepts connections there, waiting a few seconds; credentials are not tried."""
    from psycopg import pq
    from psycopg.conninfo import make_conninfo
    from sqlalchemy import make_url

    url = make_url(tier.url)
    place = {"host": url.host, "port": url.port} if url.host else {n: url.query.get(n) for n in ("host", "port")}
    address = {name: ",".join(v) if isinstance(v, tuple) else v for name, v in place.items() if v}
    info = make_conninfo("", **address, user=url.username, dbname=url.database, connect_timeout=_PING_SECONDS)
    return pq.Ping(pq.PGconn.ping(info.encode())) is pq.Ping.OK


def describe(tier: Tier) -> str:
    """Describe in one line which database is in use and what chose it, without user and password."""
    match tier:
        case ServerTier(url=url, source=source):
            parts = _split(url)
            place = parts.place or _query_value(parts.query, "host") or "localhost"
            return f"Postgres at {place}{parts.path} ({source})"
        case EmbeddedTier(data_dir=data_dir, source=source):
            return f"embedded Postgres in {data_dir} ({source})"


def display_url(url: str) -> str:
    """Return the URL for logs and messages: without the password, and without query values that might be secrets.

    Never raises. Hides what is not a URL, or may be part of a password.
    """
    scheme = _SCHEME.match(url)
    if scheme is None:
        return _HIDDEN
    parts = _split(url)
    shown = [
        text if (name := text.partition("=")[0]) in _HARMLESS else f"{name}={_HIDDEN}"
        for text in parts.query.split("&")
        if "=" in text
    ]
    return f"{scheme[1]}://{parts.user}{parts.place}{parts.path}{'?' if shown else ''}{'&'.join(shown)}"


def normalized_url(url: str, *, source: str = "the database URL") -> str:
    """Return the URL with the scheme `postgresql+psycopg`; raise InvalidArgument for one that is not of Postgres."""
    url = url.strip()  # secrets that come from files end in a newline
    scheme = _SCHEME.match(url)
    if scheme is None:
        msg = f"{source} is not a URL: it should look like postgresql://user:password@host:5432/database"
        raise InvalidArgument(msg)
    if scheme[1].lower() not in _SCHEMES:
        msg = f"{source} has the scheme {scheme[1]!r}, but the journal needs Postgres: use postgresql://"
        raise InvalidArgument(msg)
    normal = f"{DRIVER}://{url[scheme.end() :]}"
    _require_parsable(normal, source)
    return normal


def default_data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's data directory for the journal: XDG_DATA_HOME if set, /var/lib for root, else the platform's.

    Raises EmbeddedUnavailable if the user has no home.
    """
    xdg = environ.get("XDG_DATA_HOME", "")
    if Path(xdg).is_absolute():
        return Path(xdg) / "squid_dagster"
    if sys.platform != "win32" and os.geteuid() == 0:
        return ROOT_DATA_DIR
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - Path.expanduser() raises without a home
    if not home.is_absolute():
        raise EmbeddedUnavailable("this user has no home directory: set SQUID_DATA_DIR, or SQUID_DATABASE_URL")
    below = "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    return home / below / "squid_dagster"


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a URL that may be shown; the password is not among them."""

    user: str  # with a hidden password and the closing @, or empty
    place: str  # host and port
    path: str
    query: str


def _split(url: str) -> _Parts:
    """Split at the last @: an unquoted password may hold any character; hide what may belong to it."""
    rest = url.partition("://")[2]
    credentials, at, address = rest.rpartition("@")
    name, colon, _ = credentials.partition(":")
    user = f"{name}{colon and ':' + _HIDDEN}@" if at else ""
    address, _, query = address.partition("?")
    place, slash, path = address.partition("/")
    # A ? in a password or an @ in a query; a password where a port should be, because the host was forgotten.
    if "@" in rest.partition("?")[2] or not all(map(_HOST.fullmatch, place.split(","))):
        return _Parts("", _HIDDEN, "", "")
    return _Parts(user, place, slash + path, query)


def _query_value(query: str, wanted: str) -> str | None:
    pairs = (text.partition("=") for text in query.split("&"))
    return next((unquote(value) for name, _, value in pairs if name == wanted), None)


def _require_parsable(url: str, source: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    msg = f"{source} cannot be read ({display_url(url)}): quote special signs in the password, such as %40 for @"
    if url.partition("?")[0].count("@") > 1:
        # SQLAlchemy would split it within the password, and the error about the host would show the other half.
        raise InvalidArgument(msg)
    try:
        make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidArgument(msg) from None  # the cause quotes parts of the URL


def _absolute(text: str) -> Path:
    """Return a directory's absolute path, independent of later changes of the working directory."""
    try:
        return Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100 - resolve() would need the directory
    except RuntimeError as error:
        raise InvalidArgument(f"SQUID_DATA_DIR names the home of an unknown user: {text}") from error
