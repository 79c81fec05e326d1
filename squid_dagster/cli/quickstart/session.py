"""One `squid quickstart` while it runs: the embedded server, the processes and the run."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, LiteralString

from squid_dagster.cli.app import Refused
from squid_dagster.cli.place import Place
from squid_dagster.cli.quickstart.files import MODULE, SLOW_STEP, WORKFLOW, Files
from squid_dagster.cli.quickstart.processes import Processes
from squid_dagster.cli.terminal.output import emit

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.inspection import RunSnapshot
    from squid_dagster.journal.embedded import EmbeddedPostgres

_COMMAND = "from squid_dagster.cli import main; main(prog_name='squid')"
_URLS = ("SQUID_DATABASE_URL", "DATABASE_URL")
_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 90.0
_SHORT_LIFE_SECONDS = 10.0  # a worker that ends by itself sooner failed to start
_MOST_SHORT_LIVES = 3  # in a row: one more would end as they did
_LEAVING_SECONDS = 5.0  # for the server to notice that the processes that we ended are gone
_GRACE_SECONDS = 1.0  # Ctrl-C does not wait for the slow step: its claim is released

_OTHERS: LiteralString = """SELECT FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() LIMIT 1"""


class Session:
    """One quickstart while it runs: the server, the processes and the run."""

    def __init__(
        self, files: Files, place: Place, *, lease_seconds: float, address: str | None, note: Callable[[str], None]
    ) -> None:
        """Store the options; nothing is started. `note` prints what happens."""
        self._files, self._place, self._lease, self._address = files, place, lease_seconds, address
        self._note = note
        self._processes = Processes(files.logs)
        self._server: EmbeddedPostgres | None = None
        self._was_running = True
        self._squid: Squid | None = None
        self._environment: dict[str, str] = {}
        self._workers: dict[int, float] = {}  # when each was started
        self._short_lives = 0
        self._holder = 0
        self._run_id = ""

    # --- start --------------------------------------------------------------------------------------------------

    def open(self, seconds: float) -> None:
        """Start everything, and a run; return when a worker executes the slow step."""
        from squid_dagster.api import Squid

        self._open_server()
        sys.path.insert(0, str(self._files.directory))
        assert self._server is not None  # noqa: S101  opened above
        self._squid = Squid.connect(self._server.url, MODULE, schema=self._place.schema)
        if self._address is not None:
            self._start_ui(self._address)
        first = self._start_worker()
        self._run_id = self._squid.start(WORKFLOW, {"seconds": seconds}, actor="quickstart").run_id
        self._holder = self._wait_for_claim(first)
        self._start_worker()  # takes over when the first one is killed

    def _open_server(self) -> None:
        from squid_dagster.journal import open_journal
        from squid_dagster.journal.embedded import EmbeddedPostgres
        from squid_dagster.journal.tiers import EmbeddedTier, resolve_tier

        environ = {name: value for name, value in os.environ.items() if name not in _URLS}
        if self._place.data_dir is not None:
            environ["SQUID_DATA_DIR"] = str(self._place.data_dir.absolute())
        tier = resolve_tier(environ=environ)
        assert isinstance(tier, EmbeddedTier)  # noqa: S101  no URL is left
        self._server = EmbeddedPostgres(tier.data_dir)
        self._was_running = self._server.status().running
        self._note(f"embedded Postgres in {self._server.data_dir}")
        environ["SQUID_DATA_DIR"] = str(self._server.data_dir)
        open_journal(schema=self._place.schema, environ=environ).close()  # migrates
        self._environment = {
            **environ,
            "SQUID_DATABASE_URL": self._server.url,
            "DAGSTER_HOME": str(self._files.dagster_home),
            "SQUID_QUICKSTART_LEASE_SECONDS": str(self._lease),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self._files.directory), environ.get("PYTHONPATH")])),
            **({"SQUID_SCHEMA": self._place.schema} if self._place.schema else {}),
        }

    def _start_ui(self, address: str) -> None:
        self._note("starting Dagster's UI, which takes some seconds")
        host, _, port = address.removeprefix("http://").partition(":")
        command = ["-m", "dagster", "dev", "-f", str(self._files.location), "-h", host, "-p", port]
        pid = self._start("dagster", command)
        ends = time.monotonic() + _PATIENCE_SECONDS
        while not _answers(address):
            if pid in self._processes.ended() or time.monotonic() > ends:
                log = self._processes.log("dagster")
                raise Refused(f"Dagster's UI did not start ({self._processes.last_line('dagster')}): see {log}")
            time.sleep(_LOOK_SECONDS)

    def _start_worker(self) -> int:
        how = ("--lease", f"{self._lease:g}", "--grace", f"{_GRACE_SECONDS:g}")
        pid = self._start("worker", ["-c", _COMMAND, "worker", "-m", MODULE, *how])
        self._workers[pid] = time.monotonic()
        return pid

    def _start(self, name: str, arguments: list[str]) -> int:
        return self._processes.start(name, [sys.executable, *arguments], self._environment, self._files.directory)

    def _wait_for_claim(self, first: int) -> int:
        """Wait for the claim of the slow step; return the process id of the worker that holds it."""
        ends = time.monotonic() + _PATIENCE_SECONDS
        while (owner := self._owner(self._run())) is None:
            if first in self._processes.ended() or time.monotonic() > ends:
                log = self._processes.log("worker")
                raise Refused(f"the worker did not begin ({self._processes.last_line('worker')}): see {log}")
            if self._run().terminal:
                return first
            time.sleep(_LOOK_SECONDS)
        return self._pids().get(owner, first)

    # --- watch ---------------------------------------------------------------------------------------------------

    def print_instructions(self, as_json: bool, is_new: bool) -> None:
        """Print what to do: three lines, or one JSON document."""
        kill, watch = f"kill -9 {self._holder}", f"squid run watch {self._run_id}{self._options()}"
        document = {
            "directory": str(self._files.directory),
            "workflow_file": str(self._files.flow),
            "written": is_new,
            "logs": str(self._files.logs),
            "data_dir": str(self._server.data_dir) if self._server is not None else None,
            "url": self._address,
            "run_id": self._run_id,
            "worker_pid": self._holder,
            "worker_pids": sorted(self._workers),
            "kill": kill,
            "watch": watch,
        }
        shown = self._address or "another terminal (there is no UI)"
        emit(as_json, document, f"open this:          {shown}\nkill this process:  {kill}\nwatch it finish:    {watch}")
        self._note("Ctrl-C stops everything; the data stay")

    def _options(self) -> str:
        """Return the options by which a command in another terminal, with other variables, finds this journal."""
        from squid_dagster.journal.postgres.schema.names import DEFAULT_SCHEMA
        from squid_dagster.journal.tiers import EmbeddedTier, resolve_tier
        from squid_dagster.protocol.errors import SquidError

        assert self._server is not None  # noqa: S101  opened before
        try:
            usual = resolve_tier(environ={**os.environ, "SQUID_DATA_DIR": ""})
        except SquidError:
            usual = None
        there = isinstance(usual, EmbeddedTier) and usual.data_dir.resolve() == self._server.data_dir
        data_dir = "" if there else f" --data-dir {shlex.quote(str(self._server.data_dir))}"
        named = self._place.schema
        schema = "" if named in (None, DEFAULT_SCHEMA) else f" --schema {shlex.quote(str(named))}"
        return data_dir + schema

    def follow(self, until_done: bool) -> None:
        """Keep two workers alive and print what happens, until interrupted; with `until_done`, until the run has ended.

        Raises:
            Refused: workers end by themselves when they are started; with the last line of their log.
        """
        owner, done = self._owner(self._run()), False
        while True:
            for pid, code in self._processes.ended().items():
                if pid in self._workers:
                    self._replace_worker(pid, code)
            if not done:
                run = self._run()
                now = self._owner(run)
                if now is not None and now != owner:
                    self._note(f"worker {self._pids().get(now, now)} has taken over step {SLOW_STEP!r}")
                    owner = now
                if done := run.terminal:
                    self._note(f"the run is over: {run.status}")
            if done and until_done:
                return
            time.sleep(_LOOK_SECONDS)

    def _replace_worker(self, pid: int, code: int) -> None:
        lived = time.monotonic() - self._workers.pop(pid)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._short_lives = self._short_lives + 1 if code >= 0 and lived < _SHORT_LIFE_SECONDS else 0
        if self._short_lives == _MOST_SHORT_LIVES:
            log, said = self._processes.log("worker"), self._processes.last_line("worker")
            raise Refused(f"{_MOST_SHORT_LIVES} workers in a row {how} when they were started ({said}): see {log}")
        self._note(f"worker {pid} {how}; another one is started")
        self._start_worker()

    def close(self) -> None:
        """Stop all that was started here, by id; the embedded server only if it did not run before and has no clients.

        A server that is left running is printed.
        """
        if self._squid is not None:
            self._squid.close()
        self._processes.stop()
        if self._server is None or self._was_running:
            return
        if self._is_used(self._server):
            where = shlex.quote(str(self._server.data_dir))
            self._note(f"the server is left running: others use it (squid db stop --data-dir {where} ends it)")
        else:
            self._server.stop()

    @staticmethod
    def _is_used(server: "EmbeddedPostgres") -> bool:
        """Return whether other clients are connected; connections of processes that we ended get time to close."""
        from squid_dagster.journal.postgres.connection.pool import make_engine, pooled_connection
        from squid_dagster.protocol.errors import StorageUnavailable

        engine = make_engine(server.url)
        ends = time.monotonic() + _LEAVING_SECONDS
        try:
            with pooled_connection(engine) as connection:
                while connection.execute(_OTHERS).fetchone() is not None:
                    if time.monotonic() > ends:
                        return True
                    time.sleep(_LOOK_SECONDS)
        except StorageUnavailable:  # it does not run: there are no clients
            return False
        finally:
            engine.dispose()
        return False

    # --- reading ----------------------------------------------------------------------------------------------------

    def _run(self) -> "RunSnapshot":
        assert self._squid is not None  # noqa: S101  opened before
        return self._squid.inspect_run(self._run_id)

    @staticmethod
    def _owner(run: "RunSnapshot") -> str | None:
        return next((row.owner_id for row in run.attempts if row.step == SLOW_STEP and row.status == "claimed"), None)

    def _pids(self) -> dict[str, int]:
        assert self._squid is not None  # noqa: S101  opened before
        return {row.worker_id: row.pid for row in self._squid.live_workers()}


def _answers(address: str) -> bool:
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"{address}/server_info", timeout=5) as answer:  # noqa: S310  our own address
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
