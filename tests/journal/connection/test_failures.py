"""Whatever the database raises in a call: it is repeated, or raises an error of ours; and is never done twice."""

import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import pytest

from squid_dagster.api import Squid
from squid_dagster.backlog import Backlog, Card
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.contract.dispatch_store import Claim, ClaimRef, Completed, Failed, Settlement
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.journal.postgres.connection.sqlstates import _CLASSES, _CODES, ErrorAction, sqlstate_rule
from squid_dagster.journal.postgres.worker_liveness import PostgresLiveness
from squid_dagster.protocol import run_thread
from squid_dagster.protocol.errors import StorageRefused, StorageUnavailable
from squid_dagster.runtime.execution.settlement import settle
from squid_dagster.workflow import Workflow
from tests.facts import signal
from tests.faults import Faults
from tests.journal.access import all_entries, raw

CODES = sorted({*_CODES, *(f"{known}000" for known in _CLASSES if known not in ("00", "01", "3F"))})
"""One code of each class; the storage has a message of its own for a missing schema."""
REPEATED = [code for code in CODES if sqlstate_rule(code).action is ErrorAction.REPEAT]
NOT_REPEATED = [code for code in CODES if sqlstate_rule(code).action is not ErrorAction.REPEAT]


class FaultyJournal(NamedTuple):
    """A journal in which every write can be made to fail."""

    storage: PostgresStorage
    squid: Squid
    store: PostgresDispatchStore
    backlog: Backlog
    faults: Faults

    def run_id(self) -> str:
        """Start a run; return its id."""
        return self.squid.start("chain").run_id

    def claim(self, step: str = "a") -> Claim:
        """Start a run and claim its attempt at a step."""
        run_id, definitions = self.run_id(), self.squid.runtime.registry.keys
        while True:
            (claim,) = self.store.claim("default", "worker", definitions=definitions)
            if claim.attempt.run_id == run_id and claim.attempt.step == step:
                return claim
            settle(self.squid.runtime, [Settlement(claim.ref, Completed(None))])


@pytest.fixture
def journal(postgres: PostgresStorage) -> Iterator[FaultyJournal]:
    """A journal with a workflow of two steps."""
    workflow = Workflow("chain")
    workflow.step(name="a")(lambda: None)
    workflow.step(name="b", after=["a"])(lambda: None)
    faults = Faults(postgres)
    yield FaultyJournal(
        postgres, Squid(postgres, [workflow]), PostgresDispatchStore(postgres), Backlog(postgres), faults
    )
    faults.close()


Prepared = Callable[[], object]
_numbers = count()


def _held(journal: FaultyJournal, then: Callable[[ClaimRef], object]) -> Prepared:
    ref = journal.claim().ref
    return lambda: then(ref)


def _started(journal: FaultyJournal, then: Callable[[str], object]) -> Prepared:
    run_id = journal.run_id()
    return lambda: then(run_id)


def _settling(journal: FaultyJournal, step: str, outcome: Completed | Failed) -> Prepared:
    claim = journal.claim(step)
    return lambda: settle(journal.squid.runtime, [Settlement(claim.ref, outcome)]).answers[0].unwrap()


def _claiming(journal: FaultyJournal) -> Prepared:
    journal.run_id()
    return lambda: journal.store.claim("default", "worker", definitions=journal.squid.runtime.registry.keys)


def _with_card(journal: FaultyJournal, then: Callable[[Backlog, str], object]) -> Prepared:
    card_id = _card(journal).id
    return lambda: then(journal.backlog, card_id)


def _claimed_card(journal: FaultyJournal, then: Callable[[Backlog, str], object]) -> Prepared:
    card = _card(journal)
    journal.backlog.claim("worker", card_id=card.id)
    return lambda: then(journal.backlog, card.id)


OPERATIONS: dict[str, tuple[Callable[[FaultyJournal], Prepared], int]] = {
    "start": (lambda s: lambda: s.squid.start("chain"), 5),
    "start_many": (lambda s: lambda: s.squid.start_many("chain", [None] * 3), 15),
    "start with a key": (lambda s: lambda: s.squid.start("chain", idempotency_key=f"key {next(_numbers)}"), 5),
    "claim": (_claiming, 1),
    "heartbeat": (lambda s: _held(s, lambda ref: s.store.heartbeat([ref])[0].unwrap()), 1),
    "release": (lambda s: _held(s, lambda ref: s.store.release([ref])[0].unwrap()), 1),
    "complete a step": (lambda s: _settling(s, "a", Completed(1)), 4),
    "complete a run": (lambda s: _settling(s, "b", Completed(1)), 3),
    "fail a run": (lambda s: _settling(s, "b", Failed({"code": "wrong"})), 3),
    "cancel": (lambda s: _started(s, s.squid.cancel), 3),
    "pause a queue": (lambda s: lambda: s.squid.pause_queue(f"queue{next(_numbers)}"), 1),
    "commit": (lambda s: _started(s, lambda run_id: _commit(s, run_id)), 1),
    "put a checkpoint": (lambda s: lambda: s.storage.put_checkpoint(run_thread("nothing"), 0, "{}"), 0),
    "announce a worker": (lambda s: lambda: PostgresLiveness(s.storage).report(_worker()), 0),
    "create a card": (lambda s: lambda: _card(s), 1),
    "claim a card": (lambda s: _with_card(s, lambda b, card: b.claim("worker", card_id=card)), 1),
    "renew a card": (lambda s: _claimed_card(s, lambda b, card: b.renew(card)), 1),
    "complete a card": (lambda s: _claimed_card(s, lambda b, card: b.complete(card)), 1),
}
"""How each call is prepared, and how many facts it writes."""


def _card(journal: FaultyJournal) -> Card:
    return journal.backlog.create(f"card-{next(_numbers)}", "a card")


def _commit(journal: FaultyJournal, run_id: str) -> object:
    return journal.storage.commit([Append(run_thread(run_id), [signal(run_id=run_id)])])


def _worker() -> WorkerRow:
    return WorkerRow(worker_id="w", kind="worker", queues=("default",), definitions=None, host="h", pid=1, capacity=1)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_was_rolled_back_by_chance_is_repeated_and_done_once(journal: FaultyJournal, operation: str) -> None:
    prepare, facts = OPERATIONS[operation]
    wrong: dict[str, object] = {}
    for code in REPEATED:
        call = prepare(journal)
        before = len(all_entries(journal.storage))
        with journal.faults.raising(code, times=2):
            call()
        written = len(all_entries(journal.storage)) - before
        if written != facts:
            wrong[code] = written
    assert wrong == {}
    assert verify(journal.storage) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_cannot_be_repeated_is_told_by_an_error_of_ours_and_changes_nothing(
    journal: FaultyJournal, operation: str
) -> None:
    prepare, facts = OPERATIONS[operation]
    call = prepare(journal)
    before = len(all_entries(journal.storage))
    wrong: dict[str, object] = {}
    for code in NOT_REPEATED:
        expected = StorageUnavailable if sqlstate_rule(code).action is ErrorAction.WAIT else StorageRefused
        with journal.faults.raising(code):
            try:
                wrong[code] = call()
            except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
                words = ("grant",) if code == "42501" else (code, sqlstate_rule(code).words, sqlstate_rule(code).remedy)
                if type(error) is not expected or any(word not in str(error) for word in words):
                    wrong[code] = repr(error)
    assert wrong == {}
    assert len(all_entries(journal.storage)) == before
    # and the same call does all of it as soon as the database lets it
    call()
    assert len(all_entries(journal.storage)) - before == facts
    assert verify(journal.storage) == []


def test_a_transaction_that_is_rolled_back_for_ever_is_given_up_in_time(journal: FaultyJournal) -> None:
    with journal.faults.raising("40001"), pytest.raises(StorageUnavailable, match="40001") as given_up:
        journal.squid.start("chain")
    assert given_up.value.sqlstate == "40001"
    assert len(all_entries(journal.storage)) == 0


def test_a_deadlock_is_news_and_a_cancelled_statement_is_not(
    journal: FaultyJournal, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        with journal.faults.raising("57014", times=2):
            journal.squid.start("chain")
        assert caplog.records == []
        with journal.faults.raising("40P01", times=2):
            journal.squid.start("chain")
    assert len(caplog.records) == 2


def test_after_a_read_only_answer_another_server_may_be_reached(
    journal: FaultyJournal, postgres: PostgresStorage
) -> None:
    before = {connection_id(postgres) for _ in range(3)}
    with journal.faults.raising("25006"), pytest.raises(StorageUnavailable, match="read-only"):
        journal.squid.start("chain")
    assert connection_id(postgres) not in before


def connection_id(storage: PostgresStorage) -> int:
    """Return the process id of the session that answers."""
    return int(storage.rows("SELECT pg_backend_pid()")[0][0])


def test_a_database_that_was_made_read_only_is_told_as_such_and_written_to_when_it_is_not_any_more(
    postgres_url: str, postgres: PostgresStorage
) -> None:
    # given a role whose sessions are read-only, as after a failover to a standby
    role = f"reader_{postgres.schema}"
    with raw(postgres) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
        connection.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    storage = PostgresStorage(postgres_url.replace("postgres@", f"{role}@", 1), postgres.schema)
    squid = Squid(storage, [_one()])
    with pytest.raises(StorageUnavailable, match=r"it is read-only \(25006"):
        squid.start("one")
    assert squid.list_runs().runs == (), "reading is no matter"
    # when it takes writes again, sessions that were made before do not stand in the way
    with raw(postgres) as connection:
        connection.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
    assert squid.start("one").run_id
    storage.close()
    with raw(postgres) as connection:
        connection.execute(f"DROP ROLE {role}")


def _one() -> Workflow:
    workflow = Workflow("one")
    workflow.step(name="a")(lambda: None)
    return workflow
