"""What README and guides show works as it is written: every block is run, or says in the document why it is not.

`SQUID_UPDATE_DOCS=1 pytest tests/test_docs.py` writes what commands print now into the documents.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import psycopg
import pytest

from squid_dagster.cli.doctor.findings import CODES
from squid_dagster.cli.quickstart.files import FLOW
from squid_dagster.cli.reference import reference
from squid_dagster.inspection.explain.reasons import RunReason
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.anomalies import Reason
from squid_dagster.protocol.facts import FACT_TYPES
from tests.docs.blocks import ROOT, blocks, documents
from tests.docs.inline_commands import inline_commands, read_command
from tests.docs.reader import Counted, Reader, reader
from tests.docs.states import CHANGED_SHOP, SHOP, bring_about
from tests.journal.access import plain_url
from tests.scratch import SCRATCH

RUNBOOK = "docs/runbook/"
PAGES = [name for name in documents() if name.startswith(RUNBOOK) and not name.endswith("README.md")]
GUIDES = [name for name in documents() if name not in PAGES]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

_total = Counted()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """An embedded server for all documents, as without any configuration."""
    with tempfile.TemporaryDirectory(prefix="squid-docs-", dir=SCRATCH) as directory:
        Path(directory).chmod(0o755)
        made = EmbeddedPostgres(Path(directory) / "postgres")
        with psycopg.connect(plain_url(made.ensure_running()), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # nothing here outlives the tests
            connection.execute("SELECT pg_reload_conf()")
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def read(
    request: pytest.FixtureRequest,
    server: EmbeddedPostgres,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Reader]:
    """A reader of the document of this test, with a journal of its own."""
    environment = {"SQUID_DATA_DIR": str(server.data_dir), "SQUID_SCHEMA": schema}
    if request.param == "docs/dagster.md":  # its snippets name the variable
        environment["SQUID_DATABASE_URL"] = server.url
    with reader(request.param, tmp_path, environment, monkeypatch) as made:
        yield made


def _count(counted: Counted) -> None:
    for name in ("blocks", "run", "skipped"):
        setattr(_total, name, getattr(_total, name) + getattr(counted, name))


@pytest.mark.parametrize("read", GUIDES, indirect=True)
def test_every_block_of_a_guide_runs_or_says_why_not(read: Reader) -> None:
    _count(read.read())


@pytest.mark.parametrize("read", PAGES, indirect=True)
def test_a_page_of_the_runbook_shows_its_reason_and_its_commands_run(
    read: Reader, server: EmbeddedPostgres, schema: str, tmp_path: Path
) -> None:
    # given a journal with a run that stands where the page begins
    storage = PostgresStorage(server.ensure_running(), schema)
    try:
        storage.upgrade()
        bring_about(storage, RunReason(Path(read.document).stem))
    finally:
        storage.close()
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "changed_shop.py").write_text(CHANGED_SHOP)
    # when a reader goes through it, then all is as it says
    counted = read.read()
    _count(counted)
    explained = blocks(read.document)[0].commands[0]
    assert explained.text.startswith("squid run explain run-1")
    assert any(re.fullmatch(rf"reason\s+{Path(read.document).stem}\s*", line) for line in explained.shown)


def test_every_reason_has_its_page_and_every_page_a_reason() -> None:
    assert sorted(Path(name).stem for name in PAGES) == sorted(RunReason)
    index = (ROOT / RUNBOOK / "README.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| \[`(\w+)`\]\(\1\.md\)", index, re.MULTILINE)) == sorted(RunReason)


def test_every_page_of_the_runbook_says_the_same_things_in_the_same_order() -> None:
    for name in PAGES:
        text = (ROOT / name).read_text("utf-8")
        assert text.startswith(f"# `{Path(name).stem}`\n")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
            "What it means",
            "How it looks",
            "What to do",
            "What not to do",
        ], name


def test_the_reference_of_the_command_is_up_to_date() -> None:
    command = "python -m squid_dagster.cli.reference > docs/cli.md"
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == reference(), f"run: {command}"


@pytest.mark.parametrize("name", documents())
def test_commands_in_text_and_tables_would_be_taken(name: str) -> None:
    for inline in inline_commands(name):
        try:
            read_command(inline.text)
        except click.UsageError as error:
            pytest.fail(f"{inline.place}: `{inline.text}`: {error.format_message()}")
        _total.inline += 1


@pytest.mark.parametrize("name", documents())
def test_links_lead_somewhere(name: str) -> None:
    for link in _LINK.findall((ROOT / name).read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert target.exists(), f"{name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{name}: {link}"


@pytest.mark.parametrize("name", documents())
def test_no_document_tells_of_the_machine_that_it_was_written_on(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert re.findall(r"/(?:tmp|root|home)/\S+", text) == []


def _anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_tutorial_shows_the_workflow_that_the_quickstart_writes() -> None:
    (shown,) = (block for block in blocks("docs/getting-started.md") if block.file == "coffee.py")
    assert shown.text == f"# coffee.py\n{FLOW}"


def test_the_protocol_names_every_fact_and_every_anomaly() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    assert [name for name in (*FACT_TYPES, *Reason) if f"`{name}`" not in text] == []


def test_the_changelog_counts_the_facts() -> None:
    assert f"{len(FACT_TYPES)} fact types" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_operations_name_everything_that_the_doctor_finds() -> None:
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert [code for code in CODES if f"| `{code}` |" not in text] == []


def test_the_comparison_shows_the_figures_of_the_readme() -> None:
    def figures(name: str) -> list[list[str]]:
        rows = re.findall(r"^\| .*\b(?:a second|in ms) \|.*$", (ROOT / name).read_text("utf-8"), re.MULTILINE)
        return [[cell.strip(" *") for cell in row.split("|")] for row in rows]

    assert figures("docs/comparison.md") == figures("README.md") != []


def test_the_index_names_every_guide() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(index.read_text("utf-8"))}
    assert {ROOT / name for name in GUIDES if name.startswith("docs/")} - {index} <= linked


def test_blocks_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    assert _total.blocks == _total.run + _total.skipped
    with capfd.disabled():
        sys.stderr.write(f"\ndocuments: {_total}\n")
