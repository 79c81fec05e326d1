"""A journal that was exported and imported is equal in everything, and work goes on in it."""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import given, settings

from squid_dagster.api import Squid
from squid_dagster.backlog.postgres.rebuild import differences, rebuild_within
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, VirtualClock, verify
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.drift import drift
from squid_dagster.journal.transfer import transfer as transfer_module
from squid_dagster.journal.transfer.transfer import Transferred, export_journal, import_journal
from squid_dagster.protocol import Fact, RunUnit
from tests.cli.journal.exports import Maker, busy, dump, exported, imported
from tests.cli.workflows import hello, nap, orders
from tests.facts import T0, signal, started
from tests.histories import histories
from tests.journal.access import WITHOUT_SHRINKING, all_entries, put, wait_for_a_lock

# --- what is equal --------------------------------------------------------------------------------------------------


@settings(max_examples=4, phases=WITHOUT_SHRINKING)
@given(history=histories(40))
def test_any_journal_is_the_same_in_its_new_place(make: Maker, history: list[Fact]) -> None:
    clock = VirtualClock(T0 + timedelta(seconds=300))
    source, target = make(clock=clock), make(clock=clock)
    for number in range(0, len(history), 7):
        put(source, *history[number : number + 7])
    sent = exported(source)

    done = imported(target, sent)

    assert done.entries == len(history)
    assert dump(target) == dump(source)
    assert exported(target) == sent
    assert verify(target) == []
    for run_id in {row[0] for row in source.rows("SELECT run_id FROM {schema}.runs")}:
        assert RunUnit.fold(target.read_run(run_id)) == RunUnit.fold(source.read_run(run_id))
    claims = [
        [
            (one.ref.runnable_key, one.attempt.fencing_token)
            for one in PostgresDispatchStore(storage).claim("default", "w", limit=9)
        ]
        for storage in (source, target)
    ]
    assert claims[0] == claims[1]


def test_work_goes_on_where_the_journal_has_come_to(make: Maker) -> None:
    source, target = busy(make()), make()
    before = dump(source)
    sent = exported(source)
    assert imported(target, sent).cut == source.cut()
    # everything is there, also unreadable entries, to the last blank
    assert dump(target) == before == dump(source)
    assert exported(target) == sent
    assert (differences(target), [finding.kind for finding in verify(target)]) == ([], ["corrupt_entry"])
    squids = [Squid(storage, [hello, orders, nap]) for storage in (source, target)]
    assert squids[0].list_runs() == squids[1].list_runs()
    assert drift(target) == []
    # and new facts come after the old ones
    squid = squids[1]
    assert squid.pause_queue("slow", idempotency_key="once") is False  # the first answer is known here, too
    run_id = squid.start("hello", {"name": "new"}).run_id
    assert target.read_run(run_id)[0].position > source.cut()
    assert squid.worker(until_idle=True).completed == 2
    waiting = squid.list_runs(status="paused").runs[0].run_id
    squid.approve(waiting, actor="ada")
    squid.worker(until_idle=True)
    assert squid.inspect_run(waiting).status == "completed"
    assert squid.backlog.claim("ada") is None
    assert (differences(target), [finding.kind for finding in verify(target)]) == ([], ["corrupt_entry"])


def test_who_writes_while_a_journal_comes_in_waits_and_comes_after_it(make: Maker, lines: list[bytes]) -> None:
    target = make()
    with ThreadPoolExecutor(1) as pool:
        writing: list[Future[int]] = []

        def meanwhile(storage: PostgresStorage, connection: PgConnection) -> None:
            writing.append(pool.submit(storage.append, "squid:run:odd", [signal("odd", at=99)]))
            wait_for_a_lock(storage)
            rebuild_within(storage, connection)

        done = import_journal(target, lines, also=meanwhile)
        assert writing[0].result(30) == 4
    last = all_entries(target)[-1]
    assert (last.fact, last.position > done.cut) == (signal("odd", at=99), True)
    assert [finding.kind for finding in verify(target)] == ["corrupt_entry"]


def test_facts_that_come_in_meanwhile_are_not_in_the_export(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "_PAGE", 3)
    source, target = make(), make()
    put(source, *(signal("run-1", at=n) for n in range(10)))
    sent: list[bytes] = []

    def write(line: bytes) -> None:
        put(source, signal("run-1"), started(f"late-{len(sent)}"))
        sent.append(line)

    done = export_journal(source, write)
    assert (done.entries, done.threads, done.commits) == (10, 1, 1)
    assert imported(target, sent) == done
    assert [entry.fact for entry in all_entries(target)] == [signal("run-1", at=n) for n in range(10)]


def test_pages_end_early_where_facts_are_large(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make()
    put(source, *(signal(payload={"x": "y" * 5_000}) for _ in range(20)))
    whole = exported(source)
    monkeypatch.setattr(transfer_module, "_PAGE_BYTES", 12_000)
    assert exported(source) == whole


def test_an_empty_journal_can_be_moved_too(make: Maker) -> None:
    source, target = make(), make()
    assert imported(target, exported(source)) == Transferred(0, 0, 0, 0, json.loads(exported(source)[-1])["digest"])
    put(target, signal())
    assert all_entries(target)[0].position == 2**20 + 1
