"""Starting runs in one message: the time of the database counts all the same, and nothing is started twice."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import NamedTuple

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.postgres.dispatch import decisions
from squid_dagster.protocol import dispatch_thread
from squid_dagster.protocol.errors import Conflict, StorageRefused
from squid_dagster.protocol.facts import Fact
from squid_dagster.workflow import Workflow
from tests.facts import QUEUE, RUN, planned, queued, scheduled, started
from tests.journal.access import LossyProxy, all_entries, assert_views_agree_with_the_journal, facts_of, raw


@pytest.fixture
def general_ways(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each start that asked the database for the time first."""
    calls: list[int] = []
    usual = decisions.start_runs

    def counted(*arguments: object) -> None:
        calls.append(1)
        usual(*arguments)  # type: ignore[arg-type]  # handed on as they are

    monkeypatch.setattr(f"{PostgresDispatchStore.__module__}.start_runs", counted)
    return calls


@pytest.fixture
def squid(postgres: PostgresStorage) -> Squid:
    one = Workflow("one")

    @one.step
    def step() -> None:
        """Return nothing: only its facts matter."""

    return Squid(postgres, [one])


def test_once_the_time_is_known_a_start_is_one_message(squid: Squid, general_ways: list[int]) -> None:
    runs = [squid.start("one").run_id for _ in range(3)]
    assert len(general_ways) == 1, "the first one has to ask"
    assert [squid.inspect_run(run).status for run in runs] == ["running"] * 3
    assert_views_agree_with_the_journal(squid.journal)  # type: ignore[arg-type]  # it is one on Postgres


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(seconds=-1), timedelta(milliseconds=500)], ids=str)
def test_a_time_that_is_not_the_databases_is_never_written(
    squid: Squid, postgres: PostgresStorage, general_ways: list[int], off: timedelta
) -> None:
    # given a process that has the time wrong
    postgres._observed = (postgres.now() + off, monotonic())
    before = postgres.now()
    # when it starts a run
    run = squid.start("one").run_id
    # then the database's time was asked for after all, and is known from now on
    assert len(general_ways) == 1
    assert before <= postgres.read_run(run)[0].fact.occurred_at <= postgres.now()
    squid.start("one")
    assert len(general_ways) == 1


def test_a_time_that_was_told_long_ago_is_asked_for_again(
    squid: Squid, postgres: PostgresStorage, general_ways: list[int]
) -> None:
    postgres._observed = (postgres.now() - timedelta(hours=1), monotonic() - 3600)
    squid.start("one")
    assert len(general_ways) == 1


class NewRun(NamedTuple):
    """A run that writes these facts."""

    run_id: str
    planned: Sequence[Fact]

    def facts(self, now: datetime) -> Sequence[Fact]:
        return self.planned


def new(*facts: Fact, run: str = RUN) -> NewRun:
    return NewRun(run, facts)


def test_a_run_of_which_its_queue_knows_already_is_started_with_that(postgres_virtual: PostgresStorage) -> None:
    # given facts of a run on its queue, and none of its own: written thread by thread, and cut off
    postgres_virtual.append(dispatch_thread(QUEUE), [queued(), scheduled()])
    store = PostgresDispatchStore(postgres_virtual)
    # when it is started
    store.start_runs([new(started(), planned())])
    # then nothing of what was known is lost
    assert [claim.ref.run_id for claim in store.claim(QUEUE, "worker")] == [RUN]
    assert_views_agree_with_the_journal(postgres_virtual)


def test_a_run_that_exists_is_not_started_again(postgres_virtual: PostgresStorage) -> None:
    store = PostgresDispatchStore(postgres_virtual)
    store.start_runs([new(started())])
    before = postgres_virtual.cut()
    with pytest.raises(Conflict):
        store.start_runs([new(started()), new(started("run-2"), run="run-2")])
    assert postgres_virtual.cut() == before


def test_the_facts_of_a_new_run_may_speak_of_others(postgres_virtual: PostgresStorage) -> None:
    store = PostgresDispatchStore(postgres_virtual)
    store.start_runs([new(started(), queued(), planned(), scheduled())])
    store.start_runs([new(started("run-2"), planned(run=RUN), run="run-2")])
    assert_views_agree_with_the_journal(postgres_virtual)
    assert verify(postgres_virtual) == []


def test_a_start_whose_answer_was_lost_is_made_once(
    lossy_proxy: LossyProxy, behind_lossy_proxy: PostgresStorage, postgres_virtual: PostgresStorage
) -> None:
    store = PostgresDispatchStore(behind_lossy_proxy)
    behind_lossy_proxy.now()
    lossy_proxy.lose_answer_to("append_entries")
    at = store.start_runs([new(started(), queued(), planned(), scheduled())])
    assert lossy_proxy.lost == 1
    assert at == postgres_virtual.now()
    assert len(facts_of(all_entries(postgres_virtual))) == 4
    assert_views_agree_with_the_journal(postgres_virtual)


@pytest.mark.parametrize("name", ["NULL", "null", "a.b-c_d", "0"])
def test_any_name_of_a_run_or_a_queue_can_be_used(postgres: PostgresStorage, squid: Squid, name: str) -> None:
    squid.start("one")
    run = squid.start("one", run_id=name, queue=name).run_id
    assert squid.worker(name, until_idle=True).completed == 1
    assert squid.inspect_run(run).status == "completed"
    assert_views_agree_with_the_journal(postgres)


def test_a_hint_that_cannot_be_sent_does_not_make_a_start_look_undone(
    postgres: PostgresStorage, squid: Squid, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given a notifier whose hints Postgres refuses: a channel's name has at most 63 bytes
    monkeypatch.setattr(postgres, "channel", "x" * 100)
    # when a run is started
    run_id = squid.start("one").run_id
    # then it is started, once, and the log tells about the hint
    assert squid.inspect_run(run_id).status == "running"
    assert "cannot notify workers" in caplog.text
    assert len(PostgresDispatchStore(postgres).claim(QUEUE, "worker", limit=5)) == 1


def test_a_refused_start_with_a_hint_is_refused(
    postgres: PostgresStorage, squid: Squid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "channel", "x" * 100)
    with raw(postgres) as connection:
        connection.execute("ALTER TABLE journal_entries ADD CONSTRAINT nothing CHECK (type <> 'run_started')")
    with pytest.raises(StorageRefused, match="23514"):
        squid.start("one")
    assert squid.list_runs().runs == ()
