"""One journal, one Dagster with this repository's code location, and one page of a browser, for all tests here.

They are closed when other tests go on in the same process: a browser's event loop blocks other loops. Without a
Chromium these tests are skipped, and say how to get one; with `CI=true` that is a failure.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from examples import MODULES, ledger
from examples.browser import NoBrowser, chromium
from examples.prepare import prepare
from examples.stack import Stack
from examples.ui import VIEWPORT, Ui
from squid_dagster import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.runtime.adapters import definitions
from tests.scratch import SCRATCH

ARTIFACTS = Path(__file__).parent / "artifacts"
_PATIENCE_MS = 60_000


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    try:
        with chromium() as started:
            yield started
    except NoBrowser as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def schema(schema_names: Iterator[str]) -> str:
    """The schema of the journal."""
    return next(schema_names)


@pytest.fixture(scope="package")
def squid(browser: Browser, postgres_url: str, schema: str) -> Iterator[Squid]:
    """The journal, as seen from outside of Dagster."""
    storage = PostgresStorage(postgres_url, schema)
    storage.upgrade()
    prepare(storage)
    with Squid(storage, definitions(list(MODULES))) as opened:
        yield opened
    storage.close()


@pytest.fixture(scope="package")
def stack(squid: Squid, postgres_url: str, schema: str) -> Iterator[Stack]:
    """Dagster with this repository's code location: code server, daemon and webserver."""
    with tempfile.TemporaryDirectory(prefix="squid-browser-", dir=SCRATCH) as folder:
        environment = {
            "SQUID_DATABASE_URL": postgres_url,
            "SQUID_SCHEMA": schema,
            "SQUID_WAREHOUSE": str(Path(folder) / "warehouse"),
            ledger.LEDGER: str(Path(folder) / "ledger.db"),
        }
        with Stack(Path(folder) / "dagster", "definitions", environment) as started:
            yield started


@pytest.fixture(scope="package")
def page(browser: Browser, stack: Stack) -> Iterator[Page]:
    """A page of the browser."""
    shutil.rmtree(ARTIFACTS, ignore_errors=True)
    opened = browser.new_page(viewport={"width": VIEWPORT[0], "height": VIEWPORT[1]})
    opened.set_default_timeout(_PATIENCE_MS)
    yield opened
    opened.close()


@pytest.fixture
def ui(page: Page, stack: Stack, request: pytest.FixtureRequest) -> Iterator[Ui]:
    """Dagster's UI. However a test ends, the page is kept as it was then."""
    opened = Ui(page, stack.address)
    yield opened
    opened.keep(ARTIFACTS, request.node.name)
