"""One append in the making, statement by statement: what is locked, read and written, and in which messages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, LiteralString, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult

from squid_dagster.journal.contract.storage import Verified
from squid_dagster.journal.postgres.connection.message import Value, array, execute, json_of
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.connection.session_settings import BEGIN, BEGIN_GROUP, BEGIN_STATEMENTS, WAIT_LONG
from squid_dagster.journal.postgres.dispatch.start_template import NewRuns
from squid_dagster.journal.postgres.entry_reader import ENTRY, PLANNED_BY, read_entries
from squid_dagster.journal.postgres.views.row_changes import LockTargets, RowChanges, Units, entries_json
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.entries import Entry, run_of
from squid_dagster.protocol.facts import RunSignalReceived, RunStarted
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

# Behind the commit and outside of it: inside, the global lock of NOTIFY would slow writers down.
_HINT: LiteralString = "; SELECT set_config('synchronous_commit', 'off', true)"
_HINT_ONE: LiteralString = ", pg_notify(%s, %s)"

# Thread by thread and run by run: one list would be answered by a scan of the whole journal while that is short.
# journal_entries_thread
_READ_NEWS: LiteralString = "SELECT e.* FROM unnest(%s::text[], %s::bigint[]) t (id, rev) CROSS JOIN LATERAL ("
_READ_NEWS += ENTRY + f"WHERE thread = t.id AND seq > t.rev AND {PLANNED_BY} ORDER BY seq OFFSET 0) e"
# journal_entries_thread: the second entry of nearly every run
_READ_START: LiteralString = ENTRY + "WHERE thread = %s AND type = 'run_started' ORDER BY seq LIMIT 1"
# journal_entries_signals, and the first entry, which is not in it: that of nearly every start. Thread and key are
# compared with the facts that are found: named here, the index of threads could be taken, and a long one be walked.
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
# children_key, runs_pkey, journal_entries_run: a link stands in the commit that has started its child. Where it does
# not, there is a row without an entry.
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
    """One append in the making: `lock` first, then read what planning needs, then `write`, once.

    Each half is one message of the simple protocol. A pipeline would take as few round trips, but after one Postgres
    forgets the timeout that ends a session gone quiet, and psycopg waits for its end whatever signal comes in.
    """

    def __init__(self, storage: "PostgresStorage", connection: PgConnection, *, joined: bool = False) -> None:
        """Begin when the first statement goes out; `joined`, one is open already."""
        self._storage = storage
        self._connection = connection
        self._joined = joined
        self._waits_short = False

    def lock(self, touched: LockTargets) -> Units:
        """Lock and load what the facts touch, in the one lock order."""
        text = _LOCK if self._joined else _BEGIN_AND_LOCK
        return self._units(self._execute(text, self._arguments(touched))[-1], touched)

    def lock_group(self, touched: LockTargets) -> Units:
        """Lock and load as `lock`, for many members: a row that another session holds is waited for but shortly."""
        if self._joined:
            return self.lock(touched)
        self._waits_short = True
        return self._units(self._execute(_BEGIN_GROUP_AND_LOCK, self._arguments(touched))[-1], touched)

    def lock_more(self, units: Units, touched: LockTargets) -> None:
        """Lock and load more of runs that are locked already; whoever else wants their attempts waits for the run."""
        missing = touched.without(units)
        if missing:
            units.merge(self._units(self._execute(_LOCK, self._arguments(missing))[-1], missing))

    def _execute(self, text: LiteralString, values: Sequence[Value]) -> list[PGresult]:
        return execute(self._connection, self._storage.sql(text), values)

    def _arguments(self, touched: LockTargets) -> tuple[Value, ...]:
        """Return the arguments of `lock_runs`."""
        attempts, children = sorted(touched.attempts), sorted(touched.children)
        return (
            int(self._storage.hold / timedelta(milliseconds=1)),
            sorted(touched.runs),
            sorted(touched.whole),
            [run_id for run_id, _ in attempts],
            [key for _, key in attempts],
            [run_id for run_id, _ in children],
            [child_id for _, child_id in children],
        )

    def _units(self, result: PGresult, touched: LockTargets) -> Units:
        answer = json_of(result)
        return Units.read(answer, touched, self._storage.observe_db_time(answer["now"]))

    def read_new_entries(self, revisions: Mapping[str, int]) -> dict[str, list[Entry]]:
        """Read run threads from these revisions on, as they stand under the locks; nothing is planned by commands."""
        found: dict[str, list[Entry]] = {thread: [] for thread in revisions}
        values = list(revisions), list(revisions.values())
        rows = self._connection.execute(self._storage.sql(_READ_NEWS), values, binary=True).fetchall()
        for entry in read_entries(rows):
            found[entry.thread].append(entry)
        return found

    def read_checkpoints(self, threads: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Read the checkpoints that these threads have: revisions and what they hold."""
        rows = self._connection.execute(self._storage.sql(GET_CHECKPOINTS), (threads,), binary=True).fetchall()
        return {thread: (revision, data) for thread, revision, data in rows}

    def read_signals(self, run_id: str, idempotency_key: str) -> list[RunSignalReceived]:
        """Read the commands of a run that have this key, oldest first."""
        values = {"thread": run_thread(run_id), "key": idempotency_key}
        rows = self._connection.execute(self._storage.sql(_READ_SIGNALS), values, binary=True).fetchall()
        found = [entry.fact for entry in read_entries(rows) if entry.thread == values["thread"]]
        signals = [fact for fact in found if isinstance(fact, RunSignalReceived) and fact.run_id == run_id]
        return [signal for signal in signals if signal.idempotency_key == idempotency_key]

    def find_dead_letters(self, run_id: str, keys: Sequence[str]) -> list[str]:
        """Return the keys of those attempts that are dead letters."""
        values = {"run_id": run_id, "keys": keys}
        return [row[0] for row in self._connection.execute(self._storage.sql(_DEAD_LETTERS), values).fetchall()]

    def find_visit(self, run_id: str, visit: str) -> list[str]:
        """Return the keys of the attempts that have this idempotency key."""
        values = {"run_id": run_id, "visit": visit}
        return [row[0] for row in self._connection.execute(self._storage.sql(_OF_VISIT), values).fetchall()]

    def read_start(self, run_id: str) -> RunStarted | None:
        """Read the start of a run."""
        rows = self._connection.execute(self._storage.sql(_READ_START), (run_thread(run_id),), binary=True).fetchall()
        fact = next((entry.fact for entry in read_entries(rows)), None)
        return fact if isinstance(fact, RunStarted) else None

    def read_links(self, run_id: str, child_key: str) -> list[Entry] | None:
        """Read the links of a run to its children of a key; None if one is not in the commit that began the child."""
        values = {"run_id": run_id, "key": child_key}
        rows = self._connection.execute(self._storage.sql(_READ_LINKS), values, binary=True).fetchall()
        return None if any(row[0] is None for row in rows) else read_entries(rows)

    def read_beginning(self, run_id: str) -> RunProjection | None:
        """Return a run as its first facts tell it; None if its start is not among them."""
        rows = self._connection.execute(
            self._storage.sql(_READ_BEGINNING), (run_thread(run_id),), binary=True
        ).fetchall()
        run = RunProjection.fold(read_entries(rows))
        return run if not rows or (run.start is not None and run.command_history) else None

    def read_runs(self, run_ids: Iterable[str]) -> dict[str, RunUnit]:
        """Fold all facts of runs, as they stand under the locks."""
        found: dict[str, list[Entry]] = {run_id: [] for run_id in run_ids}
        rows = self._connection.execute(self._storage.sql(_READ_RUNS), (list(found),), binary=True).fetchall()
        for entry in read_entries(rows):
            run_id = run_of(entry.fact)
            if run_id in found:
                found[run_id].append(entry)
        return {run_id: RunUnit.fold(entries) for run_id, entries in found.items()}

    def committed(self, commit_id: UUID) -> bool:
        """Tell whether a commit of this id is on record."""
        return self._connection.execute(self._storage.sql(FIND_COMMIT), (commit_id,)).rowcount > 0

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
        hints: Sequence[str] = (),
    ) -> dict[str, int]:
        """Write facts and rows, and commit; hints about these queues go out right behind that."""
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
        # Threads are shared by all members of a group: they are waited for as ever.
        before: LiteralString = WAIT_LONG if self._waits_short else ""
        receipt: dict[str, int] = self._send(
            (before + _APPEND_AND_COMMIT, values), int(self._waits_short), commit_id, hints
        )
        return receipt

    def start(self, new: NewRuns, now: datetime, commit_id: UUID) -> None:
        """Write new runs and commit, in one message, with a hint behind it. Repeated under one id, it writes them once.

        Raises:
            psycopg.Error: with the state `NOT_NEW` when a run is there, or the database has another time.
        """
        virtual = self._storage.clock is not None
        shape = names(new.run_ids), new.queue_facts, new.run_facts
        values = (commit_id, new.queue, now, virtual, *shape, new.entries, new.rows, new.attempts)
        hints = [new.queue] if new.attempts else ()
        found = self._send((_START, values), BEGIN_STATEMENTS, commit_id, hints)
        if isinstance(found, str):  # else the receipt, when the hint was lost
            self._storage.observe_earlier_db_time(found)

    def _send(self, part: "_Part", skipped: int, commit_id: UUID | None, hints: Sequence[str]) -> Any:
        """Send statements that end with a commit, and hints behind it; give the answer to one of them.

        When only the hints could not be sent, that is the receipt of the commit.
        """
        behind: _Part = _NOTHING
        for i, queue in enumerate(hints):
            first: LiteralString = "" if i else _HINT
            behind = behind[0] + first + _HINT_ONE, (*behind[1], self._storage.channel, queue)
        try:
            return json_of(self._execute(part[0] + behind[0], (*part[1], *behind[1]))[skipped])
        except psycopg.Error as error:
            # A hint that cannot be sent (the queue of NOTIFY may be full) must not make a commit look like none.
            idle = not self._connection.broken and self._connection.info.transaction_status == TransactionStatus.IDLE
            found = self._execute(FIND_COMMIT, (commit_id,))[0] if hints and idle else None
            if found is None or not found.ntuples:
                raise
            logger.warning("cannot notify workers, who will find their work by polling: %s", error)
            return json_of(found)


class OneCommit(Generic[T]):
    """One commit, tried under one id until it is known to have happened; its answer is that of the try that made it.

    Behind its locks, a try asks whether the commit `is_made`. Before it commits, it notes its answer: the next try may
    find that it was made, and that only its acknowledgement was lost.
    """

    def __init__(self) -> None:
        """Begin before the first try."""
        self.id = uuid4()
        self._answers: list[T] = []

    @property
    def answer(self) -> T:
        """The answer of the last try, which is the one that committed if any has."""
        return self._answers[-1]

    def note(self, answer: T) -> T:
        """Keep and return what this try is going to answer."""
        self._answers.append(answer)
        return answer

    def is_made(self, transaction: Transaction) -> bool:
        """Return whether an earlier try has committed."""
        return bool(self._answers) and transaction.committed(self.id)


_Part = tuple[LiteralString, tuple[Value, ...]]
_NOTHING: _Part = ("", ())


def names(names: Iterable[str]) -> str:
    """Write names that may stand in a thread id as an array: there is nothing in them that needs more than quotes.

    psycopg's own arrays, which take any text, take ten times as long.
    """
    return "{" + ",".join([f'"{name}"' for name in names]) + "}"


@lru_cache(maxsize=64)
def texts(texts: frozenset[str]) -> str:
    """Write any texts as an array, each set of them once."""
    return array(sorted(texts))


def numbers(numbers: Iterable[int | None]) -> str:
    """Write numbers as an array."""
    return "{" + ",".join(["NULL" if number is None else str(number) for number in numbers]) + "}"
