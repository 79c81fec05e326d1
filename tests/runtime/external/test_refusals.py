"""Signals about external steps that are refused, with nothing written."""

from typing import Any

import pytest

from squid_dagster import Signal
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    IncompatibleDefinition,
    InvalidArgument,
    InvalidTransition,
    NotFound,
)
from squid_dagster.workflow import Retry
from tests.runtime.external.orders import MINUTE, done, failed, orders, started, waiting
from tests.runtime.runs import MakeSquid, facts


def test_an_outcome_of_an_unknown_run_or_attempt_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, _ = started(squid)
    with pytest.raises(NotFound, match="'nowhere'"):
        squid.apply_signal(done("nowhere", "nowhere:train:1:1"))
    with pytest.raises(NotFound, match="train:9:1"):
        squid.apply_signal(done(run_id, f"{run_id}:train:9:1"))


def test_a_step_of_a_worker_takes_no_signal(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id = squid.start("orders").run_id
    with pytest.raises(InvalidTransition, match=r"load:1:1.*worker"):
        squid.apply_signal(done(run_id, f"{run_id}:load:1:1"))
    assert squid.explain_run(run_id).step == "load"


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"succeeded": "yes"}, "succeeded"),
        ({"succeeded": None}, "succeeded"),
        ({"error": "text"}, "error"),
        ({"final": 1}, "final"),
        ({"token": "x"}, "token"),
        ({"runnable_key": 7}, "runnable_key"),
    ],
)
def test_a_payload_that_does_not_fit_names_the_field(
    make_squid: MakeSquid, payload: dict[str, Any], named: str
) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    before = len(facts(squid, run_id))
    with pytest.raises(InvalidArgument, match=named):
        squid.apply_signal(done(run_id, key, **payload))
    assert len(facts(squid, run_id)) == before


def test_a_start_without_an_id_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    content: dict[str, Any] = {"run_id": run_id, "runnable_key": key, "launcher": "here"}
    with pytest.raises(InvalidArgument, match="external_run_id"):
        squid.apply_signal(Signal(type="external_started", payload=content))


def test_an_outcome_after_the_runs_end_is_refused_and_changes_nothing(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    squid.cancel(run_id)
    before = len(facts(squid, run_id))
    with pytest.raises(InvalidTransition, match="cancelled"):
        squid.apply_signal(done(run_id, key))
    assert len(facts(squid, run_id)) == before
    assert waiting(squid) == []


def test_a_second_outcome_under_another_key_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    squid.apply_signal(done(run_id, key))
    with pytest.raises(InvalidTransition, match="first one stands"):
        squid.apply_signal(done(run_id, key, idempotency_key="dagster:2"))
    with pytest.raises(InvalidTransition, match="first one stands"):
        squid.apply_signal(done(run_id, key, idempotency_key=None))
    with pytest.raises(ConflictingCommand):
        squid.apply_signal(done(run_id, key, result={"model": "other"}))
    assert [fact.runnable_key for fact in facts(squid, run_id, "attempt_completed")] == [f"{run_id}:load:1:1", key]


def test_an_outcome_of_a_run_whose_definition_is_gone_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    run_id, key = started(squid)
    other = make_squid([])
    with pytest.raises(IncompatibleDefinition):
        other.apply_signal(done(run_id, key))
    assert waiting(other) == []
    assert waiting(squid) == [key]


def test_nobody_can_have_begun_a_retry_that_is_not_due(make_squid: MakeSquid) -> None:
    squid = make_squid(orders(retry=Retry(max_attempts=2, initial=MINUTE)))
    run_id, key = started(squid)
    squid.apply_signal(failed(run_id, key))
    with pytest.raises(InvalidTransition, match="not due before"):
        squid.apply_signal(done(run_id, f"{run_id}:train:1:2", idempotency_key="dagster:2"))
