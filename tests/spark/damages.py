"""Damage to plant in a journal, each of one kind, and which check it is for: done behind the journal's back, by SQL."""

from collections.abc import Callable, Sequence
from typing import LiteralString, NamedTuple

from squid_dagster.journal import Append, PostgresStorage
from squid_dagster.protocol import Fact
from squid_dagster.spark.checks.journal_checks import Check
from tests.facts import cataloged, indexed, planned, queue_paused, queued, started
from tests.spark.journal_generator import Plan, generate
from tests.spark.synthetic_runs import EventRates

OPEN, ENDED = "run-3-000000001", "run-3-000000002"
SHARED = "squid:dispatch:default"
_MIX = EventRates(retries=0.3, expiries=0.2, approvals=0.1, children=0.2, anomalies=0.1, unfinished=0.5)

Plant = Callable[[PostgresStorage], None]


class Damage(NamedTuple):
    """One kind of damage: how it is done, which check is for it, and the run that it names, if it can know one."""

    name: str
    plant: Plant
    check: Check | None
    run: str | None = OPEN


def healthy(storage: PostgresStorage) -> None:
    """Write the journal that is to be damaged: some runs are open, some have anomalies, a queue is paused."""
    generate(storage, Plan(250, seed=3, mix=_MIX, runs_per_commit=20))
    storage.append("squid:dispatch:slow", [queue_paused("slow")])


def _do(*texts: LiteralString) -> Plant:
    """Run statements with the guard lifted; each must find something to change."""

    def plant(storage: PostgresStorage) -> None:
        with storage.connection() as connection:
            connection.execute(storage.sql(_guard("DISABLE")))
            for text in texts:
                filled = text.replace("<open>", OPEN).replace("<ended>", ENDED)
                assert connection.execute(storage.sql(filled)).rowcount != 0, filled
            connection.execute(storage.sql(_guard("ENABLE ALWAYS")))

    return plant


def _guard(how: LiteralString) -> LiteralString:
    return "ALTER TABLE {schema}.journal_entries " + how + " TRIGGER journal_entries_append_only"


def _delete(where: LiteralString) -> Plant:
    return _do("DELETE FROM {schema}.journal_entries WHERE " + where)


def _change(column: LiteralString, value: LiteralString, where: LiteralString, *, sealed: bool = False) -> Plant:
    """Return a change of a column; `sealed`, with a matching digest."""
    values = {name: name for name in ("thread", "seq", "type", "run_id", "occurred_at", "data")} | {column: value}
    digest = ", digest = {schema}.entry_digest(" + ", ".join(values.values()) + ")"
    text = "UPDATE {schema}.journal_entries SET " + column + " = " + value + (digest if sealed else "")
    return _do(text + " WHERE " + where)


def _write(*facts: Fact) -> Plant:
    """Append facts through the storage."""

    def plant(storage: PostgresStorage) -> None:
        threads: dict[str, list[Fact]] = {}
        for fact in facts:
            threads.setdefault(fact.thread, []).append(fact)
        storage.commit([Append(thread, of_thread) for thread, of_thread in threads.items()])

    return plant


def _last(thread: LiteralString) -> LiteralString:
    last: LiteralString = "(SELECT max(seq) FROM {schema}.journal_entries WHERE thread = '"
    return "thread = '" + thread + "' AND seq = " + last + thread + "')"


_NEW: Sequence[Fact] = (started("new"), planned(run="new"), queued("new"))
_ODD_LIST: LiteralString = '\'["no", "object"]\''
_OF_OPEN: LiteralString = "run_id = '<open>' AND type = "
_TWIN: LiteralString = """INSERT INTO {schema}.journal_entries
    SELECT nextval('{schema}.journal_numbers') << 20, thread, seq, type, run_id, occurred_at, data, digest
      FROM {schema}.journal_entries WHERE """

DAMAGES: tuple[Damage, ...] = (
    Damage("none", lambda _: None, None),
    # the live views
    Damage("view_row_changed", _do("UPDATE {schema}.runs SET status = 'idle' WHERE run_id = '<open>'"), Check.VIEWS),
    Damage("view_row_missing", _do("DELETE FROM {schema}.attempts WHERE run_id = '<open>'"), Check.VIEWS),
    Damage("run_row_missing", _do("DELETE FROM {schema}.runs WHERE run_id = '<ended>'"), Check.VIEWS, ENDED),
    Damage(
        "view_row_too_many",
        _do("INSERT INTO {schema}.attempts (run_id, runnable_key) VALUES ('nobody', 'x')"),
        Check.VIEWS,
        "nobody",
    ),
    Damage("view_emptied", _do("DELETE FROM {schema}.runs"), Check.VIEWS),
    Damage("view_dropped", _do("DROP TABLE {schema}.attempts"), Check.VIEWS, None),
    Damage("queue_row_changed", _do("UPDATE {schema}.queues SET paused = NOT paused"), Check.VIEWS, None),
    Damage("anomaly_rows_missing", _do("DELETE FROM {schema}.anomalies"), Check.VIEWS, None),
    # index and catalog
    Damage("index_never_written", _write(*_NEW, cataloged("new")), Check.LISTED, "new"),
    Damage("catalog_never_written", _write(*_NEW, indexed("new")), Check.LISTED, "new"),
    Damage("index_of_unknown_run", _write(indexed("ghost")), Check.LISTED, "ghost"),
    # sequences
    Damage("run_entry_deleted", _delete("thread = 'squid:run:<open>' AND seq = 3"), Check.SEQUENCES),
    Damage("start_deleted", _delete(_OF_OPEN + "'run_started'"), Check.SEQUENCES),
    Damage("dispatch_entry_deleted", _delete(_OF_OPEN + "'attempt_scheduled'"), Check.SEQUENCES),
    Damage("index_entry_deleted", _delete(_OF_OPEN + "'run_indexed'"), Check.SEQUENCES),
    Damage("catalog_entry_deleted", _delete(_OF_OPEN + "'run_cataloged'"), Check.SEQUENCES),
    Damage("last_run_entry_deleted", _delete(_last("squid:run:<ended>")), Check.SEQUENCES, ENDED),
    Damage("last_dispatch_entry_deleted", _delete(_last(SHARED)), Check.SEQUENCES, None),
    Damage("run_thread_emptied", _delete("thread = 'squid:run:<open>'"), Check.SEQUENCES),
    Damage("run_deleted_everywhere", _delete("run_id = '<open>'"), Check.SEQUENCES),
    Damage(
        "seq_duplicated",
        _do("DROP INDEX {schema}.journal_entries_thread", _TWIN + _OF_OPEN + "'run_started'"),
        Check.SEQUENCES,
    ),
    Damage(
        "claim_duplicated",
        _do("DROP INDEX {schema}.journal_entries_thread", _TWIN + _last(SHARED)),
        Check.SEQUENCES,
        None,
    ),
    Damage(
        "revision_changed", _do("UPDATE {schema}.journal_threads SET rev = 99 WHERE id ~ '<open>$'"), Check.SEQUENCES
    ),
    Damage("thread_row_deleted", _do("DELETE FROM {schema}.journal_threads WHERE id ~ '<open>$'"), Check.SEQUENCES),
    Damage("seq_changed", _change("seq", "seq + 50", _last("squid:run:<open>")), Check.SEQUENCES),
    # entries that cannot be read, or are refused
    Damage("start_changed", _change("data", "'{{}}'", _OF_OPEN + "'run_started'"), Check.ANOMALIES),
    Damage("index_changed", _change("data", "'{{}}'", _OF_OPEN + "'run_indexed'"), Check.ANOMALIES),
    Damage("schedule_changed", _change("data", "'{{}}'", _OF_OPEN + "'attempt_scheduled'"), Check.ANOMALIES),
    Damage("pause_changed", _change("occurred_at", "now()", "type = 'queue_paused'"), Check.ANOMALIES, None),
    Damage("malformed", _change("data", _ODD_LIST, _OF_OPEN + "'run_started'", sealed=True), Check.ANOMALIES),
    Damage(
        "unknown_type",
        _change("type", "'run_teleported'", _OF_OPEN + "'run_queued'", sealed=True),
        Check.ANOMALIES,
    ),
    Damage("refused_start", _write(started(OPEN, workflow="other")), Check.ANOMALIES),
    Damage("refused_by_ended", _write(planned(run=ENDED)), Check.ANOMALIES, ENDED),
)


def damage_named(name: str) -> Damage:
    """Return one of them."""
    return next(damage for damage in DAMAGES if damage.name == name)
