"""Dispatch, in every version on every storage: attempts that were lost before are claimed one at a time, on request."""

from typing import Any

import pytest

from squid_dagster.journal.contract.dispatch_store import Interrupted, Settlement, Suspects
from squid_dagster.protocol import Fact
from squid_dagster.protocol.folds.attempt import Suspicion
from tests.facts import claimed, key, t
from tests.journal.access import all_entries, facts_of
from tests.journal.dispatch_fixture import DispatchFixture, claim, keys, statuses, work

NONE, LOST, LAST = Suspicion


def lose(dispatch: DispatchFixture, *runs: str, most: int = 5) -> None:
    """Put attempts whose first delivery was lost."""
    dispatch.put(*(work(run, max_deliveries=most) for run in runs), *(claimed(run, at=0, lease=10) for run in runs))


def newer(run: str, **fields: Any) -> Fact:
    """Return an attempt that comes after those that were lost."""
    return work(run, at=60, visible_at=t(60), **fields)


def alone_facts(dispatch: DispatchFixture) -> list[str]:
    return [f.run_id for f in facts_of(all_entries(dispatch.storage)) if f.type == "attempt_claimed" and f.alone]


def test_without_a_rule_suspects_are_claimed_like_any_other(dispatch: DispatchFixture) -> None:
    lose(dispatch, "lost-1", "lost-2")
    dispatch.wait(60)
    dispatch.put(newer("new"))
    assert sorted(keys(claim(dispatch, limit=9))) == ["lost-1", "lost-2", "new"]


def test_a_suspect_that_comes_first_is_taken_alone(dispatch: DispatchFixture) -> None:
    lose(dispatch, "lost-1", "lost-2")
    dispatch.wait(60)
    dispatch.put(newer("new"))
    rule = Suspects(LAST, alone=True)
    for run, taken in (("lost-1", LOST), ("lost-2", LOST), ("new", NONE)):
        assert keys(claim(dispatch, limit=9, suspects=rule)) == [run]
        assert (rule.taken, rule.passed_over) == (taken, NONE)
    assert alone_facts(dispatch) == []  # none was on its last delivery


def test_a_claim_ends_before_the_first_suspect_and_reports_it(dispatch: DispatchFixture) -> None:
    dispatch.put(work("new-1", priority=5), work("new-2"))
    lose(dispatch, "lost-1")
    dispatch.wait(60)
    dispatch.put(newer("new-3"))
    rule = Suspects(LAST)
    assert keys(claim(dispatch, limit=9, suspects=rule)) == ["new-1", "new-2"]
    assert rule.passed_over is LOST
    assert keys(claim(dispatch, limit=9, suspects=rule)) == ["lost-1"]
    assert keys(claim(dispatch, limit=9, suspects=rule)) == ["new-3"]
    assert rule.passed_over is NONE


@pytest.mark.parametrize("priority", [0, 5], ids=["of the same priority", "of a higher priority"])
@pytest.mark.parametrize("most", [5, 2], ids=["lost", "last"])
def test_a_suspect_is_not_taken_along_with_an_attempt_before_it(
    dispatch: DispatchFixture, priority: int, most: int
) -> None:
    dispatch.put(work("new", priority=priority))
    lose(dispatch, "lost", most=most)
    dispatch.wait(60)
    rule = Suspects(LAST, alone=True)
    assert keys(claim(dispatch, limit=9, suspects=rule)) == ["new"]
    assert rule.passed_over is (LOST if most == 5 else LAST)
    assert alone_facts(dispatch) == []


def test_a_suspect_takes_nothing_of_a_lower_priority_along(dispatch: DispatchFixture) -> None:
    lose(dispatch, "lost")
    dispatch.put(work("lazy", priority=-1))
    dispatch.wait(60)
    assert keys(claim(dispatch, limit=9, suspects=Suspects(LAST))) == ["lost"]
    assert keys(claim(dispatch, limit=9, suspects=Suspects(LAST))) == ["lazy"]


def test_a_first_delivery_is_no_suspect_although_it_is_the_last_one(dispatch: DispatchFixture) -> None:
    dispatch.put(work("once", max_deliveries=1), work("once-too", max_deliveries=1))
    rule = Suspects(NONE)
    assert keys(claim(dispatch, limit=9, suspects=rule)) == ["once", "once-too"]
    assert rule.passed_over is NONE


@pytest.mark.parametrize(("worst", "most"), [(NONE, 5), (NONE, 2), (LOST, 2)])
def test_suspects_that_may_not_be_taken_are_passed_over(dispatch: DispatchFixture, worst: Suspicion, most: int) -> None:
    # given more of them than a claim could take, and one behind them
    lose(dispatch, *(f"lost-{n}" for n in range(12)), most=most)
    dispatch.wait(60)
    dispatch.put(newer("new-1"), newer("new-2"))
    rule = Suspects(worst)
    assert keys(claim(dispatch, limit=2, suspects=rule)) == ["new-1", "new-2"]
    assert rule.passed_over is (LOST if most == 5 else LAST)
    assert claim(dispatch, limit=2, suspects=rule) == []
    assert rule.passed_over is (LOST if most == 5 else LAST)


def test_a_last_delivery_is_recorded_as_alone_where_that_is_promised(dispatch: DispatchFixture) -> None:
    lose(dispatch, "lost-1", "lost-2", most=2)
    dispatch.wait(60)
    assert keys(claim(dispatch, limit=9, suspects=Suspects(LAST, alone=True))) == ["lost-1"]
    assert keys(claim(dispatch, limit=9, suspects=Suspects(LAST))) == ["lost-2"]
    assert alone_facts(dispatch) == ["lost-1"]


def test_what_is_spent_is_parked_whatever_the_rule(dispatch: DispatchFixture) -> None:
    lose(dispatch, "spent-1", "spent-2", most=1)
    lose(dispatch, "lost")
    dispatch.wait(60)
    dispatch.put(newer("new"))
    rule = Suspects(NONE)
    assert keys(claim(dispatch, limit=9, suspects=rule)) == ["new"]
    assert rule.passed_over is LOST
    assert [statuses(dispatch, run)[key(run)] for run in ("spent-1", "spent-2")] == ["dead_lettered"] * 2


def test_what_a_worker_gave_back_is_no_suspect_unless_the_next_delivery_is_its_last(dispatch: DispatchFixture) -> None:
    dispatch.put(work("told", max_deliveries=3), work("last", max_deliveries=2))
    held = claim(dispatch, limit=2)
    dispatch.store.settle([Settlement(one.ref, Interrupted("the worker stopped")) for one in held])
    rule = Suspects(LOST)
    assert keys(claim(dispatch, limit=9, suspects=rule)) == ["told"]
    assert rule.passed_over is LAST
    rule = Suspects(LAST, alone=True)
    assert keys(claim(dispatch, limit=9, suspects=rule)) == ["last"]
    assert (rule.taken, alone_facts(dispatch)) == (LAST, ["last"])
