"""Starting a run: what is checked before anything is written, and a key that starts it once, for ever."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol import run_thread
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    InvalidArgument,
    InvalidFact,
    InvalidPayload,
    InvalidThread,
    NotFound,
    SquidError,
)
from squid_dagster.workflow import Manual, Workflow, path
from tests.runtime.runs import MakeSquid, drain, facts, finish, state_of


class Order(BaseModel):
    order_id: str
    amount: int = 1


def orders(version: str | None = None, payload: type[BaseModel] = Order, **options: Any) -> Workflow:
    wf = Workflow("orders", payload=payload, version=version, **options)
    wf.step(name="ship")(lambda: "shipped")
    wf.route("ship", to="complete")
    return wf


PAYLOAD = {"order_id": "o-1"}


DEEP: dict[str, Any] = {}
for _ in range(900):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"payload": {"order_id": 7}}, InvalidPayload, "order_id"),
        ({"payload": {}}, InvalidPayload, "order_id"),
        ({"payload": None}, InvalidPayload, "order_id"),
        ({"payload": [1]}, InvalidPayload, "list"),
        ({"payload": {"order_id": "o", "amount": object()}}, InvalidPayload, "not JSON"),
        ({"payload": {"order_id": "o", "amount": float("nan")}}, InvalidPayload, "amount"),
        ({"payload": {"order_id": "\ud800"}}, InvalidPayload, "cannot be written as JSON"),
        ({"workflow": "nothing"}, NotFound, "'nothing'.*registered: orders"),
        ({"version": "9"}, NotFound, "'9'"),
        ({"trigger": "nightly"}, InvalidArgument, "'nightly'.*manual"),
        ({"queue": "no such:queue"}, InvalidThread, "no such:queue"),
        ({"run_id": "a:b"}, InvalidThread, "a:b"),
        ({"run_id": ""}, InvalidThread, "run id"),
        ({"priority": 11}, InvalidFact, "priority"),
        ({"priority": 1.5}, InvalidArgument, "priority"),
        ({"actor": 7}, InvalidArgument, "actor"),
        ({"actor": ""}, InvalidFact, "actor"),
        ({"comment": ""}, InvalidFact, "comment"),
        ({"metadata": [1]}, InvalidArgument, "metadata"),
        ({"metadata": {"when": datetime(2026, 1, 1, tzinfo=UTC)}}, InvalidArgument, "metadata"),
        ({"idempotency_key": ""}, InvalidArgument, "idempotency_key"),
        ({"idempotency_key": "k\ud800"}, InvalidArgument, "idempotency_key"),
        ({"metadata": {"deep": DEEP}}, InvalidArgument, "metadata must be JSON that is not nested too deep"),
        ({"metadata": {"half": "\ud800"}}, InvalidArgument, "metadata must be a text in UTF-8"),
        ({"idempotency_key": "k" * 2000}, InvalidFact, "idempotency_key"),
        ({"idempotency_key": "k", "run_id": "r"}, InvalidArgument, "not both"),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    make_squid: MakeSquid, arguments: dict[str, Any], error: type[SquidError], named: str
) -> None:
    squid = make_squid(orders("1"))
    with pytest.raises(error, match=named):
        squid.start(**{"workflow": "orders", "payload": PAYLOAD, **arguments})
    assert state_of(squid.journal) == []


def test_a_refused_payload_shows_no_values(make_squid: MakeSquid) -> None:
    with pytest.raises(InvalidPayload) as refused:
        make_squid(orders()).start("orders", {"order_id": {"secret": "hunter2"}})
    assert "hunter2" not in str(refused.value)


def test_the_payload_is_stored_whole_and_shown_without_secrets(make_squid: MakeSquid) -> None:
    class Login(BaseModel):
        user: str
        password: str

    squid = make_squid(orders(payload=Login))
    receipt = squid.start("orders", {"user": "ada", "password": "hunter2"})
    assert facts(squid, receipt.run_id, "run_started")[0].input["password"] == "hunter2"
    snapshot = squid.inspect_run(receipt.run_id, include_history=True)
    assert snapshot.input == {"user": "ada", "password": "[REDACTED]"}
    assert "hunter2" not in repr(snapshot)
    assert "hunter2" not in repr(snapshot.to_dict())


def test_a_receipt_says_which_run_and_shows_it(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders())
    receipt = squid.start("orders", PAYLOAD, idempotency_key="k", actor="ada")
    assert (receipt.signal_type, receipt.idempotency_key) == ("start_run", "k")
    assert (receipt.received_at, receipt.repeated) == (clock.now(), False)
    assert receipt.snapshot.status == "running"
    drain(squid)
    assert receipt.snapshot.status == "completed"


class Aliased(BaseModel):
    order_id: str = Field(alias="orderId")


class Spelled(BaseModel):
    order_id: str = Field(serialization_alias="orderId")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    order_id: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def short(self) -> str:
        return self.order_id[:1]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime


AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (Order(order_id="o"), {"order_id": "o", "amount": 1}),
        (Aliased(orderId="o"), {"order_id": "o"}),
        (Spelled(order_id="o"), {"order_id": "o"}),
        (Computed(order_id="oslo"), {"order_id": "oslo", "short": "o"}),
        (Strict(at=AT), {"at": "2026-01-01T00:00:00Z"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_of_the_contract_is_accepted_as_it_is_and_can_be_replayed(
    make_squid: MakeSquid, payload: BaseModel, expected: dict[str, Any]
) -> None:
    squid = make_squid(orders(payload=type(payload)))
    first = squid.start("orders", payload, idempotency_key="k")
    assert facts(squid, first.run_id, "run_started")[0].input == expected
    assert squid.start("orders", payload, idempotency_key="k").run_id == first.run_id
    again = squid.replay(first.run_id)
    assert facts(squid, again.run_id, "run_started")[0].input == expected


def test_a_mapping_may_hold_what_only_becomes_json(make_squid: MakeSquid) -> None:
    squid = make_squid(orders(payload=Strict))
    run_id = squid.start("orders", {"at": AT}).run_id
    assert facts(squid, run_id, "run_started")[0].input == {"at": "2026-01-01T00:00:00Z"}


# --- idempotency keys -----------------------------------------------------------------------------------------------


def test_the_same_key_and_payload_give_the_first_receipt_whenever_they_are_used(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(orders())
    first = squid.start("orders", PAYLOAD, idempotency_key="k", actor="ada")
    clock.advance(timedelta(days=1))
    written = state_of(squid.journal)
    again = squid.start("orders", PAYLOAD, idempotency_key="k", actor="bob")
    assert (again.run_id, again.received_at, again.repeated) == (first.run_id, first.received_at, True)
    assert state_of(squid.journal) == written
    finish(squid, clock, first.run_id)
    clock.advance(timedelta(days=999))
    late = squid.start("orders", PAYLOAD, idempotency_key="k")
    assert (late.run_id, late.received_at, late.repeated) == (first.run_id, first.received_at, True)
    assert late.snapshot.status == "completed"
    assert squid.execute_next() is None


@pytest.mark.parametrize("other", [{"order_id": "o-2"}, {"order_id": "o-1", "amount": 1}, {"order_id": "o-1", "x": 1}])
def test_the_same_key_with_another_payload_is_refused(make_squid: MakeSquid, other: dict[str, Any]) -> None:
    squid = make_squid(orders())
    first = squid.start("orders", PAYLOAD, idempotency_key="k")
    written = state_of(squid.journal)
    with pytest.raises(ConflictingCommand, match=f"'k'.*{first.run_id}"):
        squid.start("orders", other, idempotency_key="k")
    assert state_of(squid.journal) == written


def test_a_flag_is_not_the_number_one_but_one_is_1_point_0(make_squid: MakeSquid) -> None:
    class Free(BaseModel):
        value: Any

    squid = make_squid(orders(payload=Free))
    squid.start("orders", {"value": 1}, idempotency_key="k")
    assert squid.start("orders", {"value": 1.0}, idempotency_key="k").repeated
    with pytest.raises(ConflictingCommand):
        squid.start("orders", {"value": True}, idempotency_key="k")


def test_a_payload_that_no_contract_accepts_is_refused_on_a_used_key_too(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    squid.start("orders", PAYLOAD, idempotency_key="k")
    for bad in ({"order_id": 5}, {"order_id": "o", "amount": float("inf")}):
        with pytest.raises(ConflictingCommand):
            squid.start("orders", bad, idempotency_key="k")


def test_keys_belong_to_a_workflow_and_a_trigger(make_squid: MakeSquid) -> None:
    def workflow(name: str) -> Workflow:
        wf = Workflow(name, triggers=[Manual("web"), Manual("desk")])
        wf.step(name="go")(lambda: None)
        return wf

    squid = make_squid([workflow("a"), workflow("b")])
    runs = {
        squid.start(name, trigger=trigger, idempotency_key="k").run_id
        for name in ("a", "b")
        for trigger in ("web", "desk")
    }
    assert len(runs) == 4
    assert squid.start("a", idempotency_key="k").run_id == squid.start("a", trigger="web", idempotency_key="k").run_id


def changed() -> Workflow:
    class Other(BaseModel):
        reference: int

    wf = Workflow("orders", payload=Other, version="2")
    wf.step(name="begin")(lambda: 1)
    wf.step(name="ship")(lambda: "shipped")
    wf.route("begin", to="ship", when=path("begin") > 0)
    wf.route("begin", to="fail")
    wf.route("ship", to="complete")
    return wf


def test_a_key_is_answered_after_the_definition_changed_even_if_it_would_refuse_the_payload_now(
    make_squid: MakeSquid,
) -> None:
    first = make_squid(orders("1")).start("orders", PAYLOAD, idempotency_key="k")
    newer = make_squid(changed())
    again = newer.start("orders", PAYLOAD, idempotency_key="k")
    assert (again.run_id, again.received_at, again.repeated) == (first.run_id, first.received_at, True)
    with pytest.raises(ConflictingCommand):
        newer.start("orders", {"reference": 4}, idempotency_key="k")
    with pytest.raises(InvalidPayload):
        newer.start("orders", PAYLOAD, idempotency_key="another")
    (batched,) = newer.start_many("orders", [PAYLOAD], idempotency_keys=["k"])
    assert batched.run_id == first.run_id


def test_starts_without_a_key_are_all_new(make_squid: MakeSquid) -> None:
    squid = make_squid(orders())
    assert len({squid.start("orders", PAYLOAD).run_id for _ in range(5)}) == 5


def test_a_run_id_of_ones_own_starts_the_run_once(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(orders())
    first = squid.start("orders", PAYLOAD, run_id="order-1")
    assert first.run_id == "order-1"
    finish(squid, clock, "order-1")
    again = squid.start("orders", PAYLOAD, run_id="order-1")
    assert (again.repeated, again.received_at) == (True, first.received_at)
    with pytest.raises(ConflictingCommand, match="order-1"):
        squid.start("orders", {"order_id": "o-2"}, run_id="order-1")


def test_a_run_id_of_another_kind_of_run_is_not_taken_over(make_squid: MakeSquid) -> None:
    squid = make_squid(orders(), new_run_id=iter(["a", "b"]).__next__)
    squid.start("orders", PAYLOAD)
    squid.replay("a")
    with pytest.raises(ConflictingCommand, match="'b'"):
        squid.start("orders", PAYLOAD, run_id="b")


def test_a_repeat_finds_its_run_on_whatever_queue_it_is(make_squid: MakeSquid) -> None:
    squid = make_squid(orders(), queue="usual")
    first = squid.start("orders", PAYLOAD, idempotency_key="k", queue="special")
    assert squid.start("orders", PAYLOAD, idempotency_key="k").run_id == first.run_id
    assert {entry.thread for entry in squid.journal.read_run(first.run_id)} == {
        run_thread(first.run_id),
        "squid:dispatch:special",
    }


def test_workflows_are_named_by_object_or_name_and_triggers_by_name(make_squid: MakeSquid) -> None:
    wf = orders("1", triggers=[Manual("web")])
    squid = make_squid(wf)
    for ref in (wf, "orders", wf.freeze()):
        assert squid.start(ref, PAYLOAD).snapshot.trigger == "web"


def test_an_unfinished_start_is_finished_by_its_repeat(make_squid: MakeSquid, clock: VirtualClock) -> None:
    # Where a commit cannot span threads, a start may be interrupted; elsewhere this test changes nothing.
    squid = make_squid(orders())
    first = squid.start("orders", PAYLOAD, idempotency_key="k")
    if squid.journal.atomic_across_threads:
        return
    squid.journal.delete_thread("squid:dispatch:default")
    fresh = make_squid(orders())
    assert fresh.execute_next() is None
    assert fresh.start("orders", PAYLOAD, idempotency_key="k").repeated
    assert finish(fresh, clock, first.run_id).status == "completed"


@pytest.mark.parametrize("options", [{}, {"actor": "ada"}], ids=["plain", "by an actor"])
def test_a_receipt_names_its_signal_by_a_plain_text(make_squid: MakeSquid, options: dict[str, Any]) -> None:
    workflow = Workflow("receipts")

    @workflow.step
    def step() -> None:
        """Return nothing: only the start matters."""

    squid = make_squid(workflow)
    for _ in range(2):  # the second one by what was learnt from the first
        assert type(squid.start("receipts", **options).signal_type) is str
