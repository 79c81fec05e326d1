"""A Dagster instance in a folder, with its code server, daemon and webserver as processes of this one.

They listen on loopback and on a Unix socket only. Each is the head of a process group, which its run workers belong to,
so that all of them can be ended by id; a guard process ends them too when this one is killed.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

REPOSITORY = Path(__file__).parent.parent
LOCATION = "squid"
PARTS = ("code", "daemon", "webserver")
CONFIG = """\
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
sensors: {use_threads: true, num_workers: 4}
schedules: {use_threads: true, num_workers: 2}
"""
# A process that was started in the background ignores SIGINT, and Dagster would then ignore SIGTERM too.
_EXECUTE = (
    "import os, signal, sys; [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGTERM)]; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
_GUARD = """\
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""
_PAUSE_SECONDS = 0.05


class StackError(RuntimeError):
    """A part of Dagster did not start, ended by itself, or answered with an error."""


class Stack:
    """Dagster's processes for one code location. `folder` holds its storage (`home`) and logs (`logs`).

    Example:
        `with Stack(folder, "definitions", {"SQUID_DATABASE_URL": url}) as stack: print(stack.address)`
    """

    def __init__(
        self,
        folder: Path,
        module: str,
        environment: Mapping[str, str],
        *,
        config: str = CONFIG,
        port: int | None = None,
    ) -> None:
        """Set the folder, the module of the location and its environment. Nothing is started."""
        self.home, self.logs = folder / "home", folder / "logs"
        self._module, self._config = module, config
        self._port = free_port() if port is None else port
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        own = {"DAGSTER_HOME": str(self.home), "DAGSTER_DISABLE_TELEMETRY": "yes"}
        self._environment = {**inherited, **environment, **own}
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Start everything. Raises as `start`."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self.close()

    @property
    def address(self) -> str:
        """Where the webserver is."""
        return f"http://127.0.0.1:{self._port}"

    # --- processes --------------------------------------------------------------------------------------------------

    def start(self, *names: str, patience_seconds: float = 60.0) -> None:
        """Start these parts, or all, if they do not run, and wait until they answer.

        Raises:
            StackError: one of them ended, or the location could not be loaded; with the end of its log.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.home / "dagster.yaml").write_text(self._config)
        code = self.home / "code.sock"
        workspace = self.home / "workspace.yaml"
        workspace.write_text(f"load_from:\n  - grpc_server: {{socket: {code}, location_name: {LOCATION}}}\n")
        wanted = [name for name in PARTS if name in (names or PARTS) and name not in self._parts]
        ends = time.monotonic() + patience_seconds
        if "code" in wanted:
            code.unlink(missing_ok=True)
            served = ("-m", self._module, "-d", str(REPOSITORY), "--location-name", LOCATION)
            self._run("code", "-m", "dagster", "api", "grpc", "-s", str(code), "--log-level", "warning", *served)
            self._wait("code", lambda: _accepts(str(code)), ends)
        if "daemon" in wanted:
            self._run("daemon", "-m", "dagster._daemon", "run", "-w", str(workspace))
        if "webserver" in wanted:
            where = ("-h", "127.0.0.1", "-p", str(self._port), "-w", str(workspace))
            self._run("webserver", "-m", "dagster_webserver", *where)
            self._wait("webserver", self._is_loaded, ends)

    def kill(self, *names: str) -> None:
        """End these parts, or all, by SIGKILL; with the code server, all run workers."""
        self._signal(signal.SIGKILL, names or PARTS)
        for name in names or PARTS:
            self._forget(name)

    def stop(self, *names: str, patience_seconds: float = 10.0) -> None:
        """End these parts, or all, by SIGTERM, run workers too; after a while by SIGKILL."""
        self._signal(signal.SIGTERM, names or PARTS)
        ends = time.monotonic() + patience_seconds
        for name in names or PARTS:
            if name in self._parts:
                try:
                    self._parts[name].wait(max(0.0, ends - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
        self.kill(*names)

    def wipe(self) -> None:
        """Remove Dagster's storage directory. Only while no part runs."""
        shutil.rmtree(self.home)

    def close(self) -> None:
        """End everything."""
        self.stop()
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def ended(self) -> list[str]:
        """Name the parts that have ended by themselves."""
        return [name for name, process in self._parts.items() if process.poll() is not None]

    def pid(self, name: str) -> int:
        """Return the process id of a part that runs."""
        return self._parts[name].pid

    def log(self, name: str, lines: int = 40) -> str:
        """Return the last lines of a part's log."""
        path = self.logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def _run(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-I", "-S", "-c", _EXECUTE, sys.executable, *arguments]
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._parts[name] = process
        self._tell_guard(f"+{process.pid}")

    def _wait(self, name: str, ready: Callable[[], bool], ends: float) -> None:
        while not ready():
            code = self._parts[name].poll()
            if code is not None or time.monotonic() > ends:
                ended = "did not answer in time" if code is None else f"ended with exit code {code}"
                raise StackError(f"Dagster's {name} process {ended}:\n{self.log(name)}")
            time.sleep(_PAUSE_SECONDS)

    def _signal(self, number: signal.Signals, names: tuple[str, ...]) -> None:
        for name in names:
            if name in self._parts:
                try:
                    os.killpg(self._parts[name].pid, number)
                except ProcessLookupError:  # ended by itself, and so did its run workers
                    continue

    def _forget(self, name: str) -> None:
        process = self._parts.pop(name, None)
        if process is not None:
            process.wait()
            self._tell_guard(f"-{process.pid}")

    def _tell_guard(self, line: str) -> None:
        if self._guard is None:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARD], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{line}\n")
        self._guard.stdin.flush()

    # --- GraphQL ----------------------------------------------------------------------------------------------------

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Query the webserver by GraphQL.

        Raises:
            StackError: the answer is an error.
            OSError: the webserver does not answer.
        """
        body = json.dumps({"query": query, "variables": variables})
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            connection.request("POST", "/graphql", body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        if answer.get("errors"):
            raise StackError(f"the webserver refuses: {answer['errors']}")
        data: dict[str, Any] = answer["data"]
        return data

    def _is_loaded(self) -> bool:
        try:
            locations = self.ask(_LOADED)["workspaceOrError"].get("locationEntries", [])
        except OSError:
            return False
        for entry in locations:
            problem = entry["locationOrLoadError"]
            if problem and problem["__typename"] == "PythonError":
                raise StackError(f"location {entry['name']!r} cannot be loaded: {problem['message']}")
        return any(entry["locationOrLoadError"] for entry in locations)


_LOADED = """{workspaceOrError {... on Workspace {locationEntries {
  name locationOrLoadError {__typename ... on PythonError {message}}}}}}"""


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(path)
        except OSError:
            return False
        return True
