"""The dispatch fold: what must hold of any history whatever."""

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.protocol import (
    Attempt,
    AttemptClaimed,
    AttemptCompleted,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
    AttemptStatus,
    DispatchProjection,
    Entry,
    Fact,
    RunDispatch,
)
from squid_dagster.protocol.entries import by_run
from squid_dagster.protocol.folds.attempt import claim_order
from tests.facts import RUNS, T0, entries, t
from tests.histories import histories, journals
from tests.protocol.fold_assertions import assert_parts_make_the_whole


def accepted(placed: list[Entry]) -> list[Entry]:
    """Return the entries with a readable fact that have no anomaly."""
    refused = {(a.thread, a.seq) for a in DispatchProjection.fold(placed).anomalies}
    return [entry for entry in placed if (entry.thread, entry.seq) not in refused]


@settings(max_examples=120)
@given(journals())
def test_any_journal_folds_and_every_anomaly_names_its_entry(journal: list[Entry]) -> None:
    projection = DispatchProjection.fold(journal)

    places = {(entry.thread, entry.seq, entry.position) for entry in journal}
    for anomaly in projection.anomalies:
        assert (anomaly.thread, anomaly.seq, anomaly.position) in places
        assert anomaly.subject is None or isinstance(anomaly.subject, str)
    assert sorted(projection.claimable(t(500)), key=claim_order) == projection.claimable(t(500))


@settings(max_examples=100)
@given(journals(), st.data())
def test_folding_in_two_parts_equals_folding_at_once_and_leaves_the_first_part_alone(
    journal: list[Entry], data: st.DataObject
) -> None:
    assert_parts_make_the_whole(DispatchProjection, journal, data.draw(st.integers(0, len(journal))))


@settings(max_examples=120)
@given(histories())
def test_an_attempt_has_at_most_one_holder_at_any_time(history: list[Fact]) -> None:
    holds: dict[tuple[str, str], list[tuple[Any, Any]]] = {}

    for entry in accepted(entries(history)):
        fact = entry.fact
        match fact:
            case AttemptClaimed():
                holds.setdefault((fact.run_id, fact.runnable_key), []).append((fact.occurred_at, fact.lease_until))
            case AttemptHeartbeat():
                since, until = holds[fact.run_id, fact.runnable_key].pop()
                assert since <= fact.occurred_at < until
                holds[fact.run_id, fact.runnable_key].append((since, max(until, fact.lease_until)))
            case AttemptReleased() | AttemptCompleted() | AttemptFailed():
                since, until = holds[fact.run_id, fact.runnable_key].pop()
                # A repeat of an outcome may come at any later time; only the first one ends the hold.
                holds[fact.run_id, fact.runnable_key].append((since, min(until, fact.occurred_at)))

    for held in holds.values():
        assert all(until <= since for (_, until), (since, _) in pairwise(held))


@settings(max_examples=100)
@given(histories())
def test_a_settled_attempt_never_changes(history: list[Fact]) -> None:
    settled: dict[str, Attempt] = {}
    projection = DispatchProjection()
    over = {AttemptStatus.COMPLETED, AttemptStatus.FAILED, AttemptStatus.DEAD_LETTERED}

    for entry in entries(history):
        projection = DispatchProjection.fold([entry], onto=projection)
        now = {f"{r}/{k}": a for r, run in projection.runs.items() for k, a in run.attempts.items()}
        assert {name: now[name] for name in settled} == settled
        settled = {name: attempt for name, attempt in now.items() if attempt.status in over}


@settings(max_examples=100)
@given(histories())
def test_a_fenced_run_never_shows_work_and_its_attempts_never_change_again(history: list[Fact]) -> None:
    projection, frozen = DispatchProjection(), dict[str, dict[str, Attempt]]()

    for entry in entries(history):
        projection = DispatchProjection.fold([entry], onto=projection)
        for run_id, run in projection.runs.items():
            if run.fenced:
                assert run.attempts == frozen.setdefault(run_id, run.attempts)
                assert not list(run.open_attempts())
                assert not list(run.claimable(t(10_000)))
    shown = [*projection.visible(t(10_000)), *projection.expired(t(10_000)), *projection.claimable(t(10_000))]
    assert not {attempt.run_id for attempt in shown} & set(frozen)


@settings(max_examples=100)
@given(histories())
def test_the_fencing_token_of_an_idempotency_key_grows_by_one_with_every_accepted_claim(history: list[Fact]) -> None:
    placed = entries(history)
    accepted_places = {(entry.thread, entry.seq) for entry in accepted(placed)}
    projection, last = DispatchProjection(), dict[tuple[str, str], int]()

    for entry in placed:
        projection = DispatchProjection.fold([entry], onto=projection)
        if isinstance(entry.fact, AttemptClaimed) and (entry.thread, entry.seq) in accepted_places:
            attempt = projection.runs[entry.fact.run_id].attempts[entry.fact.runnable_key]
            visit = (attempt.run_id, attempt.idempotency_key)
            last[visit] = last.get(visit, 0) + 1
            assert attempt.fencing_token == last[visit]
    assert {(r, k): n for r, run in projection.runs.items() for k, n in run.tokens.items()} == last


@settings(max_examples=100)
@given(journals())
def test_each_run_folds_by_itself_to_its_part_of_the_whole(journal: list[Entry]) -> None:
    whole = DispatchProjection.fold(journal)

    for run_id, own in by_run(journal).items():
        if run_id is None:
            assert DispatchProjection.fold(own).paused == whole.paused
        else:
            assert DispatchProjection.fold(own).runs == {run_id: whole.runs[run_id]}


@settings(max_examples=60)
@given(histories(), st.sampled_from(RUNS))
def test_the_facts_of_one_run_never_change_another_runs_part(history: list[Fact], run_id: str) -> None:
    others = [entry for entry in entries(history) if getattr(entry.fact, "run_id", None) != run_id]

    with_it, without_it = DispatchProjection.fold(entries(history)), DispatchProjection.fold(others)

    empty = RunDispatch()
    for other in set(RUNS) - {run_id}:
        assert with_it.runs.get(other, empty) == without_it.runs.get(other, empty)


@settings(max_examples=60)
@given(histories())
def test_deliveries_stay_within_the_cap_and_leases_within_reason(history: list[Fact]) -> None:
    for attempt in DispatchProjection.fold(entries(history)).attempts.values():
        assert 0 <= attempt.deliveries <= attempt.max_deliveries
        assert (attempt.status is AttemptStatus.CLAIMED) <= (attempt.lease_until is not None)
        assert attempt.due_at is None or attempt.due_at >= T0
