"""The recovery job: closes what is open, tells what it did, and fails in our words."""

from collections.abc import Iterator
from dataclasses import fields

import dagster as dg
import pytest

from squid_dagster import Receipt, RecoveryReport
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin.recovery import COUNTS, build_recovery_job, build_recovery_schedule, recovery_metadata
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.runtime.recovery import recovery
from tests.facts import T0
from tests.plugin.workflows import claims, count_facts, every, failure, launch, metadata
from tests.recovery.damage import LEASE, settle_half


@pytest.fixture
def squid(postgres_virtual: PostgresStorage) -> Iterator[Squid]:
    with Squid(postgres_virtual, every()) as made:
        yield made


def test_a_database_that_cannot_be_reached_fails_the_run_in_our_words() -> None:
    resource = SquidResource(url="postgresql://nobody@127.0.0.1:1/nowhere")
    assert failure(launch(build_recovery_job(), resource)).startswith("cannot reach Postgres")


def test_a_result_that_nobody_applied_and_an_attempt_given_up_are_told(squid: Squid, clock: VirtualClock) -> None:
    squid.start("claims", {"account": "a", "amount": 1}, run_id="half")
    settle_half(squid, "claims", Completed({"account": "a", "amount": 1, "api_token": "none"}))
    squid.start("deadly", run_id="dead")
    key = squid.runtime.registry.select("deadly").key
    squid.runtime.dispatch.claim("default", "somebody", lease=LEASE, definitions=[key])
    clock.advance(2 * LEASE)
    shown = metadata(launch(build_recovery_job(), squid))
    assert squid.inspect_run("half").status == "paused"
    assert squid.inspect_run("dead").reason == "dead_letter"
    assert shown["repaired"] == 2
    assert "| results applied | 1 |" in shown["report"]
    assert "| attempts given up, delivered too often | 1 |" in shown["report"]
    assert "| runs indexed and cataloged | 2 |" in shown["report"]
    assert "runs" not in shown


def test_a_second_recovery_finds_nothing_and_writes_nothing(squid: Squid) -> None:
    squid.start("halted")
    launch(build_recovery_job(), squid, raise_on_error=True)
    before = count_facts(squid)
    assert metadata(launch(build_recovery_job(), squid))["repaired"] == 0
    assert count_facts(squid) == before


def test_a_run_whose_definition_is_gone_is_named_as_held(squid: Squid) -> None:
    squid.start("claims", {"account": "a", "amount": 1}, run_id="held")
    settle_half(squid, "claims", Completed({"account": "a", "amount": 1, "api_token": "none"}))
    with Squid(squid.journal, [claims("2", with_error_route=True)]) as newer:
        shown = metadata(launch(build_recovery_job(), newer))
    assert shown["held"] == 1
    assert "| held | held | register its definition again |" in shown["runs"]


def test_the_job_knows_the_workflows_that_it_is_given(
    postgres_url: str, postgres: PostgresStorage, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Squid(postgres, every()) as squid:
        squid.start("claims", {"account": "a", "amount": 1}, run_id="half")
        settle_half(squid, "claims", Completed({"account": "a", "amount": 1, "api_token": "none"}))
        monkeypatch.setenv("PLUGIN_TEST_URL", postgres_url)
        resource = SquidResource(url=dg.EnvVar("PLUGIN_TEST_URL"), schema_name=schema)
        assert metadata(launch(build_recovery_job(), resource))["held"] == 1
        assert metadata(launch(build_recovery_job(workflows=every()), resource))["held"] == 0
        assert squid.inspect_run("half").status == "paused"


def test_what_a_foreign_error_says_is_told_without_its_secrets(
    squid: Squid, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def repair_run(*_: object) -> None:
        raise ValueError("cannot connect to postgresql://bob:hunter2@db/x")

    squid.start("claims", {"account": "a", "amount": 1}, run_id="bad")
    settle_half(squid, "claims", Completed({"account": "a", "amount": 1, "api_token": "none"}))
    monkeypatch.setattr(recovery, "repair_run", repair_run)
    shown = metadata(launch(build_recovery_job(), squid))
    assert shown["failed"] == 1
    assert "cannot connect to" in shown["runs"]
    assert "hunter2" not in f"{shown} {capfd.readouterr()}"


def test_every_count_of_a_report_is_told() -> None:
    assert {field.name for field in fields(RecoveryReport)} == {*COUNTS, "held", "quarantined", "failed"}
    report = RecoveryReport(quarantined=["q"], failed={"f": "it | is *broken*"})
    shown = recovery_metadata(report, [Receipt("c", "start_cron", T0), Receipt("d", "start_cron", T0, repeated=True)])
    assert shown["crons_started"].value == 1
    text = str(shown["runs"].value)
    assert "| c | cron run started |  |" in text
    assert "| q | quarantined | an entry cannot be read |" in text
    assert "| f | could not be repaired | it \\| is \\*broken\\* |" in text


def test_the_schedule_is_on_and_dagster_never_tries_again_by_itself() -> None:
    job = build_recovery_job()
    schedule = build_recovery_schedule(job=job)
    assert (schedule.name, schedule.cron_schedule) == ("squid_recovery_schedule", "* * * * *")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    assert job.tags == {"squid/agent": "recovery", "dagster/max_retries": "0"}
    slow = build_recovery_schedule(job=job, cron_schedule="0 * * * *", default_status=dg.DefaultScheduleStatus.STOPPED)
    assert (slow.cron_schedule, slow.default_status) == ("0 * * * *", dg.DefaultScheduleStatus.STOPPED)
    resources = {"squid": SquidResource()}
    dg.Definitions.validate_loadable(dg.Definitions(jobs=[job], schedules=[schedule], resources=resources))
