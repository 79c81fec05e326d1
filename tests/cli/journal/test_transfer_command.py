"""`squid journal export` and `import`: a whole journal in another place, or nothing at all."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from squid_dagster.journal import PostgresStorage
from tests.cli.command_line import MAIN, CommandLine
from tests.cli.journal.exports import Maker, busy, dump, imported
from tests.facts import signal
from tests.journal.access import plain_url, put
from tests.processes import REPOSITORY

# --- as a user types it ---------------------------------------------------------------------------------------------


def test_a_file_is_whole_or_not_there_and_is_never_replaced(cli: CommandLine, tmp_path: Path, make: Maker) -> None:
    busy(cli.storage)
    file = tmp_path / "journal.jsonl.gz"
    report = cli("journal", "export", file, "--json").json
    assert [*report] == ["file", "cut", "entries", "threads", "commits", "digest"]
    assert (report["file"], report["cut"]) == (str(file), cli.storage.cut())
    assert json.loads(gzip.decompress(file.read_bytes()).splitlines()[-1])["digest"] == report["digest"]
    assert file.stat().st_mode & 0o777 == 0o600  # readable by its owner alone
    cli("journal", "export", file).refused(1, "is there already")
    cli("journal", "export", tmp_path / "no" / "folder").refused(2, "cannot be written")
    assert [path.name for path in tmp_path.iterdir()] == ["journal.jsonl.gz"]
    cli("journal", "import", file).refused(1, "is not empty")
    cli("journal", "import", tmp_path / "absent").refused(2, "cannot be read")

    there = CommandLine(make())
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(file.read_bytes()[:-100])
    there("journal", "import", cut).refused(2, "cannot be read to its end")
    cut.write_bytes(b"not packed at all\n")
    there("journal", "import", cut, "--json").refused(2, "InvalidExport")
    assert there.facts() == 0
    assert there("journal", "import", file, "--json").json == report
    assert dump(there.storage) == dump(cli.storage)


def test_a_pipe_carries_a_journal_into_another_database(cli: CommandLine, postgres_url: str) -> None:
    busy(cli.storage)
    name = f"other_{cli.storage.schema}"
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    other = make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    storage = PostgresStorage(other, "squid")
    storage.upgrade()
    with cli.process("journal", "export", "-", stderr=subprocess.PIPE) as source:
        environ = {**os.environ, "SQUID_DATABASE_URL": other, "SQUID_SCHEMA": "squid"}
        command = [sys.executable, "-c", MAIN, "journal", "import", "-", "--json"]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environ, stdin=source.stdout, capture_output=True, text=True, check=False
        )
        assert source.stderr is not None
        assert source.stderr.read().startswith("exported ")
    assert (source.returncode, done.returncode, done.stderr) == (0, 0, "")
    assert json.loads(done.stdout)["entries"] == cli.facts()
    assert dump(storage) == dump(cli.storage)
    storage.close()


def test_an_import_that_was_killed_leaves_nothing_and_can_be_repeated(make: Maker, lines: list[bytes]) -> None:
    there = CommandLine(make())
    with there.process("journal", "import", "-", "--json", stdin=subprocess.PIPE) as killed:
        assert killed.stdin is not None
        killed.stdin.write(b"".join(lines[:30]).decode())
        killed.stdin.flush()
        ends = time.monotonic() + 30
        while not _is_copying(there.storage):
            assert time.monotonic() < ends, "it never began"
        killed.kill()
    assert there.facts() == 0
    assert (
        imported(there.storage, lines).entries == there.facts() == len(lines) - 2 - len(dump(there.storage)["commits"])
    )


def _is_copying(storage: PostgresStorage) -> bool:
    return bool(storage.rows("SELECT FROM pg_stat_activity WHERE query LIKE %s", f"COPY%{storage.schema}%entries%"))


def test_a_pipe_that_is_closed_early_is_told_and_nothing_is_left(cli: CommandLine) -> None:
    put(cli.storage, *(signal(payload={"x": "y" * 50_000}) for _ in range(20)))
    with cli.process("journal", "export", "-") as source:
        assert source.stdout is not None
        assert source.stderr is not None
        source.stdout.readline()
        source.stdout.close()
        assert source.stderr.read().count("\n") == 1
    assert source.returncode == 141
