"""The dispatch job: what is due is done once, whatever ends the run, and Dagster is told what matters."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from squid_dagster.api import Squid
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.dispatch.job import DRAIN_OP, DrainConfig, build_dispatch_job
from squid_dagster.plugin.engines import close_all
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow import Workflow
from tests.plugin import drain_workflows
from tests.plugin.conftest import URL_VARIABLE
from tests.plugin.dispatch.drains import WORKFLOWS, configured, drain, failure_text, location, messages, metadata
from tests.runtime.runs import facts
from tests.servers.proxy import Proxy

MakeSquid = Callable[..., Squid]


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_queue_that_the_location_does_not_have_fails_the_run_and_nothing_is_claimed(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    squid = make_squid(WORKFLOWS)
    run_id = squid.start("quick", {"number": 1}).run_id
    before = len(squid.journal.read_run(run_id))
    result = drain(resource, instance, queues=["default", "nowhere"])
    assert not result.success
    assert failure_text(result).startswith("queue 'nowhere' is none of this location's (default)")
    assert len(squid.journal.read_run(run_id)) == before


def test_a_database_that_cannot_be_reached_fails_the_run_with_our_text(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNREACHABLE_URL", "postgresql://u:secret@127.0.0.1:1/db")
    result = drain(SquidResource(url=dg.EnvVar("UNREACHABLE_URL")), instance, wait_seconds=0.2)
    assert not result.success
    assert failure_text(result).startswith("cannot reach Postgres at postgresql+psycopg://u:***@127.0.0.1:1/db")


def test_an_outdated_schema_fails_the_run_with_our_text(
    instance: dg.DagsterInstance, postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, postgres_url)
    result = drain(SquidResource(url=dg.EnvVar(URL_VARIABLE), schema_name=schema), instance)
    assert not result.success
    assert schema in failure_text(result)
    assert "squid db" in failure_text(result)


def test_a_heartbeat_that_comes_after_the_lease_fails_the_run_with_our_text(
    resource: SquidResource, instance: dg.DagsterInstance
) -> None:
    wrong = SquidResource(url=resource.url, schema_name=resource.schema_name, lease_seconds=10, heartbeat_seconds=10)
    result = drain(wrong, instance)
    assert failure_text(result).startswith("heartbeat must be above zero and below the lease")


@pytest.mark.parametrize(
    ("field", "value"),
    [("concurrency", 0), ("linger_seconds", -1), ("max_age_seconds", 0), ("events", "some"), ("queues", "default")],
)
def test_a_configuration_that_makes_no_sense_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        DrainConfig(**{field: value})


def test_a_job_without_queues_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one queue"):
        build_dispatch_job(queues=[])


def test_a_resource_that_steps_ask_for_and_the_location_lacks_fails_when_it_loads(resource: SquidResource) -> None:
    defs = location(resource, [drain_workflows.greeting])
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="greeter"):
        dg.Definitions.validate_loadable(defs)


def test_a_run_that_begins_while_the_database_is_away_waits_for_it(
    instance: dg.DagsterInstance, make_squid: MakeSquid, postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = make_squid(WORKFLOWS).start("quick", {"number": 1}).run_id
    with Proxy(postgres_url) as proxy:
        proxy.refuse()
        threading.Timer(1, proxy.resume).start()
        monkeypatch.setenv("PROXY_URL", proxy.url(postgres_url))
        result = drain(SquidResource(url=dg.EnvVar("PROXY_URL"), schema_name=schema), instance)
        close_all()
    assert result.success
    assert metadata(result)["squid/completed"] == 1
    assert facts(make_squid(WORKFLOWS), run_id, "run_terminal")


# --- what it does ---------------------------------------------------------------------------------------------------


def test_steps_get_the_location_s_resources(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    squid = make_squid([drain_workflows.greeting], resources={"greeter": drain_workflows.Greeter("from elsewhere")})
    run_id = squid.start("greeting").run_id
    greeter = dg.ResourceDefinition.hardcoded_resource(drain_workflows.Greeter("from the location"))
    defs = location(resource, [drain_workflows.greeting], resources={"greeter": greeter})
    job = defs.resolve_job_def("squid_dispatch")
    assert job.execute_in_process(instance=instance, run_config=configured()).success
    (done,) = facts(squid, run_id, "attempt_completed")
    assert done.result == "from the location"


def test_everything_due_is_done_and_a_table_says_what_became_of_it(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    squid = make_squid(WORKFLOWS)
    receipts = squid.start_many("quick", [{"number": number} for number in range(20)])
    failed = squid.start("failing").run_id
    result = drain(resource, instance)
    # the step's failure is the journal's business: the Dagster run succeeds
    assert result.success
    assert {squid.inspect_run(receipt.run_id).status for receipt in receipts} == {"completed"}
    assert squid.inspect_run(failed).status == "failed"
    shown = metadata(result)
    assert {name: shown[f"squid/{name}"] for name in ("claimed", "completed", "retried", "failed")} == {
        "claimed": 22,
        "completed": 20,
        "retried": 1,
        "failed": 1,
    }
    assert shown["squid/ended_because"] == "nothing was due for 0.3 s"
    lines = shown["squid/attempts"].splitlines()
    assert lines[0] == "22 attempts"
    assert lines[2] == "| run | step | attempt | outcome | seconds | note |"
    assert lines[4].startswith(f"| {failed} | failing.stumble | 2 | failed |")
    assert sum("| quick.count | 1 | completed |" in line for line in lines) == 20
    # every claim tells which Dagster run made it
    (claim,) = facts(squid, receipts[0].run_id, "attempt_claimed")
    assert claim.owner_id == f"dagster:{result.run_id}"


def test_logs_of_steps_and_notable_events_reach_dagster(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid, capfd: pytest.CaptureFixture[str]
) -> None:
    squid = make_squid(WORKFLOWS)
    talked, failed = squid.start("talking").run_id, squid.start("failing").run_id
    quiet = squid.start("quick", {"number": 1}).run_id
    level = logging.getLogger("squid_dagster.step").level
    result = drain(resource, instance)
    said = messages(instance, result.run_id)
    assert (logging.INFO, f"[say, attempt 1, run {talked}] info hello") in said
    assert (logging.WARNING, f"[say, attempt 1, run {talked}] warning hello") in said
    assert not [text for _, text in said if "debug hello" in text or quiet in text]
    assert "printed hello" in capfd.readouterr().out
    about = [(level, text) for level, text in said if failed in text]
    assert [level for level, _ in about] == [logging.WARNING, logging.ERROR]
    assert about[0][1].startswith("failing.stumble failed and is tried again: ValueError: the first time")
    assert about[1][1].startswith("failing.stumble failed for good: Fail: the last time")
    assert logging.getLogger("squid_dagster.step").level == level


@pytest.mark.parametrize(("events", "expected"), [("all", 3), ("none", 0)])
def test_other_policies_show_every_attempt_or_none(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid, events: str, expected: int
) -> None:
    squid = make_squid(WORKFLOWS)
    runs = [squid.start("quick", {"number": 1}).run_id, squid.start("failing").run_id]
    result = drain(resource, instance, events=events)
    said = [text for _, text in messages(instance, result.run_id) if any(run in text for run in runs)]
    assert len(said) == expected


def test_a_dead_letter_is_told(resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid) -> None:
    fragile = Workflow("fragile", version="1")
    fragile.step(name="nothing", max_deliveries=1)(_nothing)
    squid = make_squid([fragile], lease=timedelta(milliseconds=1))
    run_id = squid.start("fragile").run_id
    # given a worker that took the attempt and was never heard of again
    assert squid.dispatch_agent().claim_next("gone", lease=timedelta(milliseconds=1)) is not None
    result = drain(resource, instance, [fragile], linger_seconds=1)
    assert metadata(result)["squid/dead_lettered"] == 1
    said = [(level, text) for level, text in messages(instance, result.run_id) if run_id in text]
    assert [(level, "was given up and waits for a person" in text) for level, text in said] == [(logging.ERROR, True)]


def _nothing() -> None:
    """Return at once."""


def test_a_run_may_serve_one_of_the_location_s_queues(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    squid = make_squid(WORKFLOWS)
    mail = squid.start("quick", {"number": 1}, queue="mail").run_id
    other = squid.start("quick", {"number": 1}, queue="other").run_id
    job = location(resource, queues=["mail", "other"]).resolve_job_def("squid_dispatch")
    assert job.execute_in_process(instance=instance, run_config=configured(queues=["mail"])).success
    assert (squid.inspect_run(mail).status, squid.inspect_run(other).terminal) == ("completed", False)
    assert job.execute_in_process(instance=instance, run_config=configured()).success
    assert squid.inspect_run(other).status == "completed"


def test_a_small_queue_is_not_left_behind_a_full_one(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    squid = make_squid(WORKFLOWS)
    full = [receipt.run_id for receipt in squid.start_many("quick", [{"number": number} for number in range(60)])]
    small = squid.start("quick", {"number": 1}, queue="mail").run_id
    job = location(resource, queues=["default", "mail"]).resolve_job_def("squid_dispatch")
    assert job.execute_in_process(instance=instance, run_config=configured(concurrency=2)).success
    claims = {run: _claimed_at(squid, run) for run in (*full, small)}
    assert sum(claims[run] < claims[small] for run in full) < 10


def _claimed_at(squid: Squid, run_id: str) -> int:
    return next(entry.position for entry in squid.journal.read_run(run_id) if entry.fact.type == "attempt_claimed")


def test_dagster_never_tries_a_run_or_an_op_again(resource: SquidResource) -> None:
    job = location(resource).resolve_job_def("squid_dispatch")
    assert job.tags["dagster/max_retries"] == "0"
    assert job.tags["squid/agent"] == "dispatch"
    op = job.get_node_named(DRAIN_OP).definition
    assert isinstance(op, dg.OpDefinition)
    assert op.retry_policy is None
