"""`make pictures`: the README's pictures of Dagster's UI, made again from a Dagster and a journal of their own."""

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Locator

from examples import MODULES, ledger
from examples.browser import NoBrowser, chromium
from examples.prepare import prepare
from examples.stack import REPOSITORY, Stack
from examples.ui import Ui
from squid_dagster import Squid, load_workflows
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.embedded import EmbeddedPostgres

IMAGES = REPOSITORY / "docs" / "images"
WIDTH, HEIGHT = 1200, 960
_PATIENCE_SECONDS = 90.0

START = """\
ops:
  squid_start_run:
    config:
      workflow: payment_recovery
      payload:
        account_id: acct-7
        amount: 640
      actor: ada
"""
APPROVE = """\
ops:
  squid_approve_run:
    config:
      run_id: {run_id}
      actor: grace
      comment: they will pay
"""


class Screenshots:
    """Pictures of a page, written into a folder."""

    def __init__(self, ui: Ui, folder: Path) -> None:
        """Create the folder if it does not exist."""
        self._ui, self._folder = ui, folder
        folder.mkdir(parents=True, exist_ok=True)

    def page(self, name: str, height: int) -> None:
        """Write a picture of the page in a window of that height."""
        self._resize(height)
        self._ui.page.screenshot(path=self._path(name), animations="disabled")

    def part(self, name: str, part: Locator) -> None:
        """Write a picture of one part of the page, in a window that is large enough for it."""
        self._resize(2 * HEIGHT, 2 * WIDTH)
        part.screenshot(path=self._path(name), animations="disabled")

    def _resize(self, height: int, width: int = WIDTH) -> None:
        self._ui.page.set_viewport_size({"width": width, "height": height})
        self._ui.page.wait_for_timeout(500)  # for transitions

    def _path(self, name: str) -> Path:
        sys.stdout.write(f"    {name}.png\n")
        return self._folder / f"{name}.png"


def take(ui: Ui, squid: Squid, screenshots: Screenshots) -> None:
    """Start a run, approve it, and write the pictures of what a person sees."""
    ui.fill_launchpad("squid_start", START)
    screenshots.page("launchpad", 640)
    ui.launch()
    ui.wait_for_end()
    (run,) = squid.list_runs(limit=1).runs
    _wait(lambda: squid.inspect_run(run.run_id).status == "paused")
    ui.fill_launchpad("squid_approve", APPROVE.format(run_id=run.run_id))
    ui.launch()
    ui.wait_for_end()
    screenshots.page("approved", 860)
    ui.open_output()
    for name in ("graph", "timeline"):
        screenshots.part(name, ui.open_markdown(name))
        ui.close_markdown()
    ui.open("/automation")
    ui.page.get_by_text("squid_recovery_schedule", exact=True).first.wait_for()
    screenshots.page("automation", 430)
    # A drain run shows its attempts when it ends: when nothing was due for a while.
    claim = next(attempt.owner_id for attempt in squid.inspect_run(run.run_id).attempts if attempt.owner_id)
    ui.open(f"/runs/{claim.removeprefix('dagster:')}")
    ui.wait_for_end()
    ui.open_output()
    screenshots.part("attempts", ui.open_markdown("squid/attempts"))


def _wait(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"the run did not come so far within {_PATIENCE_SECONDS:g} s")
        time.sleep(0.1)


def main() -> int:
    """Write all pictures. Return 0 when they are written."""
    with tempfile.TemporaryDirectory(prefix="squid-pictures-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = EmbeddedPostgres(folder / "postgres")
        url = server.ensure_running()
        environment = {"SQUID_DATABASE_URL": url, "SQUID_SCHEMA": "", ledger.LEDGER: str(folder / "ledger.db")}
        try:
            with (
                closing(PostgresStorage(url)) as journal,
                Squid(journal, load_workflows(list(MODULES))) as squid,
                chromium() as browser,
            ):
                journal.upgrade()
                prepare(journal)
                with Stack(folder / "dagster", "definitions", environment) as stack:
                    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
                    page.set_default_timeout(_PATIENCE_SECONDS * 1000)
                    ui = Ui(page, stack.address)
                    take(ui, squid, Screenshots(ui, IMAGES))
        except NoBrowser as error:
            sys.stderr.write(f"make pictures: {error}\n")
            return 1
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
