"""Dagster's UI, driven in a browser: launch from the launchpad, and open what a run shows."""

import re
from pathlib import Path

from playwright.sync_api import Locator, Page

from examples.stack import LOCATION

VIEWPORT = (1400, 900)
_RUN_URL = re.compile(r"/runs/([0-9a-f-]{36})")
_ENDED = re.compile(r"^(RUN_SUCCESS|RUN_FAILURE|RUN_CANCELED)$")


class Ui:
    """One page of the browser, at one Dagster."""

    def __init__(self, page: Page, address: str) -> None:
        """Set the page and the address. Nothing is opened."""
        self.page, self._address = page, address

    def open(self, path: str) -> None:
        """Open a path of the webserver."""
        self.page.goto(self._address + path, wait_until="domcontentloaded")

    def fill_launchpad(self, job: str, config: str) -> None:
        """Open a job's launchpad and replace the configuration there; wait until Dagster finds no error in it."""
        self.open(f"/locations/{LOCATION}/jobs/{job}/playground")
        self._launch_button().wait_for()
        self.page.locator(".CodeMirror").first.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(config)
        self.page.get_by_text("No errors").wait_for()
        self._launch_button().and_(self.page.locator(":enabled")).wait_for()

    def launch(self, *, of_no_day: bool = False) -> str:
        """Click "Launch Run"; return the id of the Dagster run, whose page is open then.

        Of a job that has days, a run of none in particular is to be confirmed.
        """
        self._launch_button().click()
        if of_no_day:
            self.page.get_by_role("button", name="Confirm").click()
        self.page.wait_for_url(_RUN_URL)
        match = _RUN_URL.search(self.page.url)
        assert match is not None
        return match[1]

    def wait_for_end(self, patience_seconds: float = 60) -> str:
        """Wait until the run whose page is open has ended; return the event that says so."""
        event = self.page.get_by_text(_ENDED).first
        event.wait_for(timeout=patience_seconds * 1000)
        return event.inner_text()

    def open_output(self) -> Locator:
        """Open all that the run's op shows, as a dialog."""
        self.page.get_by_text("View full message").first.click()
        return self._dialog()

    def open_markdown(self, name: str) -> Locator:
        """Open one entry that is Markdown, from the dialog that `open_output` opened, or from an asset's page."""
        below = self.page.locator(".bp5-dialog").count()
        row = self.page.locator("tr", has=self.page.get_by_text(name, exact=True))
        row.get_by_text("[Show Markdown]").last.click()
        self.page.locator(".bp5-dialog").nth(below).wait_for()
        return self._dialog()

    def close_markdown(self) -> None:
        """Close it; the dialog below is open then."""
        below = self.page.locator(".bp5-dialog").count() - 1
        self._dialog().get_by_role("button", name="Close").click()
        self.page.locator(".bp5-dialog").nth(below).wait_for(state="detached")

    def keep(self, folder: Path, name: str) -> None:
        """Save the page: a picture, and the document."""
        folder.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=folder / f"{name}.png", animations="disabled")
        (folder / f"{name}.html").write_text(self.page.content())

    def _launch_button(self) -> Locator:
        return self.page.get_by_role("button", name=re.compile("Launch Run"))

    def _dialog(self) -> Locator:
        dialog = self.page.locator(".bp5-dialog").last
        dialog.wait_for()
        return dialog
