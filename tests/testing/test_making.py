"""`make_squid`: the same every time, on any storage, and never by two clocks."""

from datetime import UTC, datetime, timedelta

import pytest

from squid_dagster import Retry
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.testing import InjectedStorage, SquidFactory, VirtualSquid, execute_until_blocked, make_squid
from squid_dagster.workflow import MissingResource
from tests.testing.flows import Script, circle, review, scripted


def test_without_anything_it_makes_a_squid_on_an_empty_journal_by_a_clock_that_stands_still() -> None:
    app = make_squid(review())
    assert isinstance(app, VirtualSquid)
    assert isinstance(app, Squid)
    assert app.runtime.now() == app.clock.now() == datetime(2026, 1, 1, tzinfo=UTC)
    assert app.journal.cut() == 0


def test_run_ids_are_counted_and_leave_out_those_that_the_journal_holds(
    squid: SquidFactory, storage: Storage, clock: VirtualClock
) -> None:
    # given two who share a journal
    one, two = (squid(circle(), storage=storage, clock=clock) for _ in range(2))
    # when both start runs, one of them under an id that the other comes to next
    first = one.start("circle").run_id
    one.start("circle", run_id="run-3")
    others = [two.start("circle").run_id, two.start("circle").run_id]
    # then no squid starts a run of another
    assert [first, *others] == ["run-1", "run-2", "run-4"]


def test_retries_come_without_jitter() -> None:
    retry = Retry(max_attempts=2, initial=timedelta(minutes=10), jitter=1.0)
    app = make_squid(scripted(retry=retry), resources={"script": Script(ValueError("no"))})
    run_id = app.start("scripted").run_id
    assert execute_until_blocked(app, run_id).ended_at == app.clock.now() == datetime(2026, 1, 1, 0, 10, tzinfo=UTC)


def test_options_of_squid_win() -> None:
    app = make_squid(circle(), queue="slow", new_run_id=lambda: "mine")
    assert app.start("circle").run_id == "mine"
    assert app.inspect_run("mine").queue == "slow"


def test_what_squid_refuses_is_refused() -> None:
    with pytest.raises(MissingResource, match="script"):
        make_squid(scripted())


def test_a_storage_that_knows_its_clock_needs_no_other(postgres_virtual: PostgresStorage, clock: VirtualClock) -> None:
    for storage in (postgres_virtual, InjectedStorage(postgres_virtual)):
        with make_squid(storage=storage) as app:
            assert app.clock is clock


def test_a_storage_by_another_clock_is_refused_even_when_both_show_the_same_time() -> None:
    for clock in (VirtualClock(), VirtualClock(datetime(2027, 1, 1, tzinfo=UTC))):
        before = clock.now()
        with pytest.raises(InvalidArgument, match="does not go by this clock"):
            make_squid(storage=MemoryStorage(VirtualClock()), clock=clock)
        assert clock.now() == before


def test_a_storage_by_a_real_clock_is_refused(postgres: PostgresStorage) -> None:
    for storage in (MemoryStorage(), postgres):
        with pytest.raises(InvalidArgument, match="VirtualClock"):
            make_squid(storage=storage)


def test_the_fixture_makes_squids_that_share_one_time(squid: SquidFactory, squid_clock: VirtualClock) -> None:
    one, two = squid(circle()), squid(review(), storage=MemoryStorage(squid_clock))
    assert one.clock is two.clock is squid_clock
    assert one.journal is not two.journal
    assert squid(clock=(own := VirtualClock())).clock is own
