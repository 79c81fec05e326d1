"""Claims by key: what is answered follows from the facts, on every storage, whatever was read of the run."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Claim
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.transaction import Transaction
from squid_dagster.protocol import Fact, RunUnit
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.attempt import definition_key
from squid_dagster.runtime.leases.claim_by_key import Refused, claim_item
from squid_dagster.runtime.runtime import Runtime
from tests.facts import (
    QUEUE,
    RUN,
    T0,
    WORKFLOW,
    applied,
    claimed,
    completed,
    dead_lettered,
    failed,
    failed_with_retry,
    fenced,
    key,
    planned,
    quarantined,
    queued,
    released,
    runnable,
    scheduled,
    started,
    t,
    terminal,
)
from tests.histories import histories, renamed
from tests.journal.access import WITHOUT_SHRINKING, put

ITEM = f"{RUN}:charge:1"
NOW = 100.0  # seconds, when the cases are judged
LEASE = timedelta(seconds=60)
_numbers = count(1)


def runtime_on(storage: Storage) -> Runtime:
    """Return a runtime that has a definition for the attempts of the facts in these tests."""
    known: Any = SimpleNamespace(keys={definition_key(WORKFLOW, None)})
    return replace(Squid(storage).runtime, registry=known)


def answer_fields(answer: Claim | Refused) -> tuple[object, ...]:
    """Return an answer in short: attempt and token; or the seconds until the next try, and whether it is done."""
    if isinstance(answer, Claim):
        return (answer.ref.runnable_key, answer.attempt.fencing_token, answer.attempt.deliveries)
    again = None if answer.again_at is None else (answer.again_at - T0).total_seconds()
    return ("refused", again, answer.done)


BEGUN: list[Fact] = [started(), queued(), planned(), scheduled()]
TRIED_AGAIN: list[Fact] = [*BEGUN, claimed(), failed_with_retry(at=20)]
DONE: list[Fact] = [*BEGUN, claimed(), completed()]
LOST: list[Fact] = [started(), planned(runnable(max_deliveries=1)), scheduled(max_deliveries=1), claimed(lease=5)]
CASES: dict[str, tuple[list[Fact], tuple[object, ...]]] = {
    "no such run": ([], ("refused", None, False)),
    "no such item": ([started()], ("refused", None, False)),
    "planned and not scheduled": ([started(), planned()], ("refused", None, False)),
    "never claimed": (BEGUN, (key(), 1, 1)),
    "held": ([*BEGUN, claimed(at=90)], ("refused", 150, False)),
    "lease over": ([*BEGUN, claimed()], (key(), 2, 2)),
    "given back": ([*BEGUN, claimed(), released()], (key(), 2, 1)),
    "not due": ([started(), planned(), scheduled(visible_at=t(130))], ("refused", 130, False)),
    "tried again": (TRIED_AGAIN, (key(attempt=2), 2, 1)),
    "tried a third time": (
        [*TRIED_AGAIN, claimed(attempt=2, at=81), failed_with_retry(attempt=2, at=82, delay=1)],
        (key(attempt=3), 3, 1),
    ),
    "delivered too often": (LOST, ("refused", None, False)),
    "a dead letter": ([*LOST, dead_lettered()], ("refused", None, False)),
    "of another definition": ([started(), scheduled(workflow="other")], ("refused", NOW + 30, False)),
    "done": (DONE, ("refused", None, True)),
    "done after another try": (
        [*TRIED_AGAIN, claimed(attempt=2, at=81), completed(attempt=2, at=82)],
        ("refused", None, True),
    ),
    "done, and the run has ended": ([*DONE, applied(), terminal()], ("refused", None, True)),
    "done and not applied, and the run has ended": ([*DONE, terminal()], ("refused", None, True)),
    "failed, and the run has ended": (
        [*BEGUN, claimed(), failed(), terminal(status="failed")],
        ("refused", None, False),
    ),
    "open, and the run has ended": ([*BEGUN, terminal(status="cancelled"), fenced()], ("refused", None, False)),
    "completed too late, after the run's end": (
        [*BEGUN, claimed(), terminal(status="cancelled", at=20), completed()],
        ("refused", None, False),
    ),
    "open, and the run is quarantined": ([*BEGUN, quarantined()], ("refused", None, False)),
    "done, and the run is quarantined": ([*DONE, quarantined(at=40)], ("refused", None, True)),
    "two are open": (
        [started(), scheduled(attempt=2), scheduled(attempt=1)],
        (key(attempt=2), 1, 1),
    ),
    "named otherwise": (
        [started(), *(scheduled(runnable_key=f"mine-{n}", attempt_number=n) for n in (3, 7))],
        ("mine-3", 1, 1),
    ),
    "named otherwise, and claimed before": (
        [
            *(started(), scheduled(runnable_key="mine"), claimed(runnable_key="mine", claim="b")),
            *(failed(runnable_key="mine", claim="b"), scheduled(attempt=2)),
        ],
        (key(attempt=2), 2, 1),
    ),
    "beside another run's of the same key": (
        [started(), scheduled(), *(scheduled("run-2", idempotency_key=ITEM), claimed("run-2", at=90))],
        (key(), 1, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_claim_by_key_answers_follows_from_the_facts(storage: Storage, clock: VirtualClock, name: str) -> None:
    history, expected = CASES[name]
    for fact in history:
        put(storage, fact)
    clock.advance(t(NOW) - T0)
    assert answer_fields(claim_item(runtime_on(storage), RUN, ITEM, "w", LEASE)) == expected
    # and what was claimed is on record
    attempts = RunUnit.fold(storage.read_run(RUN)).dispatch.attempts
    held = [attempt for attempt in attempts.values() if attempt.owner_id == "w"]
    assert [attempt.runnable_key for attempt in held] == [expected[0]] * (expected[0] != "refused")


@pytest.mark.parametrize(
    "item", ["", "charge", ITEM + ":1", ITEM.upper(), "ü\\\"{},'%s", "x" * 100_000, "\0", "\ud800"]
)
def test_an_item_of_any_name_is_refused_if_the_run_has_none_of_it(storage: Storage, item: str) -> None:
    put(storage, *BEGUN)
    assert answer_fields(claim_item(runtime_on(storage), RUN, item, "w", LEASE)) == ("refused", None, False)


def test_nobody_else_claims_what_a_claim_by_key_has_looked_at(
    postgres_virtual: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a worker that claims what is due, while a claim by key has its locks
    for fact in (*BEGUN, scheduled(step="ship")):
        put(postgres_virtual, fact)
    others, read_new_entries = PostgresDispatchStore(postgres_virtual), Transaction.read_new_entries
    claimed_keys: list[str] = []

    def claiming(self: Transaction, revisions: dict[str, int]) -> dict[str, list[Entry]]:
        claimed_keys.extend(claim.ref.runnable_key for claim in others.claim(QUEUE, "other", limit=10))
        return read_new_entries(self, revisions)

    monkeypatch.setattr(Transaction, "read_new_entries", claiming)
    # when one is made
    answer = claim_item(runtime_on(postgres_virtual), RUN, ITEM, "w", LEASE)
    # then each has what the other one has not
    assert (claimed_keys, answer_fields(answer)) == ([key(step="ship")], (key(), 1, 1))
    assert RunUnit.fold(postgres_virtual.read_run(RUN)).anomalies == []


@pytest.fixture(scope="module")
def shared(postgres_url: str, schema_names: Iterator[str]) -> Iterator[PostgresStorage]:
    """A journal on Postgres for all examples of this module."""
    storage = PostgresStorage(postgres_url, next(schema_names), clock=VirtualClock(T0))
    storage.upgrade()
    yield storage
    storage.close()


@given(history=histories(), size=st.integers(1, 12), at=st.integers(0, 150))
@settings(max_examples=100, phases=WITHOUT_SHRINKING)
def test_after_any_history_a_claim_by_key_is_the_same_as_by_all_facts_of_the_run(
    shared: PostgresStorage, history: list[Fact], size: int, at: int
) -> None:
    # given any history in two journals, in one of which claims read all facts
    prefix = f"claimed{next(_numbers)}"
    mine = [renamed(fact, prefix) for fact in history]
    clock = VirtualClock(T0)
    whole = MemoryStorage(clock)
    for begin in range(0, len(mine), size):
        for storage in (shared, whole):
            put(storage, *mine[begin : begin + size])
    runtimes = runtime_on(shared), runtime_on(whole)
    visits = [(f"{prefix}-{n}", f"{prefix}-{n}:{step}:1") for n in (1, 2, 3) for step in ("charge", "ship")]
    # when each visit is claimed, and again when the lease is over
    for seconds in (at, at + 61):
        for either in (shared.clock, clock):
            assert isinstance(either, VirtualClock)
            either.advance(t(seconds) - either.now())
        for run_id, item_id in visits:
            answers = [claim_item(runtime, run_id, item_id, "w", LEASE) for runtime in runtimes]
            # then both answer the same
            assert _plain(answers[0]) == _plain(answers[1])
    # and the runs are the same in the end
    for run_id in {run_id for run_id, _ in visits}:
        one, other = (RunUnit.fold(storage.read_run(run_id)) for storage in (shared, whole))
        assert one.dispatch.tokens == other.dispatch.tokens
        assert [anomaly.reason for anomaly in one.anomalies] == [anomaly.reason for anomaly in other.anomalies]


def _plain(answer: Claim | Refused) -> object:
    """Return an answer without random names and positions."""
    if isinstance(answer, Refused):
        return answer
    return answer.attempt._replace(claim_id=None, claim_token_hash=None, position=0)
