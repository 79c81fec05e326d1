"""`python -m examples.cli_pictures`: a worker is killed in the middle of a step, and another one finishes its run.

Three pictures of the output of `squid run explain` and `squid run timeline`, as SVG in docs/images. The run is real:
an embedded Postgres, two workers as processes, a SIGKILL. Ids of workers are masked, and times begin at nine o'clock.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from examples.stack import REPOSITORY
from squid_dagster import Squid
from squid_dagster.cli.place import Place
from squid_dagster.cli.quickstart.files import FLOW, MODULE, SLOW_STEP
from squid_dagster.cli.run.display import explanation_shown, timeline_shown
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from rich.console import RenderableType

IMAGES = REPOSITORY / "docs" / "images"
RUN = "table-4"
LEASE_SECONDS = 2.0
STEP_SECONDS = 4.0
WIDTH = 108
NINE = datetime.fromisoformat("2026-11-16T09:00:00+00:00")
_COMMAND = "from squid_dagster.cli import main; main(prog_name='squid')"
_PATIENCE_SECONDS = 60.0
_WORKER = re.compile(r"[\w.-]+-\d+-[0-9a-f]{8}")
_FRAME = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # no fonts from elsewhere
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ])(\d\d:\d\d:\d\d)(Z?)")


class TerminalPictures:
    """Pictures of the output of commands, with the same ids and times every time."""

    def __init__(self, folder: Path, began: datetime) -> None:
        """Set the folder, and the time that is shown as nine o'clock."""
        self._folder, self._shift = folder, NINE - began.replace(microsecond=0)
        self._workers: dict[str, str] = {}

    def take(self, name: str, command: str, shown: "list[RenderableType]") -> None:
        """Write one picture: a command and its output."""
        plain = Console(width=WIDTH, record=True, file=StringIO(), force_terminal=True, color_system="truecolor")
        for part in shown:
            plain.print(part, highlight=False, markup=False) if isinstance(part, str) else plain.print(part)
        text = Text.from_ansi(self._masked(plain.export_text(styles=True)))
        drawn = Console(width=WIDTH, record=True, file=StringIO(), force_terminal=True, color_system="truecolor")
        drawn.print(text, soft_wrap=True)
        path = self._folder / f"{name}.svg"
        drawn.save_svg(str(path), title=f"$ {command}", code_format=_FRAME, unique_id=name)
        sys.stdout.write(f"    {path.relative_to(REPOSITORY)}\n")

    def _masked(self, text: str) -> str:
        names = self._workers
        text = _WORKER.sub(lambda match: names.setdefault(match[0], f"worker-{len(names) + 1}"), text)
        return _TIME.sub(lambda match: self._moved(match[0], match[1], match[3]), text)

    def _moved(self, text: str, between: str, zone: str) -> str:
        at = datetime.fromisoformat(text.removesuffix("Z") + "+00:00") + self._shift
        return f"{at:%Y-%m-%d}{between}{at:%H:%M:%S}{zone}"


@contextmanager
def worker(folder: Path, url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a worker in a process of its own, for the time of a `with` block."""
    command = [sys.executable, "-c", _COMMAND, "worker", "-m", MODULE, "--lease", f"{LEASE_SECONDS:g}"]
    with (folder / "worker.log").open("ab") as log:
        environment = {**os.environ, "SQUID_DATABASE_URL": url}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(_PATIENCE_SECONDS)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises `TimeoutError` when it does not within a minute."""
    ends = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"the run did not come so far within {_PATIENCE_SECONDS:g} s")
        time.sleep(0.05)


def play(folder: Path, url: str, squid: Squid) -> None:
    """Kill a worker in the middle of the slow step, let another one finish, and take pictures on the way."""
    squid.start("coffee", {"drink": "lungo", "seconds": STEP_SECONDS}, run_id=RUN, actor="ada")
    started = squid.inspect_run(RUN).started_at
    assert started is not None
    pictures = TerminalPictures(IMAGES, started)

    def reason(wanted: str) -> Callable[[], bool]:
        def holds() -> bool:
            explanation = squid.explain_run(RUN)
            return explanation.reason == wanted and (explanation.step in (None, SLOW_STEP))

        return holds

    with worker(folder, url) as first:
        wait_for(reason("attempt_claimed"))
        pictures.take("kill-1-claimed", f"squid run explain {RUN}", explanation_shown(squid.explain_run(RUN), Place()))
        first.kill()
        first.wait()
    wait_for(reason("expired_claim"))
    pictures.take("kill-2-killed", f"squid run explain {RUN}", explanation_shown(squid.explain_run(RUN), Place()))
    with worker(folder, url):
        wait_for(lambda: squid.inspect_run(RUN).terminal)
    pictures.take("kill-3-done", f"squid run timeline {RUN}", timeline_shown(squid.inspect_run_timeline(RUN)))


@contextmanager
def opened(url: str) -> Iterator[Squid]:
    """Open the journal of an empty server, for the time of a `with` block."""
    journal = PostgresStorage(url)
    try:
        journal.upgrade()
        with Squid(journal, MODULE, lease=timedelta(seconds=LEASE_SECONDS)) as squid:
            yield squid
    finally:
        journal.close()


def main() -> int:
    """Write all pictures. Return 0 when they are written."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="squid-pictures-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / f"{MODULE}.py").write_text(FLOW)
        sys.path.insert(0, name)
        server = EmbeddedPostgres(folder / "postgres")
        try:
            url = server.ensure_running()
            with opened(url) as squid:
                play(folder, url, squid)
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
