"""The unit of folding is the run: its facts from every thread by position, and the joins between its two threads."""

from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.protocol import (
    CATALOG_THREAD,
    DispatchProjection,
    Entry,
    Fact,
    Reason,
    RunDispatch,
    RunProjection,
    RunUnit,
    planned_but_unscheduled,
    results_ready_to_apply,
    run_index_thread,
    run_thread,
    unfenced_attempts,
)
from squid_dagster.protocol.entries import by_run
from tests.facts import (
    OnThread,
    applied,
    cataloged,
    claimed,
    completed,
    entries,
    failed,
    failed_with_retry,
    fenced,
    indexed,
    key,
    malformed,
    planned,
    queued,
    runnable,
    scheduled,
    started,
    terminal,
    unknown,
)
from tests.histories import journals
from tests.protocol.fold_assertions import assert_parts_make_the_whole


def fold(*items: Fact | OnThread) -> RunUnit:
    return RunUnit.fold(entries(items))


def unscheduled(*facts: Fact) -> list[str]:
    unit = fold(*facts)
    return [work.runnable_key for work in planned_but_unscheduled(unit.run, unit.dispatch)]


def ready(*facts: Fact) -> list[str]:
    unit = fold(*facts)
    return [attempt.runnable_key for attempt in results_ready_to_apply(unit.run, unit.dispatch)]


def apart(*facts: Fact) -> tuple[RunProjection, RunDispatch]:
    """Fold the run's own thread and its part of the queue's, each alone."""
    placed = entries(facts)
    own = [entry for entry in placed if entry.thread == run_thread("run-1")]
    rest = [entry for entry in placed if entry.thread != run_thread("run-1")]
    return RunProjection.fold(own), DispatchProjection.fold(rest).runs["run-1"]


# --- one fold over all threads --------------------------------------------------------------------------------------


def test_a_unit_holds_what_each_thread_says_about_the_run() -> None:
    facts: list[Fact] = [started(), queued(), planned(), scheduled(), indexed(at=1), cataloged(at=2)]

    unit = fold(*facts)

    assert unit.run == RunProjection.fold(entries(facts))
    assert unit.dispatch == DispatchProjection.fold(entries(facts)).runs["run-1"]
    assert unit.indexed is not None
    assert unit.cataloged is not None
    assert (unit.indexed.workflow, unit.cataloged.queue) == ("billing", "default")
    assert unit.anomalies == []


def test_the_end_of_the_run_fences_by_position() -> None:
    unit = fold(scheduled(), claimed(), scheduled(step="ship"), completed(), terminal(), claimed(step="ship", at=60))

    assert unit.dispatch.fenced
    assert [(a.reason, a.subject) for a in unit.anomalies] == [(Reason.TERMINAL_RUN, key(step="ship"))]


def test_a_repeated_listing_is_a_repair_and_another_place_a_conflict() -> None:
    unit = fold(indexed(), indexed(at=9), indexed(queue="slow"), cataloged(), cataloged(at=9), cataloged(queue="slow"))

    assert [a.reason for a in unit.anomalies] == [Reason.CONFLICTING_RUN_INDEX, Reason.CONFLICTING_RUN_CATALOG]
    assert (unit.indexed, unit.cataloged) == (fold(indexed()).indexed, fold(cataloged()).cataloged)


def test_unreadable_entries_of_every_thread_are_anomalies_once() -> None:
    threads = [run_thread("run-1"), "squid:dispatch:default", run_index_thread("billing"), CATALOG_THREAD]

    unit = fold(*(malformed(thread) for thread in threads), *(unknown(thread) for thread in threads))

    assert [(a.reason, a.thread, a.seq) for a in unit.anomalies] == [
        *((Reason.MALFORMED_ENTRY, thread, 1) for thread in threads),
        *((Reason.UNKNOWN_FACT_TYPE, thread, 2) for thread in threads),
    ]


def test_anomalies_come_in_the_order_of_their_entries() -> None:
    unit = fold(claimed(), applied(), cataloged(), cataloged(queue="slow"), completed())

    assert [anomaly.entry_type for anomaly in unit.anomalies] == [
        "attempt_claimed",
        "runnable_applied",
        "run_cataloged",
        "attempt_completed",
    ]


# --- joins ----------------------------------------------------------------------------------------------------------


def test_what_is_planned_and_not_scheduled_is_found_in_the_order_of_the_plan() -> None:
    plan = planned(runnable(step="ship"), runnable())

    assert unscheduled(plan) == [key(step="ship"), key()]
    assert unscheduled(plan, scheduled()) == [key(step="ship")]
    assert unscheduled(plan, scheduled(), scheduled(step="ship")) == []


def test_what_was_applied_needs_no_scheduling() -> None:
    assert unscheduled(planned(), applied()) == []


def test_a_retry_that_its_failure_created_needs_no_scheduling() -> None:
    retry = planned(runnable(attempt=2), at=30)

    assert unscheduled(planned(), scheduled(), claimed(), failed_with_retry(), retry) == []


def test_an_ended_run_schedules_and_applies_nothing() -> None:
    done: list[Fact] = [planned(runnable(), runnable(step="ship")), scheduled(), claimed(), completed(), terminal()]

    assert unscheduled(*done) == []
    assert ready(*done) == []


def test_a_completed_attempt_is_ready_to_apply_until_it_is_applied() -> None:
    done: list[Fact] = [planned(), scheduled(), claimed(), completed()]

    assert ready(*done[:-1]) == []
    assert ready(*done) == [key()]
    assert ready(*done, applied()) == []


def test_only_what_the_run_planned_is_applied() -> None:
    assert ready(scheduled(), claimed(), completed()) == []


def test_a_failed_attempt_has_no_result_to_apply() -> None:
    assert ready(planned(), scheduled(), claimed(), failed()) == []


def test_results_are_applied_in_the_order_in_which_they_came() -> None:
    order = ready(
        planned(runnable(), runnable(step="ship"), runnable(step="mail")),
        scheduled(),
        scheduled(step="ship"),
        scheduled(step="mail"),
        claimed(),
        claimed(step="ship"),
        claimed(step="mail"),
        completed(step="ship", at=20),
        completed(at=30),
        completed(step="mail", at=30),
    )

    assert order == [key(step="ship"), key(), key(step="mail")]


def test_open_attempts_of_an_ended_run_are_found_while_its_queue_does_not_know_of_the_end() -> None:
    facts: list[Fact] = [scheduled(), scheduled(step="ship", priority=5), terminal()]

    assert [a.step for a in unfenced_attempts(*apart(*facts))] == ["ship", "charge"]
    assert unfenced_attempts(*apart(*facts, fenced())) == []
    assert unfenced_attempts(*apart(*facts[:-1], started())) == []


# --- what must hold of any history ----------------------------------------------------------------------------------


@settings(max_examples=100)
@given(journals())
def test_a_unit_equals_what_the_other_folds_say_about_the_run(journal: list[Entry]) -> None:
    whole = DispatchProjection.fold(journal)

    for run_id, own in by_run(journal).items():
        if run_id is not None:
            unit = RunUnit.fold(own)
            assert unit.run == RunProjection.fold(own)
            assert unit.dispatch == whole.runs[run_id]


@settings(max_examples=60)
@given(journals(), st.data())
def test_folding_in_two_parts_equals_folding_at_once_and_leaves_the_first_part_alone(
    journal: list[Entry], data: st.DataObject
) -> None:
    groups = by_run(journal)
    groups.pop(None, None)
    for own in groups.values():
        assert_parts_make_the_whole(RunUnit, own, data.draw(st.integers(0, len(own))))


@settings(max_examples=60)
@given(journals())
def test_an_ended_or_fenced_run_offers_no_work(journal: list[Entry]) -> None:
    for run_id, own in by_run(journal).items():
        unit = RunUnit.fold(own) if run_id is not None else RunUnit()
        if unit.run.terminal:
            assert unit.dispatch.fenced
            assert not planned_but_unscheduled(unit.run, unit.dispatch)
            assert not results_ready_to_apply(unit.run, unit.dispatch)
