"""`make dev`: Dagster's UI and daemon around the example workflows, on an embedded Postgres, until Ctrl-C.

Everything is in one folder: `SQUID_DEV_DIR`, else `dev` in the user's data directory. It stays there, so that the next
`make dev` continues where this one stopped. Ctrl-C ends all processes, the Postgres too, and releases claims.
"""

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType

from examples import ledger
from examples.prepare import prepare
from examples.stack import Stack, StackError, free_port
from squid_dagster import SquidError
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.embedded.locks import try_lock
from squid_dagster.journal.tiers import default_data_dir

FOLDER = "SQUID_DEV_DIR"
PORT = "SQUID_DEV_PORT"
USUAL_PORT = 3000
_LOOK_SECONDS = 2.0
_STOPS = (signal.SIGINT, signal.SIGTERM)


def say(text: str) -> None:
    """Print a line without buffering."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run it all until Ctrl-C or SIGTERM. Return 0 then, 1 when a part did not work."""
    # Also where the shell started this in the background, with SIGINT ignored.
    for number in _STOPS:
        signal.signal(number, _interrupt)
    try:
        folder = Path(os.environ.get(FOLDER) or default_data_dir() / "dev").absolute()
        server = EmbeddedPostgres(folder / "postgres")
        was_running = server.status().running
        say(f"==> starting an embedded Postgres in {server.data_dir}")
        try:
            url = server.ensure_running()
            _hold(folder)
            _serve(folder, url)
        finally:
            if not was_running:
                server.stop()
    except KeyboardInterrupt:
        say("==> stopped; the data stay where they are")
        return 0
    except (StackError, SquidError, OSError) as error:
        sys.stderr.write(f"make dev: {error}\n")
    return 1


def _hold(folder: Path) -> None:
    """Lock the folder until this process ends: two Dagsters in it would replace each other's socket."""
    if try_lock(folder / "dev.lock") is None:
        raise StackError(f"make dev runs already in {folder}: stop it, or give this one a folder by {FOLDER}")


def _serve(folder: Path, url: str) -> None:
    """Serve until an interrupt; raises `StackError` when a part of Dagster does not start, or ends."""
    journal = PostgresStorage(url)
    try:
        journal.upgrade()
        prepare(journal)
    finally:
        journal.close()
    environment = {"SQUID_DATABASE_URL": url, "SQUID_SCHEMA": "", ledger.LEDGER: str(folder / "ledger.db")}
    say("==> starting Dagster: code location, daemon and webserver")
    with Stack(folder / "dagster", "definitions", environment, port=_port()) as stack:
        say(f"    logs:       {stack.logs}")
        say(f"    journal:    export SQUID_DATABASE_URL='{url}'")
        say(f"    start runs: {stack.address}/locations/squid/jobs/squid_start/playground")
        say(f"==> Dagster is at {stack.address}  (Ctrl-C stops it)")
        pause = threading.Event()
        while not pause.wait(_LOOK_SECONDS):
            for name in stack.ended():
                raise StackError(f"Dagster's {name} process ended by itself:\n{stack.log(name)}")


def _port() -> int:
    """Return the port of SQUID_DEV_PORT, else Dagster's usual one, else one that is free."""
    named = os.environ.get(PORT)
    if named:
        if not named.isdigit() or not 0 < int(named) < 65_536:
            raise StackError(f"{PORT} is {named!r}: give a port from 1 to 65535, or leave it out")
        return int(named)
    with socket.socket() as caller:
        caller.settimeout(1)
        return free_port() if caller.connect_ex(("127.0.0.1", USUAL_PORT)) == 0 else USUAL_PORT


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once: a second Ctrl-C would leave processes behind.
    for stop in _STOPS:
        signal.signal(stop, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
