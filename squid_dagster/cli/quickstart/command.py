"""`squid quickstart`: a small workflow, Dagster's UI and two workers, to kill one and see the other take over.

It uses the embedded Postgres only, and stops all that it has started when Ctrl-C ends it.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click

from squid_dagster.cli.app import Refused
from squid_dagster.cli.option_types import Directory
from squid_dagster.cli.place import Place, on_journal
from squid_dagster.cli.quickstart.files import Files
from squid_dagster.cli.quickstart.session import Session
from squid_dagster.cli.run.options import Seconds

USUAL_PORT = 3000
INSTALL = "pip install 'squid-dagster[dagster]' dagster-webserver"
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.argument("directory", type=Directory(), default=Path("squid_quickstart"), required=False)
@click.option("--no-ui", is_flag=True, help="Start workers only, without Dagster's UI.")
@click.option("--port", type=click.IntRange(1, 65_535), help="Of the UI.  [default: 3000, or any that is free]")
@click.option(
    "--seconds",
    type=Seconds(0, 3600),
    default=20.0,
    show_default=True,
    help="How long the slow step takes: the time that you have to kill its worker.",
)
@click.option(
    "--lease",
    type=Seconds(1, 3600),
    default=5.0,
    show_default=True,
    help="Seconds without a sign of life after which another worker takes over.",
)
@click.option("--until-done", is_flag=True, help="Stop everything when the run has ended, without Ctrl-C.")
@on_journal
def quickstart(
    directory: Path,
    no_ui: bool,
    port: int | None,
    seconds: float,
    lease: float,
    until_done: bool,
    place: Place,
    as_json: bool,
) -> None:
    """Write a small workflow into DIRECTORY, start a UI and workers, and run it: kill a worker, and see it finish.

    DIRECTORY is squid_quickstart if not given; an existing file is never overwritten. It works on the embedded Postgres
    alone: SQUID_DATABASE_URL and DATABASE_URL, which decide for every other command, are ignored. Everything
    stops with Ctrl-C, but a server that others use; the data stay.
    """
    from squid_dagster.journal.embedded.locks import try_lock

    def note(text: str) -> None:  # with --json, stderr is for the one error
        if not as_json:
            click.echo(f"==> {text}", err=True)

    files = Files(directory)
    address = None if no_ui else _address(port, note)
    try:
        is_new = files.write()
        lock = try_lock(files.lock)
    except OSError as error:
        raise click.BadParameter(f"{files.directory} cannot be used: {error}") from None
    if lock is None:
        raise Refused(f"a quickstart runs already in {files.directory}: stop it, or name another directory")
    note(f"{files.flow} {'is written' if is_new else 'is there already, and is used as it is'}")
    for number in _STOPS:
        signal.signal(number, _interrupt)
    session = Session(files, place, lease_seconds=lease, address=address, note=note)
    try:
        session.open(seconds)
        session.print_instructions(as_json, is_new)
        session.follow(until_done)
    except KeyboardInterrupt:
        note("stopping")
    finally:
        session.close()
        os.close(lock)


def _address(port: int | None, note: Callable[[str], None]) -> str | None:
    """Return the address for the UI; None if it is not installed."""
    from importlib.util import find_spec

    if find_spec("dagster") is None or find_spec("dagster_webserver") is None:
        note(f"Dagster's UI is not installed, so there will be workers only: {INSTALL}")
        return None
    if port is not None and not _is_free(port):
        raise Refused(f"port {port} is in use: name another one, or none to take any that is free")
    return f"http://127.0.0.1:{port or (USUAL_PORT if _is_free(USUAL_PORT) else _any_port())}"


def _is_free(port: int) -> bool:
    import socket

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _any_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _interrupt(_: int, frame: FrameType | None) -> None:
    for number in _STOPS:  # once: a second Ctrl-C would leave processes behind
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
