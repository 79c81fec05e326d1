"""`import_journal` refuses what is not a whole export, and leaves nothing; an export waits for no writer."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.journal.transfer.line_format import InvalidExport
from squid_dagster.journal.transfer.transfer import JournalNotEmpty, export_journal, import_journal
from tests.cli.journal.exports import Maker, dump, imported
from tests.facts import queue_paused, signal
from tests.journal.access import put, raw

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
    spoil, message = BROKEN[name]
    with pytest.raises(InvalidExport, match=message):
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
    # given a database that does not keep what it is given, as one with a trigger that an operator added
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
