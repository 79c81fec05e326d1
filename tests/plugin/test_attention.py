"""The attention sensor: everything that needs a person is told once, whatever Dagster remembers."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin import AttentionItem
from squid_dagster.plugin.attention import cursor as attention_memory
from squid_dagster.plugin.attention import items
from squid_dagster.plugin.attention import sensor as attention
from squid_dagster.plugin.attention.cursor import Memory
from squid_dagster.plugin.attention.sensor import build_attention_sensor
from squid_dagster.plugin.resource import SquidResource
from tests import facts
from tests.plugin.workflows import claims, every, finish, give_up


@pytest.fixture
def squid(postgres_virtual: PostgresStorage) -> Iterator[Squid]:
    with Squid(postgres_virtual, every()) as made:
        yield made


class SensorTicks:
    """Ticks of a sensor with a hook: the items that the hook has received, and the cursor."""

    def __init__(self, squid: Squid) -> None:
        self.squid = squid
        self.cursor: str | None = None
        self.received: list[AttentionItem] = []
        self.hook_fails = False

    def receive(self, item: AttentionItem) -> None:
        if self.hook_fails:
            raise ConnectionError("https://hooks.example.com/services/s3cret")
        self.received.append(item)

    def tick(self) -> str:
        """Evaluate one tick; return its text."""
        sensor = build_attention_sensor(on_message=self.receive)
        with dg.DagsterInstance.ephemeral() as instance:
            resources = {"squid": SquidResource.for_testing(self.squid)}
            context = dg.build_sensor_context(instance=instance, cursor=self.cursor, resources=resources)
            result: Any = sensor(context)
        assert isinstance(result, dg.SensorResult)
        assert not result.run_requests
        assert result.skip_reason is not None
        self.cursor = result.cursor
        return str(result.skip_reason.skip_message)

    def new_items(self) -> list[tuple[str, str | None]]:
        """Evaluate one tick; return what is new by kind and run."""
        before = len(self.received)
        self.tick()
        return sorted((item.kind, item.run_id) for item in self.received[before:])


def anomaly(squid: Squid, run_id: str) -> None:
    """Write a fact of the run that the fold does not follow: it completes what no worker has claimed."""
    fact = facts.with_fields(facts.completed(run_id, "stop"), queue="default")
    squid.journal.append(fact.thread, [fact])


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_hook_that_fails_is_asked_again_and_its_message_is_not_shown(
    squid: Squid, caplog: pytest.LogCaptureFixture
) -> None:
    squid.start("halted", run_id="a")
    anomaly(squid, "a")
    ticks = SensorTicks(squid)
    ticks.hook_fails = True
    text = ticks.tick()
    assert text == "Nothing new. Open now: 1 waiting."
    assert "s3cret" not in str(ticks.cursor) + text + caplog.text
    ticks.hook_fails = False
    assert ticks.new_items() == [("anomaly", "a"), ("waiting", "a")]
    assert ticks.new_items() == []


@pytest.mark.parametrize(
    "cursor",
    ["", "nonsense", "[]", "null", '{"version": 9}', '{"version":1,"passes":{"waiting":7},"anchor":null,"history":1}',
     '{"version":1,"passes":{},"anchor":[0,"x",1],"history":1}', '{"version":1,"passes":{},"anchor":7,"history":1}',
     json.dumps({"version": 1, "passes": {"waiting": {"told": [], "met": [], "place": "x" * 500}}, "anchor": None,
                 "history": None})],
)  # fmt: skip
def test_a_cursor_that_cannot_be_used_is_no_memory(squid: Squid, cursor: str) -> None:
    squid.start("halted", run_id="a")
    ticks = SensorTicks(squid)
    ticks.cursor = cursor
    assert ticks.new_items() == [("waiting", "a")]
    assert ticks.new_items() == []


def test_a_cursor_of_another_journal_hides_no_anomaly(squid: Squid) -> None:
    squid.start("halted", run_id="a")
    anomaly(squid, "a")
    ticks = SensorTicks(squid)
    memory = Memory(anchor=items.AnomalyPosition(10_000, "squid:dispatch:default", 7), history=20_000)
    ticks.cursor = memory.write()
    assert ticks.new_items() == [("anomaly", "a"), ("waiting", "a")]
    assert ticks.new_items() == []


def test_while_the_database_cannot_be_reached_ticks_are_skipped_in_our_words() -> None:
    resource = SquidResource(url="postgresql://nobody@127.0.0.1:1/nowhere")
    context = dg.build_sensor_context(resources={"squid": resource}, cursor="as it was")
    skipped = build_attention_sensor()(context)
    assert isinstance(skipped, dg.SkipReason), "which leaves the cursor as it was"
    assert "cannot reach Postgres" in (skipped.skip_message or "")


# --- once each ------------------------------------------------------------------------------------------------------


def test_every_kind_is_told_once_with_what_can_be_done(squid: Squid, clock: VirtualClock) -> None:
    squid.start("claims", {"account": "acc-1", "amount": 7, "api_token": "hunter2"}, run_id="waits")
    finish(squid)
    squid.start("deadly", run_id="dead")
    give_up(squid, clock, "dead")
    squid.start("failing", run_id="spoilt")
    squid.journal.append("squid:run:spoilt", [facts.quarantined("spoilt")])
    anomaly(squid, "waits")
    ticks = SensorTicks(squid)
    text = ticks.tick()
    by_kind = {item.kind: item for item in ticks.received}
    assert {kind: item.run_id for kind, item in by_kind.items()} == {
        "waiting": "waits", "dead_letter": "dead", "quarantined": "spoilt", "anomaly": "waits",
    }  # fmt: skip
    waiting = by_kind["waiting"]
    assert (waiting.workflow, waiting.queue, waiting.step, waiting.since) == ("claims", "default", "review", facts.T0)
    assert any(call.startswith("squid.approve('waits'") for call in waiting.actions)
    assert "review" in waiting.summary
    assert any(call.startswith("squid.retry_attempt('dead'") for call in by_kind["dead_letter"].actions)
    assert by_kind["dead_letter"].step == "kill"
    assert "attempt_completed" in by_kind["anomaly"].summary
    assert text.startswith(
        "4 new. Open now: 1 waiting, 1 dead letter, 1 quarantined.\n- waiting: run waits of claims: "
    )
    assert "hunter2" not in text + str(ticks.received)
    assert ticks.tick() == "Nothing new. Open now: 1 waiting, 1 dead letter, 1 quarantined."


def test_a_run_is_held_once_its_definition_is_replaced(squid: Squid) -> None:
    squid.start("claims", {"account": "a", "amount": 1}, run_id="old")
    assert SensorTicks(squid).new_items() == []
    with Squid(squid.journal, [claims("2", with_error_route=True)]) as newer:
        ticks = SensorTicks(newer)
        assert ticks.new_items() == [("held", "old")]
        assert "version '1'" in ticks.received[0].summary
        assert ticks.new_items() == []


def test_what_waits_again_is_told_again(squid: Squid, clock: VirtualClock) -> None:
    ticks = SensorTicks(squid)
    first = squid.start("halted").run_id
    assert ticks.new_items() == [("waiting", first)]
    squid.resume(first)
    finish(squid)
    assert ticks.tick() == "Nothing new. Nothing is open."
    second = squid.start("halted").run_id
    assert ticks.new_items() == [("waiting", second)]
    dead = squid.start("deadly").run_id
    give_up(squid, clock, dead)
    assert ticks.new_items() == [("dead_letter", dead)]
    squid.retry_attempt(dead)
    assert ticks.new_items() == []
    assert squid.dispatch_agent().claim_next("somebody", lease=timedelta(minutes=1)) is not None
    clock.advance(timedelta(minutes=2))
    squid.recover()
    assert ticks.new_items() == [("dead_letter", dead)]


def test_after_a_wipe_what_is_open_is_told_once_more_and_old_anomalies_of_ended_runs_are_not(squid: Squid) -> None:
    for run_id in ("open", "ended"):
        squid.start("halted", run_id=run_id)
        anomaly(squid, run_id)
    ticks = SensorTicks(squid)
    everything = [("anomaly", "ended"), ("anomaly", "open"), ("waiting", "ended"), ("waiting", "open")]
    assert ticks.new_items() == everything
    squid.cancel("ended")
    ticks.cursor = None
    assert ticks.new_items() == [("anomaly", "open"), ("waiting", "open")]
    anomaly(squid, "ended")  # what comes after the end is new, by any writer
    assert ticks.new_items() == [("anomaly", "ended")]
    assert ticks.new_items() == []


def test_several_anomalies_of_one_run_are_one_message(squid: Squid) -> None:
    squid.start("halted", run_id="a")
    ticks = SensorTicks(squid)
    ticks.tick()
    for _ in range(3):
        anomaly(squid, "a")
    ticks.tick()
    (_, second) = ticks.received
    assert second.summary.startswith("3 entries have no effect: 3 × ")


# --- bounded --------------------------------------------------------------------------------------------------------


def test_many_are_told_over_several_ticks_and_each_once(squid: Squid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_ITEMS", 3)
    monkeypatch.setattr(items, "PAGE", 2)
    runs = {squid.start("halted").run_id for _ in range(7)}
    ticks = SensorTicks(squid)
    tick_count = 0
    while len(ticks.received) < 7:
        assert len(ticks.new_items()) <= 3
        tick_count += 1
        assert tick_count < 20
    late = squid.start("halted").run_id
    for _ in range(10):
        ticks.tick()
    assert sorted(item.run_id or "" for item in ticks.received) == sorted({*runs, late})


def test_a_full_tick_leaves_anomalies_for_the_next(squid: Squid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_ITEMS", 2)
    for run_id in ("a", "b", "c"):
        squid.start("halted", run_id=run_id)
    for run_id in ("a", "b", "c"):
        anomaly(squid, run_id)
    ticks = SensorTicks(squid)
    text = ticks.tick()
    assert text.startswith("2 new. 2 more are told later. Open now: 3 waiting.")
    assert ticks.new_items() == [("anomaly", "a"), ("waiting", "a")]
    assert ticks.new_items() == [("anomaly", "b"), ("anomaly", "c")]
    assert ticks.new_items() == []


def test_the_memory_is_no_larger_than_what_is_open_and_has_a_limit(
    squid: Squid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_memory, "MAX_OPEN", 4)
    monkeypatch.setattr(items, "PAGE", 2)
    runs = [squid.start("halted").run_id for _ in range(6)]
    ticks = SensorTicks(squid)
    for _ in range(8):
        ticks.tick()
    assert [item.run_id for item in ticks.received] == runs[:1:-1]  # the newest four, newest first
    for run_id in runs:
        squid.cancel(run_id)
    for _ in range(4):
        ticks.tick()
    assert Memory.read(ticks.cursor).passes["waiting"].reported == set()


# --- as Dagster sees it ---------------------------------------------------------------------------------------------


def test_the_sensor_is_on_launches_nothing_and_loads_without_a_job() -> None:
    sensor = build_attention_sensor(minimum_interval_seconds=60)
    assert (sensor.name, sensor.minimum_interval_seconds) == ("squid_attention_sensor", 60)
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    dg.Definitions.validate_loadable(dg.Definitions(sensors=[sensor], resources={"squid": SquidResource()}))


def test_without_a_hook_the_tick_tells_it_all(squid: Squid) -> None:
    squid.start("halted", run_id="a")
    context = dg.build_sensor_context(resources={"squid": SquidResource.for_testing(squid)})
    data = build_attention_sensor().evaluate_tick(context)
    assert data.skip_message is not None
    assert data.skip_message.startswith("1 new. Open now: 1 waiting.\n- waiting: run a of halted: ")
    assert data.cursor is not None
