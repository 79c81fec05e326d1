"""The folds of index and catalog, one test per rule; then what must hold of any history whatever."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.protocol import (
    CATALOG_THREAD,
    Entry,
    Fact,
    Reason,
    RunCatalogProjection,
    RunIndexProjection,
    RunSummary,
    run_index_thread,
)
from tests.facts import OnThread, cataloged, entries, indexed, malformed, scheduled, started, t, unknown
from tests.histories import journals
from tests.protocol.fold_assertions import assert_parts_make_the_whole, reasons

INDEX_THREAD = run_index_thread("billing")


def fold_index(*items: Fact | OnThread, workflow: str | None = None) -> RunIndexProjection:
    return RunIndexProjection.fold(entries(items), workflow=workflow)


def fold_catalog(*items: Fact | OnThread) -> RunCatalogProjection:
    return RunCatalogProjection.fold(entries(items))


def test_an_indexed_run_can_be_found() -> None:
    projection = fold_index(indexed(at=3))

    assert projection.runs == [RunSummary("run-1", "billing", "default", t(3))]
    assert projection.run_ids == {"run-1"}
    assert projection.workflow == "billing"


def test_a_cataloged_run_can_be_found_whatever_its_workflow() -> None:
    projection = fold_catalog(cataloged(at=3), cataloged("run-2", workflow="refund", at=4))

    assert projection.runs == [
        RunSummary("run-1", "billing", "default", t(3)),
        RunSummary("run-2", "refund", "default", t(4)),
    ]
    assert projection.run_ids == {"run-1", "run-2"}


def test_runs_come_oldest_first_then_by_id() -> None:
    facts: list[Fact] = [indexed("run-3", at=5), indexed("run-2", at=5), indexed("run-9", at=1)]
    listed: list[Fact] = [cataloged("run-3", at=5), cataloged("run-2", at=5), cataloged("run-9", at=1)]

    assert [run.run_id for run in fold_index(*facts).runs] == ["run-9", "run-2", "run-3"]
    assert [run.run_id for run in fold_catalog(*listed).runs] == ["run-9", "run-2", "run-3"]


def test_the_same_listing_at_another_time_is_a_repair_and_the_first_time_stays() -> None:
    index, catalog = fold_index(indexed(at=1), indexed(at=9)), fold_catalog(cataloged(at=1), cataloged(at=9))

    assert (reasons(index), index.by_run_id["run-1"].indexed_at) == ([], t(1))
    assert (reasons(catalog), catalog.by_run_id["run-1"].indexed_at) == ([], t(1))


def test_another_queue_for_an_indexed_run_conflicts_and_the_first_stays() -> None:
    projection = fold_index(indexed(), indexed(queue="slow"))

    assert reasons(projection) == [Reason.CONFLICTING_RUN_INDEX]
    assert projection.by_run_id["run-1"].queue == "default"


@pytest.mark.parametrize("other", [{"queue": "slow"}, {"workflow": "refund"}])
def test_another_place_for_a_cataloged_run_conflicts_and_the_first_stays(other: dict[str, Any]) -> None:
    projection = fold_catalog(cataloged(), cataloged(**other))

    assert reasons(projection) == [Reason.CONFLICTING_RUN_CATALOG]
    assert projection.runs == fold_catalog(cataloged()).runs


def test_an_index_learns_its_workflow_from_the_first_run() -> None:
    projection = fold_index(indexed(), indexed("run-2", workflow="refund"))

    assert reasons(projection) == [Reason.CONFLICTING_WORKFLOW]
    assert projection.workflow == "billing"
    assert projection.run_ids == {"run-1"}


def test_an_index_made_for_a_workflow_takes_no_other() -> None:
    projection = fold_index(indexed(), indexed("run-2", workflow="refund"), workflow="refund")

    assert reasons(projection) == [Reason.CONFLICTING_WORKFLOW]
    assert projection.run_ids == {"run-2"}


def test_a_known_run_under_another_workflow_is_a_matter_of_the_workflow_first() -> None:
    assert reasons(fold_index(indexed(), indexed(workflow="refund"))) == [Reason.CONFLICTING_WORKFLOW]


@pytest.mark.parametrize("run", ["run-1", None])
def test_unreadable_entries_are_anomalies_with_thread_and_sequence(run: str | None) -> None:
    index = fold_index(indexed(), unknown(INDEX_THREAD, run), malformed(INDEX_THREAD, run))
    catalog = fold_catalog(cataloged(), unknown(CATALOG_THREAD, run), malformed(CATALOG_THREAD, run))

    for projection, thread in ((index, INDEX_THREAD), (catalog, CATALOG_THREAD)):
        assert [(a.reason, a.run_id, a.thread, a.seq) for a in projection.anomalies] == [
            (Reason.UNKNOWN_FACT_TYPE, run, thread, 2),
            (Reason.MALFORMED_ENTRY, run, thread, 3),
        ]
        assert projection.run_ids == {"run-1"}


def test_entries_of_other_threads_mean_nothing_to_index_and_catalog() -> None:
    others = (started(), scheduled(), malformed(), unknown())

    assert fold_index(*others, cataloged()) == RunIndexProjection()
    assert fold_catalog(*others, indexed()) == RunCatalogProjection()


@settings(max_examples=60)
@given(journals(), st.data())
def test_folding_in_two_parts_equals_folding_at_once_and_leaves_the_first_part_alone(
    journal: list[Entry], data: st.DataObject
) -> None:
    split = data.draw(st.integers(0, len(journal)))
    for kind in (RunIndexProjection, RunCatalogProjection):
        assert_parts_make_the_whole(kind, journal, split)


@settings(max_examples=60)
@given(journals())
def test_every_run_is_listed_at_the_first_place_that_was_written(journal: list[Entry]) -> None:
    first: dict[str, tuple[str, str]] = {}
    for entry in journal:
        fact: Any = entry.fact
        if entry.thread == CATALOG_THREAD and hasattr(fact, "workflow"):
            first.setdefault(fact.run_id, (fact.workflow, fact.queue))

    runs = RunCatalogProjection.fold(journal).by_run_id

    assert {run_id: (run.workflow, run.queue) for run_id, run in runs.items()} == first
