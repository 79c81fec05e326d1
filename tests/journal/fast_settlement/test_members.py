"""Members of a group that the fast way of a settlement leaves to the general way."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, LiteralString

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Claim, Failed, PlanRequest, Settlement
from squid_dagster.journal.plan_state.cache import PlanStates
from squid_dagster.protocol import Fact, dispatch_thread
from squid_dagster.protocol.errors import TerminalRun
from tests.facts import QUEUE, child, quarantined, scheduled, signal, terminal, with_fields
from tests.journal.access import all_entries, assert_views_agree_with_the_journal, put, raw
from tests.journal.fast_settlement.workflows import (
    ALONE,
    BY_STATE,
    begun,
    claimed,
    completions,
    fast,
    raises,
    settled,
    workflow,
)

# --- what it leaves to the general way ------------------------------------------------------------------------------


ROWS: dict[str, LiteralString] = {
    "another claim": "UPDATE attempts SET claim_id = 'another' WHERE run_id = %s",
    "another token": "UPDATE attempts SET claim_token_hash = 'another' WHERE run_id = %s",
    "not claimed": "UPDATE attempts SET status = 'available' WHERE run_id = %s",
    "a lease that has run out": "UPDATE attempts SET lease_until = clock_timestamp() WHERE run_id = %s",
    "a later fact": "UPDATE attempts SET last_at = clock_timestamp() + interval '1 minute' WHERE run_id = %s",
    "an attempt of another queue": "UPDATE attempts SET queue = 'slow' WHERE run_id = %s",
    "not planned": "UPDATE attempts SET planned_digest = NULL WHERE run_id = %s",
    "applied": "UPDATE attempts SET applied_digest = 'x' WHERE run_id = %s",
    "no attempt": "DELETE FROM attempts WHERE run_id = %s",
    "a fenced run": "UPDATE runs SET fenced = true WHERE run_id = %s",
    "a run that may not be claimed": "UPDATE runs SET quarantined = true WHERE run_id = %s",
    "a quarantined run": "UPDATE runs SET quarantine = '[]' WHERE run_id = %s",
    "an ended run": "UPDATE runs SET terminal_status = 'failed' WHERE run_id = %s",
    "a run of another queue": "UPDATE runs SET queue = 'slow' WHERE run_id = %s",
    "no run": "DELETE FROM runs WHERE run_id = %s",
    "no thread": "DELETE FROM journal_threads WHERE id = 'squid:run:' || %s",
}


# What the revision of a state stands for: compared one by one where a run is planned for without its state.
ROWS_WITHOUT_STATE: dict[str, LiteralString] = {
    "another open visit": "UPDATE runs SET planned_visits = planned_visits + 1 WHERE run_id = %s",
    "no open visit": "UPDATE runs SET applied_visits = applied_visits + 1 WHERE run_id = %s",
    "a paused run": "UPDATE runs SET manual_state = '[]' WHERE run_id = %s",
    "no start": "UPDATE runs SET start_digest = NULL WHERE run_id = %s",
    "an anomaly": """INSERT INTO anomalies (run_id, position, ordinal, thread, seq, entry_type, reason)
        VALUES (%s, 1, 1, 'x', 1, 'x', 'malformed_entry')""",
}
ROWS_BY_STATE: dict[str, LiteralString] = {
    "another revision": "UPDATE journal_threads SET rev = rev + 1 WHERE id = 'squid:run:' || %s",
}


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        *((shape, row) for shape in (*ALONE, *BY_STATE) for row in ROWS),
        *((shape, row) for shape in ALONE for row in ROWS_WITHOUT_STATE),
        *((shape, row) for shape in BY_STATE for row in ROWS_BY_STATE),
    ],
)
def test_a_run_whose_rows_differ_is_left_out_whole_and_alone(postgres: PostgresStorage, row: str, shape: str) -> None:
    # given three claims and the states of their runs, and a row of one of them that has changed since
    squid, claims = begun(postgres, workflow(shape), 3)
    states = PlanStates()
    assert fast(postgres, claims, raises, states) == [], "the states are kept"
    run_id = claims[1].ref.run_id
    with raw(postgres) as connection:
        connection.execute({**ROWS, **ROWS_WITHOUT_STATE, **ROWS_BY_STATE}[row], (run_id,))
    # when all are settled together
    before = postgres.read_run(run_id), _rows(postgres, run_id)
    assert fast(postgres, claims, squid.runtime.plan, states) == [claims[0].ref.run_id, claims[2].ref.run_id]
    # then nothing of that one is written, no row of it has changed, and the others are whole
    assert (postgres.read_run(run_id), _rows(postgres, run_id)) == before
    assert_views_agree_with_the_journal(postgres, [claims[0].ref.run_id, claims[2].ref.run_id])


def _rows(storage: PostgresStorage, run_id: str) -> list[Any]:
    """Return the rows of a run, of its attempts and of its thread."""
    with raw(storage) as connection:
        return connection.execute(
            """SELECT to_json(r)::text FROM runs r WHERE run_id = %(run)s
                UNION ALL SELECT to_json(a)::text FROM attempts a WHERE run_id = %(run)s
                UNION ALL SELECT to_json(t)::text FROM journal_threads t WHERE id = 'squid:run:' || %(run)s""",
            {"run": run_id},
        ).fetchall()


def test_a_queue_without_a_thread_is_left_to_the_general_way(postgres: PostgresStorage) -> None:
    squid, claims = begun(postgres, workflow("one"), 2)
    with raw(postgres) as connection:
        connection.execute("DELETE FROM journal_threads WHERE id = %s", (dispatch_thread(QUEUE),))
    before = all_entries(postgres)
    assert fast(postgres, claims, squid.runtime.plan) == []
    assert all_entries(postgres) == before


def test_a_run_that_ends_while_an_attempt_is_open_that_was_never_planned_is_left_out(
    postgres: PostgresStorage,
) -> None:
    # given two runs, one of which has an attempt that its thread does not know
    squid, claims = begun(postgres, workflow("one"), 2)
    put(postgres, with_fields(scheduled(claims[0].ref.run_id, "other"), occurred_at=postgres.now()))
    assert fast(postgres, claims, squid.runtime.plan) == [claims[1].ref.run_id]
    # when the general way ends it, then it fences that attempt
    (answer,) = settled(squid, claims[:1])
    assert answer.unwrap().status == "completed"
    assert_views_agree_with_the_journal(postgres)


def test_a_run_that_goes_on_does_not_mind_other_attempts(postgres: PostgresStorage) -> None:
    squid, claims = begun(postgres, workflow("chain"))
    put(postgres, with_fields(scheduled(claims[0].ref.run_id, "other"), occurred_at=postgres.now()))
    assert len(fast(postgres, claims, squid.runtime.plan)) == 1
    assert_views_agree_with_the_journal(postgres)


def test_a_plan_that_ends_a_run_while_another_visit_is_open_is_left_out(
    postgres: PostgresStorage, fast_counts: list[int]
) -> None:
    squid, first = begun(postgres, workflow("fan out"))
    settled(squid, first)
    one, _ = claimed(squid, 2)

    def ends(request: PlanRequest) -> Sequence[Fact]:
        return [terminal(request.run_id, at=0)]

    assert squid.runtime.dispatch.settle(completions([one]), ends)[0].error is None
    assert fast_counts == [1, 0]
    assert_views_agree_with_the_journal(postgres)


def _cancelled(squid: Squid, claim: Claim) -> None:
    squid.cancel(claim.ref.run_id)


def _taken_over(squid: Squid, claim: Claim) -> None:
    squid.runtime.dispatch.release([claim.ref])
    assert squid.runtime.dispatch.claim(QUEUE, "rival")


def _quarantined(squid: Squid, claim: Claim) -> None:
    put(squid.runtime.storage, with_fields(quarantined(claim.ref.run_id), occurred_at=squid.runtime.storage.now()))


def _signalled(squid: Squid, claim: Claim) -> None:
    put(squid.runtime.storage, with_fields(signal(claim.ref.run_id), occurred_at=squid.runtime.storage.now()))


@pytest.mark.parametrize("shape", [*ALONE, *BY_STATE, "turn, known", "loop, known"])
@pytest.mark.parametrize("event", [_cancelled, _taken_over, _quarantined, _signalled], ids=lambda e: e.__name__[1:])
def test_what_is_not_plain_is_answered_as_it_would_be_alone(
    postgres: PostgresStorage, fast_counts: list[int], event: Callable[[Squid, Claim], None], shape: str
) -> None:
    # given three claims, to one of whose runs something happens, whether its state was known before or not
    shape, _, known = shape.partition(", ")
    squid, claims = begun(postgres, workflow(shape), 3)
    if known:
        settled(squid, claims, {"again": True})
        claims = claimed(squid, 3)
        fast_counts.clear()
    event(squid, claims[1])
    # when all are settled together
    answers = settled(squid, claims)
    # then the others have taken the fast way, and that one is answered as it would be alone
    plain = event is _signalled and not known
    assert fast_counts == [3 if plain else 2]
    refused = event in (_cancelled, _taken_over)
    assert [answer.error is None for answer in answers] == [True, not refused, True]
    assert_views_agree_with_the_journal(postgres)
    assert verify(postgres) == []


@pytest.mark.parametrize("shape", ["one", "turn"])
def test_a_run_with_an_anomaly_and_children_ends_as_any(
    postgres: PostgresStorage, fast_counts: list[int], shape: str
) -> None:
    squid, (claim,) = begun(postgres, workflow(shape))
    run_id = claim.ref.run_id
    put(postgres, child(run_id, child_run_id="c"), child(run_id, child_run_id="c", child_workflow="another"))
    assert settled(squid, [claim])[0].error is None
    assert fast_counts == [0 if shape == "one" else 1], "nothing is planned by children"
    assert squid.inspect_run(run_id).status == "completed"
    assert_views_agree_with_the_journal(postgres)


def test_a_later_delivery_ends_its_run_and_the_earlier_one_comes_too_late(
    postgres_virtual: PostgresStorage, clock: VirtualClock, fast_counts: list[int]
) -> None:
    squid, (claim,) = begun(postgres_virtual, workflow("one"))
    clock.advance(timedelta(minutes=10))
    (again,) = squid.runtime.dispatch.claim(QUEUE, "rival")
    assert settled(squid, [again])[0].error is None
    assert isinstance(settled(squid, [claim])[0].error, TerminalRun)
    assert fast_counts == [1, 0]
    assert_views_agree_with_the_journal(postgres_virtual)


def test_completions_beside_another_outcome_of_their_run_are_left_to_the_general_way(
    postgres: PostgresStorage, fast_counts: list[int]
) -> None:
    # given two open steps of one run, and another run
    squid, first = begun(postgres, workflow("fan out"), 2)
    settled(squid, first)
    claims = claimed(squid, 4)
    # when one of the two fails beside the other's success
    group = completions(claims)
    group[1] = Settlement(claims[1].ref, Failed({"message": "no"}))
    answers = squid.runtime.dispatch.settle(group, squid.runtime.plan)
    # then they are planned together, and the other run does not mind
    assert fast_counts == [2, 2]
    assert [answer.unwrap().status for answer in answers] == ["completed", "failed", "completed", "completed"]
    assert [squid.inspect_run(claim.ref.run_id).status for claim in first] == ["failed", "completed"]
    assert_views_agree_with_the_journal(postgres)
