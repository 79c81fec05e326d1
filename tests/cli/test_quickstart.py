"""`squid quickstart`, as a newcomer types it: real processes, a real kill, and nothing left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest

from squid_dagster.cli.quickstart.files import FLOW, SLOW_STEP, WORKFLOW
from squid_dagster.journal.embedded import EmbeddedPostgres
from tests.journal.access import plain_url
from tests.scratch import SCRATCH

MAIN = "from squid_dagster.cli import main; main(prog_name='squid')"
PATIENCE = 120
MARK = "SQUID_QUICKSTART_TEST"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that the embedded server's user can traverse, with an XDG home of its own."""
    with tempfile.TemporaryDirectory(prefix="squid-quickstart-", dir=SCRATCH) as name:
        Path(name).chmod(0o755)
        yield Path(name)
        EmbeddedPostgres(Path(name) / "squid_dagster").stop()


def environment(folder: Path) -> dict[str, str]:
    unset = ("SQUID_DATABASE_URL", "DATABASE_URL", "SQUID_DATA_DIR", "SQUID_SCHEMA", "KUBERNETES_SERVICE_HOST")
    environ = {name: value for name, value in os.environ.items() if name not in unset}
    return {**environ, "XDG_DATA_HOME": str(folder), MARK: str(folder)}


def squid(folder: Path, *arguments: object, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.run(
        command,
        env=environment(folder) | environ,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def processes(folder: Path) -> list[str]:
    """Return the command lines of all processes that were started for this folder."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                pids.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return pids


class Quickstart:
    """A quickstart in a process of its own."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "quickstart", *map(str, arguments)],
            env=environment(folder),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out, self._notes = self.process.stdout, self.process.stderr
        self.said: list[str] = []
        self._news = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._notes:
            with self._news:
                self.said.append(line.strip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_until(self, said: Callable[[list[str]], bool]) -> None:
        with self._news:
            self._news.wait_for(lambda: said(self.said) or self.process.poll() is not None, PATIENCE)
        assert said(self.said), self.said

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        self._listener.join(PATIENCE)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.interrupt()
        self.out.close()
        self._notes.close()


def test_a_worker_is_killed_and_the_run_is_finished_by_another_one(folder: Path) -> None:
    # given a quickstart that has said its three lines
    started = Quickstart(folder, "killed", "--seconds", 4, "--lease", 2)
    try:
        lines = [started.out.readline().rstrip("\n") for _ in range(3)]
        opened, kill, watch = (line.partition(":")[2].strip() for line in lines)
        assert [line.partition(":")[0] for line in lines] == ["open this", "kill this process", "watch it finish"]
        # when the worker is killed in the middle of the step
        assert kill.split()[:2] == ["kill", "-9"]
        worker = int(kill.split()[2])
        os.kill(worker, signal.SIGKILL)
        # then the UI is there
        with urlopen(f"{opened}/server_info") as answer:  # noqa: S310
            assert "dagster_webserver_version" in json.load(answer)
        # and watching tells of the end, as it was told to be watched
        watched = squid(folder, *watch.split()[1:], "--timeout", PATIENCE)
        assert watched.returncode == 0, watched.stderr
        run_id = watch.split()[3]
        shown = json.loads(squid(folder, "run", "inspect", run_id, "--json").stdout)
        (brewed,) = (attempt for attempt in shown["attempts"] if attempt["step"] == "brew")
        assert shown["status"] == "completed"
        assert brewed["deliveries"] > 1
        assert str(worker) not in brewed["owner_id"].split("-")
        started.wait_until(lambda said: any("the run is over: completed" in line for line in said))
        assert any(f"worker {worker} was ended by SIGKILL" in line for line in started.said)
        assert any("has taken over step 'brew'" in line for line in started.said)
    finally:
        # and Ctrl-C ends it all
        code = started.interrupt()
        started.close()
    assert code == 0
    assert processes(folder) == []
    assert not EmbeddedPostgres(folder / "squid_dagster").status().running


def test_a_server_that_others_use_is_left_running(folder: Path) -> None:
    # given a quickstart that has started the server, and another client of it
    server = EmbeddedPostgres(folder / "squid_dagster")
    server.stop()
    started = Quickstart(folder, "shared", "--no-ui", "--seconds", 600)
    try:
        assert started.out.readline().startswith("open this")
        with psycopg.connect(plain_url(server.url)) as other:
            # when the quickstart ends, then it says that it leaves the server alone, and the other can go on
            assert started.interrupt() == 0
            assert any("is left running: others use it" in line for line in started.said)
            assert other.execute("SELECT 1").fetchone() == (1,)
    finally:
        started.close()
    assert processes(folder) == []
    assert server.stop()


def test_workers_that_cannot_start_are_not_started_for_ever(folder: Path) -> None:
    # given a quickstart whose workflow breaks while it runs
    started = Quickstart(folder, "broken", "--no-ui", "--seconds", 600)
    try:
        kill = [started.out.readline() for _ in range(3)][1]
        (folder / "broken" / "coffee.py").write_text("raise RuntimeError('out of beans')\n")
        # when a worker is killed, so that others must be started
        os.kill(int(kill.split()[-1]), signal.SIGKILL)
        # then it gives up after a few, and says what they said
        started.wait_until(lambda said: any(line.startswith("Error: ") for line in said))
        assert started.process.wait(PATIENCE) == 1
    finally:
        started.close()
    said = started.said[-1]
    assert "out of beans" in said
    assert str(folder / "broken" / ".squid" / "logs" / "worker.log") in said
    assert sum("another one is started" in line for line in started.said) == 3
    assert processes(folder) == []


def test_what_it_started_ends_with_it_even_if_it_is_killed(folder: Path) -> None:
    started = Quickstart(folder, "gone", "--no-ui", "--seconds", 600)
    try:
        assert started.out.readline().startswith("open this")
        assert any(" worker " in line for line in processes(folder))
        started.process.kill()
        started.process.wait()
        ends = time.monotonic() + PATIENCE
        while any(" worker " in line for line in processes(folder)) and time.monotonic() < ends:
            time.sleep(0.05)
    finally:
        started.close()
    assert [line for line in processes(folder) if " worker " in line] == []


def test_without_a_ui_it_says_so_in_one_document_and_leaves_an_existing_file_alone(folder: Path) -> None:
    # given a workflow of the user's own, where the quickstart would write its one
    ours = folder / "kept"
    ours.mkdir()
    text = FLOW + "\n# mine\n"
    (ours / "coffee.py").write_text(text)
    # when it is started, then for a program all is in one document
    done = squid(folder, "quickstart", "kept", "--no-ui", "--seconds", 0.2, "--until-done", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["written"], document["url"], document["workflow_file"]) == (False, None, str(ours / "coffee.py"))
    assert set(document) == {
        "directory",
        "workflow_file",
        "written",
        "logs",
        "data_dir",
        "url",
        "run_id",
        "worker_pid",
        "worker_pids",
        "kill",
        "watch",
    }
    assert document["watch"] == f"squid run watch {document['run_id']}"
    assert done.stderr == ""
    shown = json.loads(squid(folder, "run", "inspect", document["run_id"], "--json").stdout)
    assert shown["status"] == "completed"
    assert (ours / "coffee.py").read_text() == text
    assert processes(folder) == []


def test_another_terminal_is_told_where_the_journal_is_unless_that_is_the_usual_place(folder: Path) -> None:
    elsewhere = {"SQUID_DATA_DIR": str(folder / "elsewhere"), "SQUID_SCHEMA": "mine"}
    asked = ("quickstart", "told", "--no-ui", "--seconds", 0.1, "--until-done", "--json")
    document = json.loads(squid(folder, *asked, **elsewhere).stdout)
    where = f"--data-dir {folder / 'elsewhere'} --schema mine"
    assert document["watch"] == f"squid run watch {document['run_id']} {where}"
    # when it is pasted where nothing of this is exported, then the run is found
    assert squid(folder, *document["watch"].split()[1:]).returncode == 0
    assert squid(folder, "db", "stop", "--data-dir", folder / "elsewhere").returncode == 0


def test_without_dagster_it_says_how_to_install_it_and_goes_on_with_workers(folder: Path) -> None:
    missing = f"import sys; sys.modules['dagster'] = None; {MAIN}"
    command = [sys.executable, "-c", missing, "quickstart", "plain", "--seconds", "0.1", "--until-done"]
    done = subprocess.run(
        command, env=environment(folder), cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'squid-dagster[dagster]' dagster-webserver" in done.stderr
    assert done.stderr.count("the run is over: completed") == 1
    assert done.stdout.startswith("open this:          another terminal (there is no UI)\nkill this process:  kill -9 ")
    assert (folder / "plain" / "coffee.py").exists()
    assert processes(folder) == []


def test_a_port_that_is_in_use_is_refused_before_anything_is_written(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = squid(folder, "quickstart", "busy", "--port", other.getsockname()[1], "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr)["error"] == "Refused"
    assert not (folder / "busy").exists()


def test_a_directory_that_cannot_be_used_is_bad_input(folder: Path) -> None:
    (folder / "file").write_text("in the way")
    for where in ("file", "file/below"):
        done = squid(folder, "quickstart", where, "--no-ui")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1


def test_the_workflow_that_it_writes_is_sound_and_small() -> None:
    namespace: dict[str, object] = {"__name__": "coffee"}
    exec(compile(FLOW, "coffee.py", "exec"), namespace)  # noqa: S102
    workflow = namespace["coffee"]
    assert getattr(workflow, "name", None) == WORKFLOW
    assert SLOW_STEP in namespace
    assert len(FLOW.splitlines()) < 45
