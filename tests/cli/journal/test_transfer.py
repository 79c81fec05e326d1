"""`squid journal export` and `import`: a whole journal in another place, equal in everything, or nothing at all."""

import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from hypothesis import given, settings
from psycopg import sql
from sqlalchemy import make_url

from squid_dagster.api import Squid
from squid_dagster.backlog.postgres.rebuild import differences, rebuild_within
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, VirtualClock, rebuild_views, verify
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.drift import drift
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.journal.transfer import transfer as transfer_module
from squid_dagster.journal.transfer.line_format import InvalidExport
from squid_dagster.journal.transfer.transfer import JournalNotEmpty, Transferred, export_journal, import_journal
from squid_dagster.protocol import Fact, RunUnit
from tests.cli.command_line import MAIN, Typed
from tests.cli.workflows import hello, nap, orders
from tests.facts import T0, queue_paused, signal, started
from tests.histories import histories
from tests.journal.access import AWKWARD, WITHOUT_SHRINKING, all_entries, plain_url, put, raw, wait_for_a_lock
from tests.processes import REPOSITORY

Maker = Callable[..., PostgresStorage]

_DUMP: dict[str, LiteralString] = {
    "entries": "SELECT to_jsonb(v)::text, v.data::text FROM {schema}.journal_entries v ORDER BY position",
    "threads": "SELECT id, {schema}.revision_of(id, rev) FROM {schema}.journal_threads ORDER BY id",
    "commits": "SELECT to_jsonb(v)::text, v.receipt::text FROM {schema}.journal_commits v ORDER BY id",
    "runs": "SELECT to_jsonb(v)::text FROM {schema}.runs v ORDER BY run_id",
    "attempts": "SELECT to_jsonb(v)::text FROM {schema}.attempts v ORDER BY run_id, runnable_key",
    "children": "SELECT to_jsonb(v)::text FROM {schema}.children v ORDER BY run_id, child_run_id",
    "queues": "SELECT to_jsonb(v)::text FROM {schema}.queues v ORDER BY queue",
    "anomalies": "SELECT to_jsonb(v)::text FROM {schema}.anomalies v ORDER BY thread, seq, ordinal",
    "backlog": "SELECT to_jsonb(v)::text FROM {schema}.backlog v ORDER BY id",
}


def dump(storage: PostgresStorage) -> dict[str, list[Any]]:
    """Everything that a journal holds, but for caches that nobody can see."""
    return {name: storage.rows(text) for name, text in _DUMP.items()}


def exported(storage: PostgresStorage) -> list[bytes]:
    lines: list[bytes] = []
    export_journal(storage, lines.append)
    return lines


def imported(storage: PostgresStorage, lines: list[bytes]) -> Transferred:
    return import_journal(storage, lines, also=rebuild_within)


def slip_in(storage: PostgresStorage, thread: str, type_name: str, run_id: str | None, data: str) -> None:
    """Write an entry that our own code would not, as a later version or a broken one might have."""
    with raw(storage) as connection, connection.transaction():
        connection.execute("INSERT INTO journal_threads VALUES (%s, 0) ON CONFLICT DO NOTHING", (thread,))
        connection.execute("UPDATE journal_threads SET rev = revision_of(id, rev) + 1 WHERE id = %s", (thread,))
        connection.execute(
            """INSERT INTO journal_entries
               SELECT nextval('journal_numbers') << 20, t.id, t.rev, v.type, v.run_id, %(at)s, v.data,
                      entry_digest(t.id, t.rev, v.type, v.run_id, %(at)s, v.data)
                 FROM journal_threads t, (SELECT %(type)s::text, %(run)s::text, %(data)s::json) v (type, run_id, data)
                WHERE t.id = %(thread)s""",
            {"at": T0, "thread": thread, "type": type_name, "run": run_id, "data": data},
        )


@pytest.fixture(scope="module")
def make(postgres_url: str, schema_names: Iterator[str]) -> Iterator[Maker]:
    """Makes empty journals, by the database's clock unless told otherwise."""
    made: list[PostgresStorage] = []

    def new(**options: Any) -> PostgresStorage:
        made.append(PostgresStorage(postgres_url, next(schema_names), **options))
        made[-1].upgrade()
        return made[-1]

    yield new
    for storage in made:
        storage.close()


@pytest.fixture(scope="module")
def lines(make: Maker) -> list[bytes]:
    """An export of a small journal that holds something of everything."""
    return exported(busy(make()))


@pytest.fixture(scope="module")
def empty(make: Maker) -> Iterator[PostgresStorage]:
    """A journal that stays empty whatever is tried: its positions too are as they were."""
    storage = make()
    before = dump(storage)
    yield storage
    assert dump(storage) == before
    assert storage.rows("SELECT {schema}.cut(), is_called FROM {schema}.journal_numbers") == [(0, False)]
    assert not storage.rows("SELECT FROM pg_tables WHERE schemaname = %s AND tablename LIKE '%%shadow'", storage.schema)


def busy(storage: PostgresStorage) -> PostgresStorage:
    """Leave runs that are done, open, waiting and due later, a paused queue, cards, and what nobody can read."""
    squid = Squid(storage, [hello, orders, nap])
    squid.start_many("hello", [{"name": f"n{n}"} for n in range(5)])
    squid.start("orders", {"item": "tea", "password": "hunter2"})
    squid.start("nap")
    squid.pause_queue("slow", idempotency_key="once", metadata={"why": "AWKWARD"})
    squid.worker(until_idle=True)
    squid.start("hello", {"name": "waits"})
    squid.backlog.create("a", "first", acceptance=AWKWARD)
    squid.backlog.create("b", "second", depends_on=["a"])
    squid.backlog.claim("ada")
    put(storage, signal("odd", payload=AWKWARD), started("odd"))
    slip_in(storage, "squid:run:odd", "run_teleported", "odd", '{ "to" : "mars",\n  "n": 1.00, "n": 2 }')
    slip_in(storage, "squid:dispatch:default", "attempt_claimed", "odd", "{}")
    rebuild_views(storage)
    return storage


# --- what is refused ------------------------------------------------------------------------------------------------


def without(lines: list[bytes], number: int) -> list[bytes]:
    return lines[:number] + lines[number + 1 :]


def replaced(lines: list[bytes], number: int, old: bytes, new: bytes) -> list[bytes]:
    assert old in lines[number]
    return [*lines[:number], lines[number].replace(old, new), *lines[number + 1 :]]


BROKEN: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "nothing": (lambda _: [], "no export of a journal"),
    "another file": (lambda _: [b"position,thread\n"], "not JSON"),
    "other JSON": (lambda _: [b'{"name": "x"}\n'], "no header, entry, commit or footer"),
    "no header": (lambda lines: lines[1:], "first line is no header"),
    "another format": (lambda lines: replaced(lines, 0, b'"squid_journal":1', b'"squid_journal":2'), "format 2"),
    "a newer schema": (lambda lines: replaced(lines, 0, b'"schema_version":', b'"schema_version":9'), "upgrade"),
    "no position left": (
        lambda lines: [re.sub(rb'"cut":\d+', b'"cut":%d' % (2**63 - 1), lines[0]), *lines[1:]],
        "follow",
    ),
    "other threads": (lambda lines: replaced(lines, 0, b'"threads":', b'"threads":9'), "do not fit the digest"),
    "no footer": (lambda lines: lines[:-1], "without a footer"),
    "cut in a line": (lambda lines: [*lines[:9], lines[9][:20]], "cut off"),
    "one entry less": (lambda lines: without(lines, 5), "was changed"),
    "one commit less": (lambda lines: without(lines, len(lines) - 2), "was changed"),
    "an entry twice": (lambda lines: [*lines[:6], lines[5], *lines[6:]], "cannot follow"),
    "another order": (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], "cannot follow"),
    "a sign changed": (lambda lines: [line.replace(b"waits", b"waitz") for line in lines], "do not fit the digest"),
    "a number as a text": (lambda lines: replaced(lines, 1, b'"seq":1,', b'"seq":"1",'), "seq cannot be"),
    "no digest": (lambda lines: replaced(lines, 1, b'"digest":"', b'"digest":"x'), "is no digest"),
    "no time": (lambda lines: replaced(lines, 1, b'"occurred_at":"2', b'"occurred_at":"x'), "timestamp"),
    "half a character": (lambda lines: replaced(lines, 1, b'"thread":"', b'"thread":"\\ud800'), "half a character"),
    "NUL": (lambda lines: replaced(lines, 1, b'"thread":"', b'"thread":"\\u0000'), "NUL"),
    "something behind": (lambda lines: [*lines, lines[-1]], "follows the end"),
    "two exports": (lambda lines: [*lines[:-1], *lines], "not in its place"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_is_not_a_whole_export_is_refused_and_leaves_nothing(
    empty: PostgresStorage, lines: list[bytes], name: str
) -> None:
    spoil, told = BROKEN[name]
    with pytest.raises(InvalidExport, match=told):
        imported(empty, spoil(lines))


def test_a_file_that_was_opened_as_text_is_refused_and_leaves_nothing(
    empty: PostgresStorage, lines: list[bytes], tmp_path: Path
) -> None:
    (tmp_path / "journal").write_bytes(b"".join(lines))
    with (tmp_path / "journal").open(encoding="utf-8") as file, pytest.raises(InvalidExport, match="binary mode"):
        import_journal(empty, file)  # type: ignore[arg-type]


def test_a_journal_that_holds_something_is_left_as_it_is(make: Maker, lines: list[bytes]) -> None:
    target = make()
    put(target, queue_paused())
    before = dump(target)
    with pytest.raises(JournalNotEmpty, match="is not empty"):
        imported(target, lines)
    assert dump(target) == before


def test_what_was_read_back_must_be_what_was_read(empty: PostgresStorage, lines: list[bytes]) -> None:
    # given a database that does not keep what it is given, as one with a trigger of somebody's own
    with raw(empty) as connection:
        connection.execute("CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS "
                           "$$ BEGIN NEW.type := upper(NEW.type); RETURN NEW; END $$")  # fmt: skip
        connection.execute(
            "CREATE TRIGGER meddle BEFORE INSERT ON journal_entries FOR EACH ROW EXECUTE FUNCTION meddle()"
        )
    try:
        with pytest.raises(InvalidExport, match="read back"):
            imported(empty, lines)
    finally:
        with raw(empty) as connection:
            connection.execute("DROP FUNCTION meddle CASCADE")


def test_whatever_fails_on_the_way_leaves_nothing(empty: PostgresStorage, lines: list[bytes]) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no cards today")

    with pytest.raises(RuntimeError, match="no cards today"):
        import_journal(empty, lines, also=fail)
    with pytest.raises(KeyboardInterrupt):
        import_journal(empty, _interrupted(lines))


def _interrupted(lines: list[bytes]) -> Iterator[bytes]:
    yield from lines[:8]
    raise KeyboardInterrupt


def test_an_export_waits_for_no_writer_and_lets_none_wait(make: Maker) -> None:
    source = make()
    # given a commit that is under way, and one that was made behind it
    with raw(source, autocommit=False) as slow:
        slow.execute("SELECT pg_advisory_xact_lock_shared(%s)", (lock_number(source.schema, "gate"),))
        put(source, signal("run-1"))
        slow.execute("SELECT take_number(1)")
        put(source, signal("run-2"))
        # then an export has what lies before both
        assert export_journal(source, lambda _: None).entries == 1
    assert export_journal(source, lambda _: None).entries == 2


# --- what is equal --------------------------------------------------------------------------------------------------


@settings(max_examples=4, phases=WITHOUT_SHRINKING)
@given(history=histories(40))
def test_any_journal_is_the_same_in_its_new_place(make: Maker, history: list[Fact]) -> None:
    clock = VirtualClock(T0 + timedelta(seconds=300))
    source, target = make(clock=clock), make(clock=clock)
    for number in range(0, len(history), 7):
        put(source, *history[number : number + 7])
    sent = exported(source)

    done = imported(target, sent)

    assert done.entries == len(history)
    assert dump(target) == dump(source)
    assert exported(target) == sent
    assert verify(target) == []
    for run_id in {row[0] for row in source.rows("SELECT run_id FROM {schema}.runs")}:
        assert RunUnit.fold(target.read_run(run_id)) == RunUnit.fold(source.read_run(run_id))
    claims = [
        [
            (one.ref.runnable_key, one.attempt.fencing_token)
            for one in PostgresDispatchStore(each).claim("default", "w", limit=9)
        ]
        for each in (source, target)
    ]
    assert claims[0] == claims[1]


def test_work_goes_on_where_the_journal_has_come_to(make: Maker) -> None:
    source, target = busy(make()), make()
    before = dump(source)
    sent = exported(source)
    assert imported(target, sent).cut == source.cut()
    # everything is there, also what nobody can read, to the last blank
    assert dump(target) == before == dump(source)
    assert exported(target) == sent
    assert (differences(target), [finding.kind for finding in verify(target)]) == ([], ["corrupt_entry"])
    squids = [Squid(each, [hello, orders, nap]) for each in (source, target)]
    assert squids[0].list_runs() == squids[1].list_runs()
    assert drift(target) == []
    # and new facts come after the old ones
    squid = squids[1]
    assert squid.pause_queue("slow", idempotency_key="once") is False  # the first answer is known here, too
    run_id = squid.start("hello", {"name": "new"}).run_id
    assert target.read_run(run_id)[0].position > source.cut()
    assert squid.worker(until_idle=True).completed == 2
    waiting = squid.list_runs(status="paused").runs[0].run_id
    squid.approve(waiting, actor="ada")
    squid.worker(until_idle=True)
    assert squid.inspect_run(waiting).status == "completed"
    assert squid.backlog.claim("ada") is None
    assert (differences(target), [finding.kind for finding in verify(target)]) == ([], ["corrupt_entry"])


def test_who_writes_while_a_journal_comes_in_waits_and_comes_after_it(make: Maker, lines: list[bytes]) -> None:
    target = make()
    with ThreadPoolExecutor(1) as pool:
        writing: list[Future[int]] = []

        def meanwhile(storage: PostgresStorage, connection: PgConnection) -> None:
            writing.append(pool.submit(storage.append, "squid:run:odd", [signal("odd", at=99)]))
            wait_for_a_lock(storage)
            rebuild_within(storage, connection)

        done = import_journal(target, lines, also=meanwhile)
        assert writing[0].result(30) == 4
    last = all_entries(target)[-1]
    assert (last.fact, last.position > done.cut) == (signal("odd", at=99), True)
    assert [finding.kind for finding in verify(target)] == ["corrupt_entry"]


def test_facts_that_come_in_meanwhile_are_not_in_the_export(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "_PAGE", 3)
    source, target = make(), make()
    put(source, *(signal("run-1", at=n) for n in range(10)))
    sent: list[bytes] = []

    def write(line: bytes) -> None:
        put(source, signal("run-1"), started(f"late-{len(sent)}"))
        sent.append(line)

    done = export_journal(source, write)
    assert (done.entries, done.threads, done.commits) == (10, 1, 1)
    assert imported(target, sent) == done
    assert [entry.fact for entry in all_entries(target)] == [signal("run-1", at=n) for n in range(10)]


def test_pages_end_early_where_facts_are_large(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make()
    put(source, *(signal(payload={"x": "y" * 5_000}) for _ in range(20)))
    whole = exported(source)
    monkeypatch.setattr(transfer_module, "_PAGE_BYTES", 12_000)
    assert exported(source) == whole


def test_an_empty_journal_can_be_moved_too(make: Maker) -> None:
    source, target = make(), make()
    assert imported(target, exported(source)) == Transferred(0, 0, 0, 0, json.loads(exported(source)[-1])["digest"])
    put(target, signal())
    assert all_entries(target)[0].position == 2**20 + 1


# --- as a user types it ---------------------------------------------------------------------------------------------


def test_a_file_is_whole_or_not_there_and_is_never_replaced(typed: Typed, tmp_path: Path, make: Maker) -> None:
    busy(typed.storage)
    file = tmp_path / "journal.jsonl.gz"
    told = typed("journal", "export", file, "--json").json
    assert [*told] == ["file", "cut", "entries", "threads", "commits", "digest"]
    assert (told["file"], told["cut"]) == (str(file), typed.storage.cut())
    assert json.loads(gzip.decompress(file.read_bytes()).splitlines()[-1])["digest"] == told["digest"]
    assert file.stat().st_mode & 0o777 == 0o600  # what is in it is nobody else's business
    typed("journal", "export", file).refused(1, "is there already")
    typed("journal", "export", tmp_path / "no" / "folder").refused(2, "cannot be written")
    assert [each.name for each in tmp_path.iterdir()] == ["journal.jsonl.gz"]
    typed("journal", "import", file).refused(1, "is not empty")
    typed("journal", "import", tmp_path / "absent").refused(2, "cannot be read")

    there = Typed(make())
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(file.read_bytes()[:-100])
    there("journal", "import", cut).refused(2, "cannot be read to its end")
    cut.write_bytes(b"not packed at all\n")
    there("journal", "import", cut, "--json").refused(2, "InvalidExport")
    assert there.facts() == 0
    assert there("journal", "import", file, "--json").json == told
    assert dump(there.storage) == dump(typed.storage)


def test_a_pipe_carries_a_journal_into_another_database(typed: Typed, postgres_url: str) -> None:
    busy(typed.storage)
    name = f"other_{typed.storage.schema}"
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    other = make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    storage = PostgresStorage(other, "squid")
    storage.upgrade()
    with typed.process("journal", "export", "-", stderr=subprocess.PIPE) as source:
        environ = {**os.environ, "SQUID_DATABASE_URL": other, "SQUID_SCHEMA": "squid"}
        command = [sys.executable, "-c", MAIN, "journal", "import", "-", "--json"]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environ, stdin=source.stdout, capture_output=True, text=True, check=False
        )
        assert source.stderr is not None
        assert source.stderr.read().startswith("exported ")
    assert (source.returncode, done.returncode, done.stderr) == (0, 0, "")
    assert json.loads(done.stdout)["entries"] == typed.facts()
    assert dump(storage) == dump(typed.storage)
    storage.close()


def test_an_import_that_was_killed_leaves_nothing_and_can_be_repeated(make: Maker, lines: list[bytes]) -> None:
    there = Typed(make())
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


def test_a_pipe_that_is_closed_early_is_told_and_nothing_is_left(typed: Typed) -> None:
    put(typed.storage, *(signal(payload={"x": "y" * 50_000}) for _ in range(20)))
    with typed.process("journal", "export", "-") as source:
        assert source.stdout is not None
        assert source.stderr is not None
        source.stdout.readline()
        source.stdout.close()
        assert source.stderr.read().count("\n") == 1
    assert source.returncode == 141
