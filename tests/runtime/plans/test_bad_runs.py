"""Runs that cannot be read, or have an anomaly: no other run and no listing suffers from them.

The tests named after a defect provoke one of the fifteen defects of the original, by its number; it is absent here.
"""

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol import run_thread
from squid_dagster.workflow import Workflow, path
from tests.journal.access import raw
from tests.runtime.linear_workflow import Order, line
from tests.runtime.runs import MakeSquid, drain
from tests.runtime.workers import facts_of


def spoil(storage: PostgresStorage, run_id: str, type_name: str = "run_started") -> None:
    """Corrupt a fact of a run, as only the owner of the database can."""
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER journal_entries_append_only")
        connection.execute(
            "UPDATE journal_entries SET data = json_build_object('workflow', 7) WHERE thread = %s AND type = %s",
            (run_thread(run_id), type_name),
        )
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")


@pytest.mark.parametrize("type_name", ["run_started", "runnables_planned", "runnable_applied"])
def test_defect_01_queue_poisoning_by_a_run_that_cannot_be_read(
    postgres_virtual: PostgresStorage, type_name: str
) -> None:
    # The original: one undecodable run thread makes every operation on its queue fail. Here, where what follows depends
    # on what a run did before and its thread has to be read, that run is stopped by a fact that says so, nothing is
    # decided without the lost entry, and the others go on.
    turning = Workflow("turning", payload=Order, entry="again")
    turning.step(name="again", max_visits=3)(lambda: 1)
    turning.route("again", to="again", when=path("amount") < 0)
    turning.route("again", to="last")
    turning.step(name="last")(lambda: 2)
    turning.route("last", to="complete")
    bad = Squid(postgres_virtual, turning).start("turning").run_id
    Squid(postgres_virtual, turning).execute_next()
    squid = Squid(postgres_virtual, [line(), turning])  # knows nothing of what the other did
    good = [squid.start("line").run_id for _ in range(3)]
    spoil(postgres_virtual, bad, type_name)
    assert squid.worker(until_idle=True).completed == 10, "what was claimed is done, and its outcome kept"
    assert [squid.inspect_run(run).status for run in good] == ["completed"] * 3
    snapshot = squid.inspect_run(bad)
    assert (snapshot.status, snapshot.terminal) == ("quarantined", False)
    assert len(facts_of(postgres_virtual, bad, "attempt_completed")) == 2
    assert facts_of(postgres_virtual, bad)[-1].type in ("entry_quarantined", "run_cataloged")
    squid.recover()
    assert squid.worker(until_idle=True).claimed == 0
    assert squid.inspect_run(bad).status == "quarantined"
    assert verify(postgres_virtual)[0].run_id == bad, (
        "and whoever verifies the journal is told of it, and of nothing else"
    )
    assert {finding.run_id for finding in verify(postgres_virtual)} == {bad}


@pytest.mark.usefixtures("spoilt")
def test_defect_06_checkpoints_make_false_anomalies(make_squid: MakeSquid, storage: Storage) -> None:
    # The original: each start adds an anomaly for every applied step of every finished run of the queue, and shows it
    # on every run. Here finished runs cost nothing and are no anomaly, and what is wrong with one run is shown on that
    # run only.
    squid = make_squid(line())
    runs = [squid.start("line").run_id for _ in range(10)]
    drain(squid)
    for run_id in runs:  # a checkpoint, and what comes after it
        squid.inspect_run(run_id)
        squid.start("line", run_id=run_id)
    squid.recover()
    assert all(squid.inspect_run(run_id).anomalies == () for run_id in runs)
    assert not squid.dispatch_agent().projection.anomalies
    # and one real anomaly
    again = facts_of(storage, runs[0], "run_terminal")[0].model_copy(update={"status": "failed"})
    storage.append(run_thread(runs[0]), [again])
    assert [len(squid.inspect_run(run_id).anomalies) for run_id in runs] == [1] + [0] * 9
    if isinstance(storage, PostgresStorage):
        assert verify(storage) == []


def test_defect_15_one_bad_fact_hides_every_run(postgres_virtual: PostgresStorage) -> None:
    # The original: a listing is all or nothing. Here a run that cannot be read is one line of it. What follows in it
    # needs none of its entries: it goes on, and those who verify the journal are told of the entry.
    squid = Squid(postgres_virtual, line())
    runs = [squid.start("line").run_id for _ in range(5)]
    spoil(postgres_virtual, runs[2])
    assert [row.run_id for row in squid.list_runs().runs] == list(reversed(runs))
    squid.worker(until_idle=True)
    listed = {row.run_id: row.status for row in squid.list_runs().runs}
    assert [listed[run] for run in runs if run != runs[2]] == ["completed"] * 4
    assert listed[runs[2]] == squid.inspect_run(runs[2]).status == "completed", "and it can be looked at"
    assert {finding.run_id for finding in verify(postgres_virtual)} == {runs[2]}
