"""Outcomes that meet a crash or another outcome: none is lost, and one counts."""

from collections.abc import Callable

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.errors import (
    InvalidTransition,
)
from squid_dagster.testing import Crashed, InjectedStorage, Plan
from tests.runtime.external.orders import done, orders, started, waiting
from tests.runtime.runs import MakeSquid, applied_steps, drain, facts


@pytest.mark.parametrize(
    "plan_of",
    [lambda at: Plan(crash_before=at), lambda at: Plan(crash_after=at)],
    ids=["right before", "right after"],
)
@pytest.mark.parametrize("repeated", [True, False], ids=["the signal comes again", "recovery comes"])
def test_a_crash_at_any_append_of_an_outcome_loses_and_doubles_nothing(
    make_squid: MakeSquid, storage: Storage, plan_of: Callable[[int], Plan], repeated: bool
) -> None:
    squid = make_squid(orders())
    crashes = 0
    while True:
        run_id, key = started(squid)
        injected = InjectedStorage(storage, plan_of(crashes + 1))
        try:
            Squid(injected, orders()).apply_signal(done(run_id, key))
        except Crashed:
            crashes += 1
        else:
            break
        if repeated:
            squid.apply_signal(done(run_id, key))
        squid.recover()
        if waiting(squid):  # nothing was written before the crash: the other system still has the outcome
            squid.apply_signal(done(run_id, key))
        drain(squid)
        assert squid.inspect_run(run_id).status == "completed"
        assert len(facts(squid, run_id, "attempt_completed")) == 3
        assert applied_steps(squid, run_id) == ["load:1", "train:1", "publish:1"]
        if repeated:
            assert squid.apply_signal(done(run_id, key)).repeated
    assert crashes == (1 if storage.atomic_across_threads else 3)


def test_of_two_outcomes_at_once_one_counts_and_the_other_is_told(make_squid: MakeSquid, storage: Storage) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    other = done(run_id, key, idempotency_key="dagster:2", result={"model": "other"})
    injected = InjectedStorage(storage, Plan(meanwhile={1: lambda: squid.apply_signal(other)}))
    with pytest.raises(InvalidTransition, match="first one stands"):
        Squid(injected, orders()).apply_signal(done(run_id, key))
    drain(squid)
    assert squid.inspect_run(run_id).outputs["publish"] == "other"
