"""What is wrong is refused with an error of its own that says so, and nothing is written."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from squid_dagster.journal.clock import VirtualClock
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.storage import Append, Storage
from squid_dagster.protocol import (
    AttemptClaimed,
    AttemptCompleted,
    Fact,
    QueuePaused,
    RunSignalReceived,
    RunStarted,
    UnknownFact,
    dispatch_thread,
    parse_fact,
    run_thread,
)
from squid_dagster.protocol.errors import (
    Conflict,
    ForeignSchema,
    InvalidArgument,
    InvalidFact,
    InvalidThread,
    SchemaOutdated,
    SchemaTooNew,
    SquidError,
    StorageUnavailable,
)
from tests.histories import QUEUE, RUN, T0, claimed, completed, queue_paused, queued, scheduled, signal, started, t
from tests.journal.contract import Opener, all_entries, plain_url, put, raw

THREAD, QUEUE_THREAD = run_thread(RUN), dispatch_thread(QUEUE)
SECRET = "p4ss-hunter2"


def refusals(storage: Storage, calls: dict[str, Callable[[], object]], kind: type[SquidError]) -> None:
    """Make each call, and meet that error and no other, with nothing written."""
    before, wrong = all_entries(storage), dict[str, str]()
    for name, call in calls.items():
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            if type(error) is not kind:
                wrong[name] = f"{type(error).__name__}: {error}"
            elif not str(error).strip():
                wrong[name] = "an error without words"
        else:
            wrong[name] = f"accepted: {answer!r}"
        if all_entries(storage) != before:
            wrong[name] = "something was written"
            before = all_entries(storage)
    assert wrong == {}


def bent(fact: Fact, **fields: Any) -> Fact:
    """The fact with wrong values that no check has seen."""
    changed: Fact = fact.model_copy(update=fields)
    return changed


def unchecked(kind: Any, **fields: Any) -> Fact:
    """A fact made past every check."""
    made: Fact = kind.model_construct(**fields)
    return made


# --- facts ----------------------------------------------------------------------------------------------------------

_NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_WRONG_VALUES: dict[str, Any] = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity deep down": [{"y": float("-inf")}],
    "a time": T0,
    "bytes": b"abc",
    "a tuple": (1, 2),
    "a set": {1, 2},
    "an object": object(),
    "a key that is no text": {1: "x"},
    "a NUL": "a\0b",
    "a key that holds a NUL": {"a\0b": 1},
    "half a character": "\ud800",
    "a thousand levels": _deep(1000),
    "more than fits": "y" * (1024 * 1024),
    "more bytes than fit, though not more characters": "🦑" * 300_000,
}
# Made when they are asked for: whether a wrong fact is refused when it is made or when it is written is all the same.
_WRONG_FACTS: dict[str, Callable[[], Fact]] = {
    "naive time": lambda: bent(signal(), occurred_at=_NAIVE),
    "time as text": lambda: bent(signal(), occurred_at="2026-01-01T00:00:00Z"),
    "no time": lambda: bent(signal(), occurred_at=None),
    "naive lease": lambda: bent(claimed(), lease_until=_NAIVE),
    "lease that ends before it begins": lambda: bent(claimed(), lease_until=T0),
    "run id of a number": lambda: bent(signal(), run_id=7),
    "run id None": lambda: bent(signal(), run_id=None),
    "payload that is no object": lambda: bent(signal(), payload=[1]),
    "unknown field with NaN": lambda: bent(signal(), note=float("nan")),
    "result with NaN": lambda: bent(completed(), result=float("nan")),
    "priority out of range": lambda: bent(scheduled(), priority=11),
    "attempt number zero": lambda: bent(scheduled(), attempt_number=0),
    "token hash that is none": lambda: bent(claimed(), claim_token_hash="secret"),
    "step without a name": lambda: bent(scheduled(), step=""),
    "fencing token zero": lambda: bent(claimed(), fencing_token=0),
    "queue fact that names a run": lambda: bent(queue_paused(), run_id=RUN),
    "queue fact that names half an object": lambda: bent(queue_paused(), run_id='x","type":"run_terminal'),
    "queue fact that names a number as its run": lambda: bent(queue_paused(), run_id=7),
    "missing field": lambda: unchecked(RunStarted, run_id=RUN, occurred_at=T0),
    "missing time": lambda: unchecked(RunSignalReceived, run_id=RUN, signal_type="x", payload={}, metadata={}),
    "missing everything": lambda: unchecked(AttemptCompleted),
}


def _write(storage: Storage, make: Callable[[], Fact]) -> int:
    fact = make()
    return storage.append(QUEUE_THREAD if "queue" in type(fact).model_fields else THREAD, [fact])


def test_a_fact_of_a_wrong_shape_is_refused_however_it_was_made(storage: Storage) -> None:
    put(storage, signal())
    refusals(storage, {name: partial(_write, storage, make) for name, make in _WRONG_FACTS.items()}, InvalidFact)


def test_a_payload_that_cannot_be_kept_is_refused_whenever_it_came_in(storage: Storage) -> None:
    def changed_afterwards(value: Any) -> Fact:
        fact = signal(payload={})
        fact.payload["x"] = value
        return fact

    calls: dict[str, Callable[[], object]] = {}
    for name, value in _WRONG_VALUES.items():
        calls[f"{name}, from the start"] = partial(_write, storage, partial(bent, signal(), payload={"x": value}))
        calls[f"{name}, afterwards"] = partial(_write, storage, partial(changed_afterwards, value))
    refusals(storage, calls, InvalidFact)


def test_one_wrong_fact_among_many_keeps_all_of_them_out(storage: Storage) -> None:
    wrong = signal(payload={})
    wrong.payload["x"] = float("nan")
    refusals(
        storage,
        {
            "last of its append": lambda: storage.append(THREAD, [signal(), started(), wrong]),
            "first of its commit": lambda: storage.commit([Append(THREAD, [wrong]), Append(QUEUE_THREAD, [queued()])]),
            "last of its commit": lambda: storage.commit([Append(QUEUE_THREAD, [queued()]), Append(THREAD, [wrong])]),
        },
        InvalidFact,
    )


def test_what_is_no_fact_is_refused(storage: Storage) -> None:
    class Homemade(QueuePaused):
        pass

    strangers: dict[str, Any] = {
        "None": None,
        "a number": 5,
        "a dictionary": {"type": "run_started", "run_id": RUN},
        "a text": signal().model_dump_json(),
        "an unknown fact": UnknownFact("attempt_teleported", RUN, T0, {}),
        "the class itself": RunStarted,
        "a class of one's own": Homemade(occurred_at=T0),
    }
    refusals(
        storage,
        {name: partial(storage.append, QUEUE_THREAD, [fact]) for name, fact in strangers.items()},
        InvalidFact,
    )


def test_a_fact_on_the_wrong_thread_is_refused(storage: Storage) -> None:
    refusals(
        storage,
        {
            "another run's thread": lambda: storage.append(run_thread("run-2"), [signal()]),
            "another queue's thread": lambda: storage.append(dispatch_thread("slow"), [queue_paused()]),
            "a queue's instead of a run's": lambda: storage.append(QUEUE_THREAD, [signal()]),
            "a run's instead of a queue's": lambda: storage.append(THREAD, [scheduled()]),
            "the catalog": lambda: storage.append("squid:run_catalog:all", [started()]),
            "the backlog": lambda: storage.append("squid:backlog:cards", [started()]),
        },
        InvalidFact,
    )


def test_a_limit_of_one_s_own_on_the_size_of_facts_is_kept(open_storage: Opener) -> None:
    small = open_storage(max_fact_bytes=200)
    small.upgrade()
    for storage in (MemoryStorage(max_fact_bytes=200), small):
        refusals(storage, {"large": partial(storage.append, THREAD, [signal(payload={"x": "y" * 200})])}, InvalidFact)
        assert storage.append(THREAD, [signal(payload={"x": "y" * 50})]) == 1


def test_the_error_about_a_fact_names_the_field_and_never_a_long_value(storage: Storage) -> None:
    with pytest.raises(InvalidFact, match="occurred_at"):
        storage.append(THREAD, [bent(signal(), occurred_at=_NAIVE)])
    with pytest.raises(InvalidFact) as refused:
        storage.append(THREAD, [bent(signal(), payload="x" * 5000)])
    assert "payload" in str(refused.value)
    assert len(str(refused.value)) < 500
    with pytest.raises(InvalidFact, match=r"1,0\d\d,\d{3} bytes.*1,048,576"):
        storage.append(THREAD, [signal(payload={"x": "y" * 1_050_000})])


def test_a_fact_that_is_read_from_outside_is_checked_before_it_is_one() -> None:
    for value in (
        {"type": "run_started"},
        {"type": "run_started", "run_id": RUN, "workflow": "billing", "occurred_at": _NAIVE},
        {"type": "no_such_type", "run_id": RUN, "occurred_at": T0},
        {"run_id": RUN},
        "{",
        "[]",
        "null",
        b"\xff",
        None,
        7,
    ):
        with pytest.raises(InvalidFact):
            parse_fact(value)


# --- threads and commits --------------------------------------------------------------------------------------------

_ODD_PARTS = ("", "a\n", "\n", "a b", "a:b", "-a", ".a", "ü", "a" * 201, "a\0b", "a/b", " a", "a'b", 'a"b')


def test_an_odd_thread_is_refused(storage: Storage) -> None:
    odd: list[Any] = [f"squid:run:{part}" for part in _ODD_PARTS] + [f"squid:dispatch:{part}" for part in _ODD_PARTS]
    odd += [
        "",
        "run-1",
        "squid",
        "squid:run",
        "other:run:a",
        "squid:nothing:a",
        "SQUID:run:a",
        "squid:run_catalog:some",
    ]
    odd += ["squid:backlog:other", " squid:run:a", None, 7, b"squid:run:a", ["squid:run:a"]]
    refusals(
        storage,
        {repr(thread): partial(storage.append, thread, [signal()]) for thread in odd},
        InvalidThread,
    )


def test_a_run_or_queue_with_an_odd_name_cannot_even_be_made_into_a_fact() -> None:
    for part in _ODD_PARTS:
        with pytest.raises(InvalidFact):
            parse_fact({**signal().model_dump(), "run_id": part})
        with pytest.raises(InvalidFact):
            parse_fact({**queue_paused().model_dump(), "queue": part})


def test_a_commit_that_makes_no_sense_is_refused(storage: Storage) -> None:
    facts: Any = [signal()]
    strange: Any = "text"
    refusals(
        storage,
        {
            "nothing": lambda: storage.commit([]),
            "no facts": lambda: storage.append(THREAD, []),
            "no facts beside some": lambda: storage.commit([Append(THREAD, facts), Append(QUEUE_THREAD, [])]),
            "the same thread twice": lambda: storage.commit([Append(THREAD, facts), Append(THREAD, facts)]),
            "facts that are a text": lambda: storage.append(THREAD, strange),
            "facts that are a fact": lambda: storage.append(THREAD, facts[0]),
            "facts that can be read once": lambda: storage.append(THREAD, iter(facts)),
            "facts None": lambda: storage.append(THREAD, None),  # type: ignore[arg-type]
            "revision -1": lambda: storage.append(THREAD, facts, expected_rev=-1),
            "revision True": lambda: storage.append(THREAD, facts, expected_rev=True),
            "revision 1.0": lambda: storage.append(THREAD, facts, expected_rev=1.0),  # type: ignore[arg-type]
            "revision as text": lambda: storage.append(THREAD, facts, expected_rev="0"),  # type: ignore[arg-type]
            "appends that are none": lambda: storage.commit([(THREAD, facts)]),  # type: ignore[list-item]
            "commit id that is none": lambda: storage.commit([Append(THREAD, facts)], "first"),  # type: ignore[arg-type]
        },
        InvalidArgument,
    )


def test_a_revision_beyond_what_a_database_can_count_is_no_revision(storage: Storage) -> None:
    put(storage, signal())
    with pytest.raises((Conflict, InvalidArgument)):
        storage.append(THREAD, [signal()], expected_rev=2**64)
    assert len(all_entries(storage)) == 1


def test_a_read_that_makes_no_sense_is_refused(storage: Storage) -> None:
    put(storage, signal(), started())
    refusals(
        storage,
        {
            "after -1": lambda: storage.read(THREAD, after=-1),
            "after True": lambda: storage.read(THREAD, after=True),
            "after as text": lambda: storage.read(THREAD, after="1"),  # type: ignore[arg-type]
            "limit -1": lambda: storage.read(THREAD, limit=-1),
            "limit as text": lambda: storage.read(THREAD, limit="1"),  # type: ignore[arg-type]
            "limit -1 between cuts": lambda: storage.read_between(0, 9, limit=-1),
            "checkpoint at -1": lambda: storage.put_checkpoint(THREAD, -1, "{}"),
            "checkpoint at True": lambda: storage.put_checkpoint(THREAD, True, "{}"),
            "checkpoint that is no JSON": lambda: storage.put_checkpoint(THREAD, 1, "{"),
        },
        InvalidArgument,
    )
    assert storage.get_checkpoint(THREAD) is None


def test_a_clock_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="zone"):
        VirtualClock(_NAIVE)


# --- databases that cannot be reached -------------------------------------------------------------------------------


def unavailable(storage: PostgresStorage) -> None:
    """Nothing can be done there; each call says so in the same words, without the password."""
    calls: dict[str, Callable[[], object]] = {
        "commit": lambda: storage.commit([Append(THREAD, [signal()])], uuid4()),
        "read": lambda: storage.read(THREAD),
        "cut": lambda: storage.cut(),
        "now": lambda: storage.now(),
        "checkpoint": lambda: storage.put_checkpoint(THREAD, 0, "{}"),
        "delete": lambda: storage.delete_thread(THREAD),
        "upgrade": lambda: storage.upgrade(),
        "check": lambda: storage.check(),
    }
    for name, call in calls.items():
        with pytest.raises(StorageUnavailable) as refused:
            call()
        said = [str(refused.value), repr(refused.value)]
        cause = refused.value.__cause__
        while cause is not None:
            said.append(repr(cause))
            cause = cause.__cause__
        assert SECRET not in " ".join(said), name
        assert "cannot reach Postgres" in said[0], name
        assert re.search(r"\?$|URL", said[0]), name
    assert SECRET not in repr(storage)


def test_a_closed_port_is_told_without_the_password(open_storage: Opener) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    unavailable(open_storage(f"postgresql://somebody:{SECRET}@127.0.0.1:{port}/journal"))


def test_a_socket_directory_that_does_not_exist_is_told_without_the_password(
    tmp_path: Path, open_storage: Opener
) -> None:
    unavailable(open_storage(f"postgresql://somebody:{SECRET}@/journal?host={tmp_path}/nowhere"))


def test_a_password_in_the_query_is_not_told_either(tmp_path: Path, open_storage: Opener) -> None:
    unavailable(open_storage(f"postgresql://somebody@/journal?host={tmp_path}/nowhere&password={SECRET}"))


def test_a_host_name_that_does_not_resolve_is_told_without_the_password(open_storage: Opener) -> None:
    unavailable(open_storage(f"postgresql://somebody:{SECRET}@no-such-host.invalid/journal"))


@pytest.fixture
def guarded_url(own_server: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a server that asks one of its users for a password, and with the wrong one."""
    url = plain_url(own_server.ensure_running())
    rules = own_server.data_dir / "pgdata" / "pg_hba.conf"
    usual = rules.read_bytes()
    rules.write_bytes(b"local all guarded scram-sha-256\n" + usual)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'the right one'")
        connection.execute("SELECT pg_reload_conf()")
        yield url.replace("postgres@", f"guarded:{SECRET}@", 1)
        connection.execute("DROP OWNED BY guarded CASCADE")
        connection.execute("DROP ROLE guarded")
    rules.write_bytes(usual)


def test_a_wrong_password_is_told_and_not_shown(guarded_url: str, open_storage: Opener) -> None:
    assert open_storage(guarded_url.replace(SECRET, "the%20right%20one"), "guarded").upgrade() == 1
    unavailable(open_storage(guarded_url))


def test_a_database_that_does_not_exist_is_told(postgres_url: str, open_storage: Opener) -> None:
    unavailable(
        open_storage(
            plain_url(postgres_url).replace("/postgres?", "/nowhere?").replace("postgres@", f"postgres:{SECRET}@")
        )
    )


def test_a_url_that_is_none_is_refused_at_once() -> None:
    for url in ("", "postgres", f"mysql://somebody:{SECRET}@host/db", f"postgresql://somebody:{SECRET}@host:port/db"):
        with pytest.raises(InvalidArgument) as refused:
            PostgresStorage(url)
        assert SECRET not in str(refused.value)


# --- schemas that do not fit ----------------------------------------------------------------------------------------


def _shape(storage: PostgresStorage) -> list[Any]:
    """Everything that the schema holds."""
    with raw(storage) as connection:
        return connection.execute(
            """SELECT relname, relkind, pg_get_userbyid(relowner) FROM pg_class
                WHERE relnamespace = to_regnamespace(%s) ORDER BY 1, 2""",
            (storage.schema,),
        ).fetchall()


@pytest.mark.parametrize(
    "foreign",
    [
        "TABLE {schema}.runs (id int, name text)",
        "TABLE {schema}.journal_entries (position bigint)",
        "TABLE {schema}.queues (queue text)",
        "VIEW {schema}.attempts AS SELECT 1 AS one",
        "SEQUENCE {schema}.journal_positions",
        "TABLE {schema}.squid_schema (id int)",
        "TABLE {schema}.squid_schema (version integer NOT NULL, oldest_code integer NOT NULL)",
    ],
    ids=["runs", "entries", "queues", "a view", "the sequence", "another squid_schema", "an empty squid_schema"],
)
def test_tables_of_our_names_that_are_not_ours_are_left_alone(open_storage: Opener, schema: str, foreign: Any) -> None:
    # given a schema in which somebody else keeps something under one of our names
    storage = open_storage()
    with raw(storage) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {schema}").format(schema=sql.Identifier(schema)))
        connection.execute(sql.SQL("CREATE " + foreign).format(schema=sql.Identifier(schema)))
    before = _shape(storage)
    # when the journal is to be made there, or looked for
    with pytest.raises(ForeignSchema, match=schema):
        storage.upgrade()
    with pytest.raises(ForeignSchema, match=schema):
        storage.check()
    # then nothing has changed
    assert _shape(storage) == before


def test_a_schema_of_a_newer_version_that_needs_newer_code_is_refused(postgres: PostgresStorage) -> None:
    put(postgres, signal())
    with raw(postgres) as connection:
        connection.execute("UPDATE squid_schema SET version = 99, oldest_code = 99")
    before = _shape(postgres)
    with pytest.raises(SchemaTooNew, match=r"99.*upgrade squid-dagster"):
        postgres.check()
    with pytest.raises(SchemaTooNew):
        postgres.upgrade()
    assert _shape(postgres) == before
    assert len(all_entries(postgres)) == 1


def test_a_schema_of_a_newer_version_that_this_code_can_use_is_used(postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        connection.execute("UPDATE squid_schema SET version = 99, oldest_code = 1")
    assert postgres.check() == 99
    assert postgres.upgrade() == 99
    assert postgres.append(THREAD, [signal()]) == 1


def test_an_outdated_schema_names_the_command(postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        connection.execute("UPDATE squid_schema SET version = 0")
    with pytest.raises(SchemaOutdated, match="squid db upgrade"):
        postgres.check()


def test_a_journal_that_was_never_made_names_the_command_whatever_is_asked_first(open_storage: Opener) -> None:
    storage = open_storage()
    wrong: dict[str, str] = {}
    calls: dict[str, Callable[[], object]] = {
        "check": storage.check,
        "commit": lambda: storage.append(THREAD, [signal()]),
        "read": lambda: storage.read(THREAD),
        "cut": storage.cut,
        "checkpoint": lambda: storage.put_checkpoint(THREAD, 0, "{}"),
    }
    for name, call in calls.items():
        try:
            call()
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            if not isinstance(error, SchemaOutdated) or "squid db upgrade" not in str(error):
                wrong[name] = f"{type(error).__name__}: {error}"
        else:
            wrong[name] = "answered"
    assert wrong == {}
    assert _shape(storage) == []


def test_a_schema_name_that_cannot_be_used_as_it_is_is_refused(postgres_url: str) -> None:
    for name in ("", "A", "a-b", "a b", 'a"b', "1a", "pg_x", "a" * 41, "ä", "a.b", "a\n", "a;drop schema public", None):
        with pytest.raises(InvalidArgument, match="schema name"):
            PostgresStorage(postgres_url, name)  # type: ignore[arg-type]


def test_a_claim_at_a_time_before_its_lease_is_no_fact() -> None:
    with pytest.raises(ValueError, match="lease_until"):
        AttemptClaimed.model_validate({**claimed().model_dump(), "lease_until": t(0)})
