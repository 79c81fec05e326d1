"""A proxy in front of Postgres, on a port of the loopback, that can lose what it forwards.

Faults: `swallow` (as a firewall that forgot a connection: bytes are dropped, and neither end notices), `hold` (a
network that stalls and delivers late), `cut` (both ends notice), `refuse` (no server there). `swallow_after` awaits
a place in the conversation, such as a COMMIT. What was swallowed stays dead after `resume`; its server session lives
until `cut` or `close`, as it would behind a real firewall.

    with Proxy(postgres_url) as proxy:
        storage = PostgresStorage(proxy.url(postgres_url))
        proxy.swallow()
        ...
        proxy.resume()
"""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from sqlalchemy import URL, make_url

Direction = Literal["requests", "answers"]
Target = str | os.PathLike[str] | tuple[str, int]

_BOTH: tuple[Direction, Direction] = ("requests", "answers")
_CHUNK = 65536
_KEY_DATA = re.compile(rb"(K\x00\x00\x00\x0c)....", re.DOTALL)  # the server's message with the session's number


class Proxy:
    """Forwards connections to a server, or injects the faults of this module. Safe to control from any thread."""

    def __init__(self, target: Target, *, as_pooler: bool = False) -> None:
        """Listen for connections to a socket's path, a host and port, or the server that a database URL names.

        `as_pooler`, sessions have numbers that the server does not know.
        """
        self._target = _target(target)
        self._as_pooler = as_pooler
        self._changed = threading.Condition()
        self._links: list[_Link] = []
        self._threads: list[threading.Thread] = []
        self._lost: frozenset[Direction] = frozenset()  # for later links, too
        self._held = False
        self._delay = 0.0
        self._trigger: _Trigger | None = None
        self._closed = False
        self.accepted = 0  # connections so far
        self._place = socket.socket()  # never listens: while connections are refused, the port remains ours
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.host, self.port = "127.0.0.1", int(self._place.getsockname()[1])
        self._listener: socket.socket | None = None
        self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def url(self, base_url: str) -> str:
        """Return the same URL with this proxy in the place of its server; unencrypted, for `swallow_after` reads it."""
        base = make_url(base_url)
        query = {name: value for name, value in base.query.items() if name not in ("host", "port")}
        query |= {"sslmode": "disable", "gssencmode": "disable"}
        url = URL.create(
            base.drivername, base.username, base.password, self.host, self.port, base.database or "postgres", query
        )
        return url.render_as_string(hide_password=False)

    # --- faults -----------------------------------------------------------------------------------------------------

    def swallow(self, *directions: Direction) -> None:
        """Drop what is sent from now on, in both directions or one, on all connections, without a sign to either end.

        New connections are taken and get no answer, until `resume`.
        """
        with self._changed:
            self._lost = frozenset(directions or _BOTH)
            for link in self._links:
                link.lost |= self._lost
            self._changed.notify_all()

    def swallow_after(self, trigger: bytes | int, *, delivered: bool = True) -> threading.Event:
        """Swallow one connection, once: the first on which a text, or so many bytes from now on, are requested.

        The chunk in which that happens still reaches the server if `delivered`, and no answer comes back; other
        connections go on. Returns the event that it has happened.
        """
        with self._changed:
            self._trigger = _Trigger(trigger, delivered)
            return self._trigger.happened

    def hold(self) -> None:
        """Keep what is sent from now on; `resume` delivers it, late and in order."""
        with self._changed:
            self._held = True

    def delay(self, seconds: float) -> None:
        """Keep each chunk for so long before it is forwarded; 0 ends that."""
        with self._changed:
            self._delay = seconds

    def cut(self) -> None:
        """Break all existing connections, the swallowed ones too; both ends notice. New ones can be opened."""
        with self._changed:
            links, self._links = self._links, []
            for link in links:
                link.dead = True
            self._changed.notify_all()
        for link in links:
            link.shutdown()

    def refuse(self) -> None:
        """Break all connections and take no new ones, until `resume`."""
        with self._changed:
            listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    def resume(self) -> None:
        """Forward again: new connections, and those that were held or delayed. What was swallowed stays dead."""
        with self._changed:
            self._lost, self._held, self._delay, self._trigger = frozenset(), False, 0.0, None
            if self._listener is None and not self._closed:
                self._listen()
            self._changed.notify_all()

    def retarget(self, target: Target) -> None:
        """Connect new clients to another server; existing connections stay where they are."""
        self._target = _target(target)

    @contextmanager
    def swallowing(self, *directions: Direction) -> Iterator[None]:
        """Swallow during a block."""
        self.swallow(*directions)
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """Break all connections and end all threads."""
        with self._changed:
            self._closed = True
        self.refuse()
        self._place.close()
        for thread in list(self._threads):
            thread.join(10)

    # --- carrying ---------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self._listener = socket.create_server((self.host, self.port), backlog=128)
        self._start(self._accept, self._listener)

    def _start(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, name="proxy", daemon=True)
        thread.start()
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # refused from now on
                return
            try:
                server = _connect(self._target)
            except OSError:
                client.close()
                continue
            with self._changed:
                if self._listener is not listener:
                    client.close()
                    server.close()
                    return
                link = _Link(client, server, set(self._lost))
                self._links.append(link)
                self.accepted += 1
                self._start(self._pump, link, client, server, "requests")
                self._start(self._pump, link, server, client, "answers")

    def _pump(self, link: "_Link", source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        tail, renumbered = b"", 0
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if self._delay:
                    time.sleep(self._delay)
                with self._changed:
                    self._changed.wait_for(lambda: not self._held or link.dead or direction in link.lost)
                    goes = direction not in link.lost
                    trigger = self._trigger
                    if direction == "requests" and goes and trigger is not None and trigger.fits(tail, data):
                        self._trigger, goes = None, trigger.delivered
                        link.lost |= set(_BOTH)
                        trigger.happened.set()
                if self._as_pooler and direction == "answers" and not renumbered:
                    data, renumbered = _KEY_DATA.subn(lambda match: match[1] + b"\x7f\xff\xff\xff", data, count=1)
                tail = (tail + data)[-100:]
                if goes:
                    sink.sendall(data)
        with self._changed:
            if direction in link.lost:  # so is the end of the conversation
                self._changed.wait_for(lambda: link.dead)
            link.dead = True
            if link in self._links:
                self._links.remove(link)
            self._changed.notify_all()
        link.shutdown()
        with self._changed:
            link.pumps -= 1
            done = link.pumps == 0
        if done:
            link.client.close()
            link.server.close()


class _Link:
    """One connection: its two ends, and the directions in which it is swallowed."""

    def __init__(self, client: socket.socket, server: socket.socket, lost: set[Direction]) -> None:
        self.client, self.server = client, server
        self.lost = lost
        self.dead = False
        self.pumps = 2

    def shutdown(self) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Trigger:
    """A place in the conversation."""

    def __init__(self, trigger: bytes | int, delivered: bool) -> None:
        self._text = trigger if isinstance(trigger, bytes) else None
        self._left = trigger if isinstance(trigger, int) else 0
        self.delivered = delivered
        self.happened = threading.Event()

    def fits(self, tail: bytes, data: bytes) -> bool:
        if self._text is not None:
            return self._text in tail[-(len(self._text) - 1) :] + data if len(self._text) > 1 else self._text in data
        self._left -= len(data)
        return self._left <= 0


def _target(target: Target) -> str | tuple[str, int]:
    if isinstance(target, tuple):
        return target
    if not isinstance(target, str) or "://" not in target:
        return str(Path(target))
    url = make_url(target)
    host, port = url.host or url.query.get("host", "localhost"), url.port or url.query.get("port", "5432")
    assert isinstance(host, str), "one server, not several"
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, int(str(port)))


def _connect(target: str | tuple[str, int]) -> socket.socket:
    if isinstance(target, tuple):
        connected = socket.create_connection(target, 10)
        connected.settimeout(None)
        return connected
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(target)
    except OSError:
        server.close()
        raise
    return server
