"""Real Spark for tests: a standalone master with a worker, a Connect server, and the processes below them, by /proc."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from squid_dagster.journal.embedded.deadline import Deadline
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.fold.folds import COLUMNS, fold_runs
from squid_dagster.spark.session.java import find_java
from squid_dagster.spark.source.data_source import read_journal
from tests.processes import REPOSITORY
from tests.spark.reading import location

HOST = "127.0.0.1"
SECRET = "s3cret-of-the-journal"
_PYSPARK = Path(pyspark.__file__).parent
_SPARK_CLASS = _PYSPARK / "bin" / "spark-class"
_CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_WAIT_SECONDS = 240


class Program:
    """A program with its own processes below it, whose lines are read as they come; it is told things by lines too."""

    def __init__(self, *command: str | Path, env: Mapping[str, str] | None = None) -> None:
        """Start it, with a Java that Spark can run on."""
        self.said: list[str] = []
        self._news = threading.Condition()
        given = {
            "JAVA_HOME": str(find_java().home),
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # quick to start; none lives for long
            "SPARK_LOCAL_IP": HOST,
            "PYTHONPATH": str(REPOSITORY),
        }
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **given, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.said.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, pattern: str, times: int = 1) -> str:
        """Wait until it has said so, so many times; give what stood in the pattern's brackets the last time."""

        def matching() -> list[str]:
            return [match[1] for line in self.said if (match := re.search(pattern, line))]

        with self._news:
            self._news.wait_for(lambda: len(matching()) >= times or not self._reader.is_alive(), _WAIT_SECONDS)
            texts = matching()
        assert len(texts) >= times, f"it never said {pattern!r}: {''.join(self.said[-60:])}"
        return texts[times - 1]

    def told(self, what: str, times: int = 1) -> Any:
        """Wait for its line of JSON about something, the first or a later one, and give it."""
        return json.loads(self.wait_for(rf'^({{"{what}": .*}})$', times))[what]

    def wait_for_file(self, path: Path) -> str:
        """Wait until it, or a process below it, has written a file; give what stands in it."""
        waiting = Deadline(timedelta(seconds=_WAIT_SECONDS))
        while not path.exists():
            assert self.process.poll() is None, f"it has ended: {''.join(self.said[-60:])}"
            assert waiting.pause(), f"no {path}: {''.join(self.said[-60:])}"
        return path.read_text()

    def tell(self, line: str) -> None:
        """Return it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def processes(self) -> list[int]:
        """Return its process and all below it."""
        return [self.process.pid, *descendants(self.process.pid)]

    def end(self) -> None:
        """End it, and whatever it has started."""
        for pid in self.processes()[::-1]:
            kill(pid)
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def running(*command: str | Path, env: Mapping[str, str] | None = None) -> Iterator[Program]:
    """Run a program; nothing of it is left afterwards."""
    program = Program(*command, env=env)
    try:
        yield program
    finally:
        program.end()


@contextmanager
def spark_home() -> Iterator[str]:
    """Yield pyspark's directory under another name: executors of `local-cluster` leave their logs in it."""
    with tempfile.TemporaryDirectory(prefix="squid-spark-home-") as home:
        for path in _PYSPARK.iterdir():
            if path.name != "work":
                (Path(home) / path.name).symlink_to(path)
        yield home


@contextmanager
def driver(master: str, storage: PostgresStorage, log: Path) -> Iterator[Program]:
    """Run `tests.spark.driver` on a master; the URL that it hands to executors holds a password, `SECRET`.

    The server asks no client for one, so any password works.
    """
    url = storage.engine.url
    order = {
        "master": master,
        "settings": quiet(log) if master.startswith(("local", "spark")) else {},
        "url": url.render_as_string(hide_password=False),
        "secret_url": url.set(password=SECRET).render_as_string(hide_password=False),
        "schema": storage.schema,
    }
    with spark_home() as home, running(sys.executable, "-m", "tests.spark.driver", env={"SPARK_HOME": home}) as program:
        program.tell(json.dumps(order))  # not as an argument: every user can see those
        yield program


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster: what to give as `spark_master`, its programs, and where its web pages are."""

    master: str
    programs: list[Program]
    web: str


@contextmanager
def standalone(work: Path) -> Iterator[Cluster]:
    """Yield a standalone master with one worker of two cores, on loopback and free ports."""
    env = {"SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false", "SPARK_DAEMON_MEMORY": "256m"}
    place = ["--host", HOST, "--port", "0", "--webui-port", "0"]
    size = ["--cores", "2", "--memory", "1g", "--work-dir", str(work)]
    with running(_SPARK_CLASS, "org.apache.spark.deploy.master.Master", *place, env=env) as master:
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        web = master.wait_for(r"MasterWebUI.* started at http://\S+:(\d+)")
        with running(_SPARK_CLASS, "org.apache.spark.deploy.worker.Worker", *place, *size, url, env=env) as worker:
            worker.wait_for("Successfully (registered) with master")
            yield Cluster(url, [master, worker], f"http://{HOST}:{web}")


@contextmanager
def connect_server(log: Path, *, env: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Yield a Connect server on `local[2]`, on loopback and a free port, with an event log and web pages."""
    settings = {
        **quiet(log),
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.master": "local[2]",
        "spark.pyspark.python": sys.executable,
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submit: list[str | Path] = [
        _SPARK_CLASS,
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        _CONNECT_SERVER,
        *options,
    ]
    with running(*submit, "spark-internal", env=env) as server:
        port = server.wait_for(r"Spark Connect server started at: \S+:(\d+)")
        web = server.wait_for(r"Successfully started service 'SparkUI' on port (\d+)")
        yield Cluster(f"sc://{HOST}:{port}", [server], f"http://{HOST}:{web}")


def quiet(log: Path) -> dict[str, str]:
    """Return settings of an observable session: an event log, web pages on a free port, little memory."""
    return {
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": log.as_uri(),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }


def web_pages(web: str) -> list[str]:
    """Return what an application's web pages know, as JSON: settings, executors, jobs, stages and plans."""
    (application,) = json.loads(page(f"{web}/api/v1/applications"))
    about = f"{web}/api/v1/applications/{application['id']}"
    names = ("environment", "allexecutors", "jobs", "stages?details=true", "sql?details=true&planDescription=true")
    return [page(f"{about}/{name}") for name in names]


def page(url: str) -> str:
    """Return what stands at an address."""
    with urllib.request.urlopen(url, timeout=_WAIT_SECONDS) as answer:  # noqa: S310  our own, on loopback
        text: str = answer.read().decode()
        return text


def descendants(pid: int) -> list[int]:
    """Return all processes below one, nearest first."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        parent = parent_of(int(path.name))
        if parent is not None:
            parents.setdefault(parent, []).append(int(path.name))
    processes, waiting = [], [pid]
    while waiting:
        below = parents.get(waiting.pop(0), [])
        processes += below
        waiting += below
    return processes


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def command_line(pid: int) -> str:
    """Return the command line of a process, separated by NUL characters; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def kill(pid: int) -> None:
    """End a process by SIGKILL, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def digest(frame: DataFrame) -> str:
    """Return what a table says, whatever the order of its rows."""
    rows = sorted(row.told for row in frame.select(f.to_json(f.struct("*")).alias("told")).collect())
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def logged(directory: Path) -> list[str]:
    """Return the lines of Spark's event logs so far; one that is not yet whole is left out."""
    files = [path for path in directory.rglob("events_*") if path.is_file()]
    lines = [line for path in files for line in path.read_text(errors="replace").splitlines(keepends=True)]
    return [line for line in lines if line.endswith("\n")]


def events(directory: Path) -> list[dict[str, Any]]:
    """Return what Spark has written about itself so far."""
    return [json.loads(line) for line in logged(directory)]


def assert_as_in_this_process(spark: SparkSession, storage: PostgresStorage, looked: Mapping[str, Any]) -> None:
    """Assert that a driver program computed what this process's own session computes."""
    schema, upto = storage.schema, storage.cut()
    frame = read_journal(spark, location(storage), schema=schema, upto=upto, only=COLUMNS, partitions=2)
    assert looked["entries"] == frame.count() > 0
    assert looked["units"] == digest(fold_runs(frame, 2))


def assert_hidden(shown: Sequence[str], directory: Path) -> None:
    """Assert that the password is neither in the texts nor in any file below the directory, such as an event log."""
    files = [path.read_text(errors="replace") for path in directory.rglob("*") if path.is_file()]
    assert any("squid_journal" in text for text in shown)
    assert any("squid_journal" in text for text in files)
    assert not [text for text in [*shown, *files] if SECRET in text]
