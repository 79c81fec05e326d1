"""One transaction of an append, statement by statement: what is locked, read and written, and in which messages.

Callers decide what is written; the one lock order is that of `lock_runs`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, LiteralString, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult

from squid_dagster.journal.contract.storage import Append, Verified, check_appends
from squid_dagster.journal.postgres.connection.message import Value, array, execute, json_of
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.connection.session_settings import BEGIN, BEGIN_GROUP, BEGIN_STATEMENTS, WAIT_LONG
from squid_dagster.journal.postgres.dispatch.start_template import NewRuns
from squid_dagster.journal.postgres.entry_reader import ENTRY, PLANNED_BY, read_entries
from squid_dagster.journal.postgres.views.row_changes import LockTargets, RowChanges, Units, entries_json
from squid_dagster.journal.settlement.member_facts import group_appends
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.entries import Entry, run_of
from squid_dagster.protocol.facts import Fact, RunSignalReceived, RunStarted
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import run_thread

if TYPE_CHECKING:
    from squid_dagster.journal.postgres.storage import PostgresStorage

logger = redacting_logger(__name__)

T = TypeVar("T")

_LOCK: LiteralString = """SELECT {schema}.lock_runs(%s::int, %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[])"""
_BEGIN_AND_LOCK: LiteralString = BEGIN + _LOCK
_BEGIN_GROUP_AND_LOCK: LiteralString = BEGIN_GROUP + _LOCK
_START: LiteralString = (
    BEGIN
    + """SELECT {schema}.start_runs(%s::uuid, %s::text, %s::timestamptz, %s::boolean,
    %s::text[], %s::int, %s::int, %s::json, %s::json, %s::json); COMMIT"""
)
_APPEND_AND_COMMIT: LiteralString = """SELECT {schema}.append_entries(%s::uuid, %s::text[], %s::bigint[], %s::int[],
    %s::json, %s::json, %s::json, %s::text[], %s::json, %s::json, %s::json); COMMIT"""

# After the commit and outside of it: inside, the global lock of NOTIFY would slow writers down.
_WAKE: LiteralString = "; SELECT set_config('synchronous_commit', 'off', true)"
_NOTIFY: LiteralString = ", pg_notify(%s, %s)"

# Thread by thread and run by run: for one list, Postgres would scan the whole journal while that is short.
# journal_entries_thread
_READ_NEW: LiteralString = "SELECT e.* FROM unnest(%s::text[], %s::bigint[]) t (id, rev) CROSS JOIN LATERAL ("
_READ_NEW += ENTRY + f"WHERE thread = t.id AND seq > t.rev AND {PLANNED_BY} ORDER BY seq OFFSET 0) e"
# journal_entries_thread: the second entry of nearly every run
_READ_START: LiteralString = ENTRY + "WHERE thread = %s AND type = 'run_started' ORDER BY seq LIMIT 1"
# journal_entries_signals, and the first entry, which is not in that index: the signal of nearly every start. Thread and
# key are compared in `read_signals`: compared here, Postgres could take the index of threads and read a long one.
_READ_SIGNALS: LiteralString = "(" + ENTRY + "WHERE thread = %(thread)s AND seq = 1) UNION ALL (" + ENTRY
_READ_SIGNALS += """WHERE type = 'run_signal_received' AND seq > 1 AND data->>'idempotency_key' IS NOT NULL
    AND hashtextextended(thread || ' ' || (data->>'idempotency_key'), 0)
        = hashtextextended(%(thread)s || ' ' || %(key)s, 0)) ORDER BY seq"""
# attempts_pkey
_DEAD_LETTERS: LiteralString = """SELECT runnable_key FROM {schema}.attempts
    WHERE run_id = %(run_id)s AND runnable_key = ANY (%(keys)s) AND status = 'dead_lettered'"""
# attempts_siblings
_OF_VISIT: LiteralString = """SELECT runnable_key FROM {schema}.attempts
    WHERE idempotency_key = %(visit)s AND run_id || '' = %(run_id)s"""
# journal_entries_thread
_READ_BEGINNING: LiteralString = ENTRY + "WHERE thread = %s ORDER BY seq LIMIT 4"
# children_key, runs_pkey, journal_entries_run: a link stands in the commit that has started its child. If it does not,
# there is a row without an entry.
_READ_LINKS: LiteralString = """SELECT e.* FROM {schema}.children c
    LEFT JOIN LATERAL (SELECT position >> 20 << 20 AS first FROM {schema}.runs WHERE run_id = c.child_run_id OFFSET 0) r
      ON true LEFT JOIN LATERAL ("""
_READ_LINKS += (
    ENTRY
    + """WHERE run_id = c.run_id AND position >= r.first AND position < r.first + (1 << 20)
        AND type = 'child_run_started' AND data->>'child_run_id' = c.child_run_id ORDER BY position LIMIT 1) e ON true
    WHERE md5(c.run_id || ' ' || c.child_key) = md5(%(run_id)s::text || ' ' || %(key)s::text)
      AND c.run_id || '' = %(run_id)s AND c.child_key = %(key)s"""
)
# journal_entries_run
_READ_RUNS: LiteralString = "SELECT e.* FROM unnest(%s::text[]) r (id) CROSS JOIN LATERAL ("
_READ_RUNS += ENTRY + "WHERE run_id = r.id ORDER BY position OFFSET 0) e"

# journal_checkpoints_pkey, journal_threads_pkey
GET_CHECKPOINTS: LiteralString = """SELECT c.thread, c.rev, c.data::text FROM {schema}.journal_checkpoints c
    WHERE c.thread = ANY (%s) AND c.rev <= coalesce(
        (SELECT {schema}.revision_of(id, rev) FROM {schema}.journal_threads WHERE id = c.thread), 0)"""
FIND_COMMIT: LiteralString = "SELECT receipt::text FROM {schema}.journal_commits WHERE id = %s"


class Transaction:
    """One append: first `lock`, then read what planning needs, then `write` once.

    `lock` and `write` are one message each of the simple protocol. A pipeline would take as few round trips; but after
    a pipeline, Postgres resets the timeout of idle sessions, and psycopg does not handle signals during one.
    """

    def __init__(self, storage: "PostgresStorage", connection: PgConnection, *, joined: bool = False) -> None:
        """Bind to a connection; the first statement begins the transaction, unless it has `joined` an open one."""
        self._storage = storage
        self._connection = connection
        self._joined = joined
        self._waits_short = False

    def lock(self, targets: LockTargets) -> Units:
        """Lock and load the targets, in the one lock order."""
        return self._lock(_LOCK if self._joined else _BEGIN_AND_LOCK, targets)

    def lock_group(self, targets: LockTargets) -> Units:
        """Lock and load as `lock`, for many members: it waits only briefly for a row that another session holds."""
        if self._joined:
            return self.lock(targets)
        self._waits_short = True
        return self._lock(_BEGIN_GROUP_AND_LOCK, targets)

    def lock_more(self, units: Units, targets: LockTargets) -> None:
        """Lock and load more of runs that are locked already; other sessions lock the run before its attempts."""
        missing = targets.without(units)
        if missing:
            units.merge(self._lock(_LOCK, missing))

    def _rows(self, text: LiteralString, values: Sequence[object] | dict[str, Any]) -> list[tuple[Any, ...]]:
        return self._connection.execute(self._storage.sql(text), values, binary=True).fetchall()

    def _execute(self, text: LiteralString, values: Sequence[Value]) -> list[PGresult]:
        return execute(self._connection, self._storage.sql(text), values)

    def _lock(self, text: LiteralString, targets: LockTargets) -> Units:
        attempts, children = sorted(targets.attempts), sorted(targets.children)
        values = (
            int(self._storage.hold / timedelta(milliseconds=1)),
            sorted(targets.runs),
            sorted(targets.whole),
            [run_id for run_id, _ in attempts],
            [key for _, key in attempts],
            [run_id for run_id, _ in children],
            [child_id for _, child_id in children],
        )
        answer = json_of(self._execute(text, values)[-1])
        return Units.read(answer, targets, self._storage.observe_db_time(answer["now"]))

    def read_new_entries(self, revisions: Mapping[str, int]) -> dict[str, list[Entry]]:
        """Return the entries of locked run threads after these revisions, without those that planning does not need."""
        entries: dict[str, list[Entry]] = {thread: [] for thread in revisions}
        values = list(revisions), list(revisions.values())
        rows = self._rows(_READ_NEW, values)
        for entry in read_entries(rows):
            entries[entry.thread].append(entry)
        return entries

    def read_checkpoints(self, threads: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Return the checkpoints of these threads: revision and data."""
        rows = self._rows(GET_CHECKPOINTS, (threads,))
        return {thread: (revision, data) for thread, revision, data in rows}

    def read_signals(self, run_id: str, idempotency_key: str) -> list[RunSignalReceived]:
        """Return the signals of a run that have this key, oldest first."""
        values = {"thread": run_thread(run_id), "key": idempotency_key}
        rows = self._rows(_READ_SIGNALS, values)
        facts = [entry.fact for entry in read_entries(rows) if entry.thread == values["thread"]]
        signals = [fact for fact in facts if isinstance(fact, RunSignalReceived) and fact.run_id == run_id]
        return [signal for signal in signals if signal.idempotency_key == idempotency_key]

    def find_dead_letters(self, run_id: str, keys: Sequence[str]) -> list[str]:
        """Return the keys of those attempts that are dead letters."""
        values = {"run_id": run_id, "keys": keys}
        return [row[0] for row in self._rows(_DEAD_LETTERS, values)]

    def find_visit(self, run_id: str, visit: str) -> list[str]:
        """Return the keys of the attempts that have this idempotency key."""
        values = {"run_id": run_id, "visit": visit}
        return [row[0] for row in self._rows(_OF_VISIT, values)]

    def read_start(self, run_id: str) -> RunStarted | None:
        """Return the `run_started` fact of a run."""
        rows = self._rows(_READ_START, (run_thread(run_id),))
        fact = next((entry.fact for entry in read_entries(rows)), None)
        return fact if isinstance(fact, RunStarted) else None

    def read_links(self, run_id: str, child_key: str) -> list[Entry] | None:
        """Return the links of a run to its children of a key; None if one is not in the commit of its child's start."""
        values = {"run_id": run_id, "key": child_key}
        rows = self._rows(_READ_LINKS, values)
        return None if any(row[0] is None for row in rows) else read_entries(rows)

    def read_beginning(self, run_id: str) -> RunProjection | None:
        """Return a run folded from its first facts; None if its start is not among them."""
        rows = self._rows(_READ_BEGINNING, (run_thread(run_id),))
        run = RunProjection.fold(read_entries(rows))
        return run if not rows or (run.start is not None and run.command_history) else None

    def read_runs(self, run_ids: Iterable[str]) -> dict[str, RunUnit]:
        """Return locked runs, folded from all of their facts."""
        entries: dict[str, list[Entry]] = {run_id: [] for run_id in run_ids}
        rows = self._rows(_READ_RUNS, (list(entries),))
        for entry in read_entries(rows):
            run_id = run_of(entry.fact)
            if run_id in entries:
                entries[run_id].append(entry)
        return {run_id: RunUnit.fold(of_run) for run_id, of_run in entries.items()}

    def committed(self, commit_id: UUID) -> bool:
        """Return whether a commit of this id was recorded."""
        return self._connection.execute(self._storage.sql(FIND_COMMIT), (commit_id,)).rowcount > 0

    def write_facts(
        self, units: Units, facts: Sequence[Fact], commit_id: UUID, new: Collection[str] = ()
    ) -> dict[str, int]:
        """Fold and write facts, and wake workers for scheduled attempts; the threads of `new` runs must be empty."""
        threads = {run_thread(run_id) for run_id in new}
        appends = [Append(one.thread, one.facts, 0 if one.thread in threads else None) for one in group_appends(facts)]
        wake = sorted({fact.queue for fact in facts if fact.type == "attempt_scheduled"})
        return self.fold_and_write(units, check_appends(appends, self._storage.max_fact_bytes), commit_id, wake=wake)

    def fold_and_write(
        self,
        units: Units,
        verified: list[Verified],
        commit_id: UUID,
        *,
        folded: Callable[[], object] = lambda: None,
        wake: Sequence[str] = (),
    ) -> dict[str, int]:
        """Fold facts into the rows at hand and write both, as `write`; `folded` is called in between."""
        self.lock_more(units, LockTargets.of(verified))
        units.fold(verified)
        folded()
        return self.write(verified, units.changes(), commit_id, wake) if verified else {}

    def write(
        self,
        verified: Sequence[Verified],
        changes: RowChanges,
        commit_id: UUID | None,
        wake: Sequence[str] = (),
    ) -> dict[str, int]:
        """Write facts and rows, and commit; right after that, send wakeups for the queues in `wake`."""
        ordered = sorted(verified, key=lambda one: one.thread)
        place = {one.thread: i for i, one in enumerate(ordered, 1)}
        values = (
            commit_id,
            names(one.thread for one in ordered),
            numbers(one.expected_rev for one in ordered),
            numbers(len(one.encoded) for one in ordered),
            entries_json(verified, place),
            changes.runs,
            changes.attempts,
            changes.ended,
            changes.children,
            changes.queues,
            changes.anomalies,
        )
        # Threads are shared by all members of a group: the wait for them is the long one.
        before: LiteralString = WAIT_LONG if self._waits_short else ""
        receipt: dict[str, int] = self._send(
            (before + _APPEND_AND_COMMIT, values), int(self._waits_short), commit_id, wake
        )
        return receipt

    def start(self, new: NewRuns, now: datetime, commit_id: UUID) -> None:
        """Write new runs, commit and send a wakeup, in one message. Repeated under one id, it writes them once.

        Raises:
            psycopg.Error: with the SQLSTATE `NOT_NEW` if a run exists, or the database has another time.
        """
        virtual = self._storage.clock is not None
        shape = names(new.run_ids), new.queue_facts, new.run_facts
        values = (commit_id, new.queue, now, virtual, *shape, new.entries, new.rows, new.attempts)
        wake = [new.queue] if new.attempts else ()
        time = self._send((_START, values), BEGIN_STATEMENTS, commit_id, wake)
        if isinstance(time, str):  # else the receipt: the wakeup failed
            self._storage.observe_earlier_db_time(time)

    def _send(self, part: "_Part", skipped: int, commit_id: UUID | None, wake: Sequence[str]) -> Any:
        """Send statements that end with a commit, then wakeups; return the result of one statement.

        If only the wakeups failed, return the receipt of the commit.
        """
        wakeups: _Part = _NOTHING
        for i, queue in enumerate(wake):
            first: LiteralString = "" if i else _WAKE
            wakeups = wakeups[0] + first + _NOTIFY, (*wakeups[1], self._storage.channel, queue)
        try:
            return json_of(self._execute(part[0] + wakeups[0], (*part[1], *wakeups[1]))[skipped])
        except psycopg.Error as error:
            # A wakeup that cannot be sent (the queue of NOTIFY may be full) must not make the commit look failed.
            idle = not self._connection.broken and self._connection.info.transaction_status == TransactionStatus.IDLE
            receipt = self._execute(FIND_COMMIT, (commit_id,))[0] if wake and idle else None
            if receipt is None or not receipt.ntuples:
                raise
            logger.warning("cannot notify workers, who will find their work by polling: %s", error)
            return json_of(receipt)


class OneCommit(Generic[T]):
    """One commit, tried under one id until it is known to have happened; its answer is that of the try that committed.

    After locking, a try checks whether an earlier one has committed (`is_made`): its acknowledgement may have been
    lost. Before it commits, a try notes its answer for that case.
    """

    def __init__(self) -> None:
        """Create the id of all tries."""
        self.id = uuid4()
        self._answers: list[T] = []

    @property
    def answer(self) -> T:
        """The answer of the last try, which is the one that committed, if any has."""
        return self._answers[-1]

    def note(self, answer: T) -> T:
        """Keep and return the answer of this try."""
        self._answers.append(answer)
        return answer

    def is_made(self, transaction: Transaction) -> bool:
        """Return whether an earlier try has committed."""
        return bool(self._answers) and transaction.committed(self.id)


_Part = tuple[LiteralString, tuple[Value, ...]]
_NOTHING: _Part = ("", ())


def names(names: Iterable[str]) -> str:
    """Format names that may stand in a thread id as an array: quotes are enough for them.

    psycopg's own arrays, for any text, take ten times as long.
    """
    return "{" + ",".join([f'"{name}"' for name in names]) + "}"


@lru_cache(maxsize=64)
def texts(texts: frozenset[str]) -> str:
    """Format any texts as an array, cached by set."""
    return array(sorted(texts))


def numbers(numbers: Iterable[int | None]) -> str:
    """Format numbers as an array."""
    return "{" + ",".join(["NULL" if number is None else str(number) for number in numbers]) + "}"
