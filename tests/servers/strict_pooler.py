"""A pooler that takes no options with a connection."""

import re
import socket
import struct
import threading
from contextlib import suppress

from sqlalchemy import make_url

_OPTIONS = re.compile(rb"(?<=\0)options\0[^\0]*\0")


class StrictPooler:
    """A proxy that refuses connections with options, as such a pooler does, or `drops` the options."""

    def __init__(self, url: str, *, drops: bool = False) -> None:
        """Listen on a port of the loopback."""
        self._drops = drops
        target = make_url(url)
        self._target = f"{target.query['host']}/.s.PGSQL.{target.query['port']}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.refused = 0
        port = self._listener.getsockname()[1]
        self.url = f"postgresql+psycopg://{target.username}@127.0.0.1:{port}/{target.database}?sslmode=disable"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            head = client.recv(4, socket.MSG_WAITALL)
            message = client.recv(struct.unpack("!I", head)[0] - 4, socket.MSG_WAITALL)
            if b"\0options\0" in message:
                self.refused += 1
            if self._drops:
                message = _OPTIONS.sub(b"", message)
                head = struct.pack("!I", len(message) + 4)
            elif b"\0options\0" in message:
                fields = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
                client.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)
                client.close()
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            self._sockets.append(server)
            server.sendall(head + message)
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()
            _pump(client, server)


def _pump(source: socket.socket, drain: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            drain.sendall(data)
    with suppress(OSError):
        drain.shutdown(socket.SHUT_RDWR)
