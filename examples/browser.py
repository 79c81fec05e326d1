"""A headless Chromium for tests and pictures: one that is installed, or can be installed.

`make browser` installs one: Playwright's own, else the system's package. `SQUID_BROWSER` names another one to use.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Error, Playwright, sync_playwright

BROWSER = "SQUID_BROWSER"
HOW = "no Chromium was found that starts: `make browser` installs one, or SQUID_BROWSER names one"
SYSTEM = ("chromium", "chromium-browser", "google-chrome")


class NoBrowser(RuntimeError):
    """No Chromium can be started here."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless Chromium, for the time of a `with` block.

    Raises:
        NoBrowser: none was found, or none of those that are there starts.
    """
    with sync_playwright() as playwright:
        problems: list[str] = []
        for path in _candidates(playwright):
            try:
                browser = playwright.chromium.launch(executable_path=path, args=_arguments())
            except Error as error:
                problems.append(f"{path or 'the one of Playwright'}: {error.message.splitlines()[0]}")
                continue
            try:
                yield browser
            finally:
                browser.close()
            return
        raise NoBrowser("; ".join([HOW, *problems]))


def _candidates(playwright: Playwright) -> Iterator[str | None]:
    """Yield paths to try; None is Playwright's own."""
    if named := os.environ.get(BROWSER):
        yield named
        return
    if Path(playwright.chromium.executable_path).exists():
        yield None
    yield from (path for path in map(shutil.which, SYSTEM) if path)


def _arguments() -> list[str]:
    # Chromium refuses its sandbox to root; small containers have little shared memory.
    return ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def _starts() -> bool:
    try:
        with chromium() as browser:
            sys.stdout.write(f"==> Chromium {browser.version} starts\n")
            return True
    except NoBrowser:
        return False


def install() -> int:
    """Try each way of installing until a Chromium starts. Return 0 when one does."""
    own = [sys.executable, "-m", "playwright"]
    package = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    ways = [[[*own, "install", "chromium"]]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        ways += [[package], [["apt-get", "update"], package], [[*own, "install-deps", "chromium"]]]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "10000"}
    if _starts():
        return 0
    for way in ways:
        for command in way:
            sys.stdout.write(f"==> {' '.join(command)}\n")
            sys.stdout.flush()
            if subprocess.run(command, env=environment, check=False).returncode:
                break
        if _starts():
            return 0
    sys.stderr.write("no Chromium could be installed: install one by hand, and name it by SQUID_BROWSER if need be\n")
    return 1


if __name__ == "__main__":
    sys.exit(install())
