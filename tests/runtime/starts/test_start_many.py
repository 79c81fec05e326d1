"""Starting many runs at once: each one as if it were alone, and all of them in few commits."""

from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol import dispatch_thread
from squid_dagster.protocol.errors import ConflictingCommand, InvalidArgument, InvalidPayload
from squid_dagster.workflow import Workflow
from tests.runtime.runs import MakeSquid, drain, facts, state_of, unit


class Order(BaseModel):
    n: int


def orders() -> Workflow:
    wf = Workflow("orders", payload=Order)

    @wf.step
    def ship(n: int) -> int:
        return n

    wf.route(ship, to="complete")
    return wf


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]


def test_receipts_come_in_the_order_of_the_payloads(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders())
    receipts = squid.start_many("orders", numbered(7), priority=2, queue="bulk", actor="ada", metadata={"batch": 1})
    assert [facts(squid, r.run_id, "run_started")[0].input["n"] for r in receipts] == list(range(7))
    drain(squid, "bulk")
    for n, receipt in enumerate(receipts):
        snapshot = receipt.snapshot
        assert (snapshot.status, snapshot.outputs, snapshot.priority) == ("completed", {"ship": n}, 2)
        (command,) = snapshot.command_history
        assert (command.actor, command.metadata) == ("ada", {"batch": 1})
        assert not unit(squid, receipt.run_id).anomalies


def test_no_payloads_start_nothing(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    assert squid.start_many("orders", []) == []
    assert squid.start_many("orders", [], idempotency_keys=[]) == []
    assert state_of(squid.journal) == []


def test_payloads_may_come_from_a_generator_and_more_than_fit_in_one_commit(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    receipts = squid.start_many("orders", (payload for payload in numbered(1001)))
    assert len({receipt.run_id for receipt in receipts}) == 1001
    scheduled = [e for e in squid.journal.read(dispatch_thread("default")) if e.fact.type == "attempt_scheduled"]
    assert len(scheduled) == 1001


@pytest.mark.parametrize("bad", [0, 3, 600])
def test_one_payload_that_does_not_fit_starts_none_of_them(make_squid: MakeSquid, bad: int) -> None:
    squid = make_squid(orders())
    payloads = numbered(601)
    payloads[bad] = {"n": "many"}
    with pytest.raises(InvalidPayload, match="n:"):
        squid.start_many("orders", payloads)
    with pytest.raises(InvalidPayload, match="n:"):
        squid.start_many("orders", payloads, idempotency_keys=[str(n) for n in range(601)])
    assert state_of(squid.journal) == []


def test_keys_make_each_start_happen_once(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    keys = ["a", "b", "c", "d"]
    first = squid.start_many("orders", numbered(2), idempotency_keys=keys[:2])
    again = squid.start_many("orders", numbered(4), idempotency_keys=keys)
    assert [r.run_id for r in again[:2]] == [r.run_id for r in first]
    assert [r.repeated for r in again] == [True, True, False, False]
    assert [r.idempotency_key for r in again] == keys
    assert squid.start("orders", {"n": 3}, idempotency_key="d").run_id == again[3].run_id, "one key, one run, anyhow"
    assert drain(squid) == 4


def test_a_key_that_comes_twice_in_a_batch_starts_one_run(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    receipts = squid.start_many("orders", [{"n": 1}, {"n": 2}, {"n": 1}], idempotency_keys=["a", "b", "a"])
    assert receipts[0].run_id == receipts[2].run_id
    assert [r.repeated for r in receipts] == [False, False, True]
    assert drain(squid) == 2


def test_a_key_that_comes_twice_with_different_payloads_is_refused(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    with pytest.raises(ConflictingCommand, match="'a'"):
        squid.start_many("orders", [{"n": 1}, {"n": 2}], idempotency_keys=["a", "a"])
    repeat = squid.start_many("orders", [{"n": 1}], idempotency_keys=["a"])
    assert repeat[0].repeated, "what came before the refusal was started, and its key says so"


def test_there_must_be_a_key_for_each_payload(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    with pytest.raises(InvalidArgument, match="3 idempotency keys for 2 runs"):
        squid.start_many("orders", numbered(2), idempotency_keys=["a", "b", "c"])
    with pytest.raises(InvalidArgument, match="idempotency_key"):
        squid.start_many("orders", numbered(2), idempotency_keys=["a", ""])
    assert state_of(squid.journal) == []
