"""Commands from the launchpad: what is refused leaves no trace, what is done is done once and is shown."""

from collections.abc import Iterator
from typing import Annotated, Any

import dagster as dg
import pytest
from pydantic import Field

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin.commands.jobs import build_command_jobs
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.protocol.threads import run_thread
from squid_dagster.workflow import Workflow
from tests.plugin.workflows import count_facts, every, failure, finish, give_up, launch, metadata

JOBS = {job.name: job for job in build_command_jobs(workflows=every())}
PAYLOAD = {"account": "acc-1", "amount": 7}
CLAIM = {"workflow": "claims", "payload": PAYLOAD}


@pytest.fixture
def squid(postgres_virtual: PostgresStorage) -> Iterator[Squid]:
    with Squid(postgres_virtual, every()) as made:
        yield made


def signals(squid: Squid, run_id: str) -> list[Any]:
    return [entry.fact for entry in squid.journal.read(run_thread(run_id)) if entry.fact.type == "run_signal_received"]


# --- bad input: the run fails in our words, and the journal holds nothing of it -------------------------------------


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"payload": {"account": "acc-1"}}, "payload of workflow 'claims': amount: Field required"),
        ({"payload": {"account": "acc-1", "amount": "much"}}, "amount: Input should be a valid integer"),
        ({"workflow": "calims"}, "workflow 'calims' is not registered (registered: claims 1, deadly 1,"),
        ({**CLAIM, "version": "7"}, "version '7' of workflow 'claims' is not registered"),
        ({**CLAIM, "trigger": "nightly"}, "workflow 'claims' has no trigger 'nightly': it has manual"),
        ({**CLAIM, "queue": "slow"}, "queue 'slow' does not exist: nobody serves it, and nothing was ever put on it."),
        ({**CLAIM, "queue": "no queue"}, "queue"),
        ({**CLAIM, "priority": 11}, "priority"),
        ({**CLAIM, "idempotency_key": "k" * 3000}, "idempotency_key"),
    ],
)
def test_a_start_that_makes_no_sense_fails_and_writes_nothing(squid: Squid, config: Any, said: str) -> None:
    assert said in failure(launch(JOBS["squid_start"], squid, config))
    assert count_facts(squid) == 0


@pytest.mark.parametrize("job", [name for name in JOBS if name != "squid_start"])
def test_a_command_about_an_unknown_run_fails_and_writes_nothing(squid: Squid, job: str) -> None:
    said = failure(launch(JOBS[job], squid, {"run_id": "nowhere"}))
    assert "there is no run 'nowhere'" in said
    assert count_facts(squid) == 0


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("squid_approve", "nothing that could be approved"),
        ("squid_reject", "nothing that could be rejected"),
        ("squid_resume", "nothing that could be resumed"),
        ("squid_retry", "waits for 0 dead letters (none): name one"),
    ],
)
def test_a_command_that_the_run_does_not_wait_for_fails_and_writes_nothing(squid: Squid, job: str, said: str) -> None:
    run_id = squid.start("claims", PAYLOAD).run_id
    before = count_facts(squid)
    assert said in failure(launch(JOBS[job], squid, {"run_id": run_id}))
    assert count_facts(squid) == before


def test_what_has_ended_is_not_cancelled_and_what_was_paid_is_not_replayed(squid: Squid) -> None:
    run_id = squid.start("claims", PAYLOAD).run_id
    finish(squid)
    squid.approve(run_id, actor="ada")
    finish(squid)
    before = count_facts(squid)
    assert "has ended as completed" in failure(launch(JOBS["squid_cancel"], squid, {"run_id": run_id}))
    said = failure(launch(JOBS["squid_replay"], squid, {"run_id": run_id}))
    assert "'pay', which cannot be undone" in said
    assert count_facts(squid) == before


def test_a_key_that_was_used_for_something_else_is_refused(squid: Squid) -> None:
    first = launch(JOBS["squid_start"], squid, {**CLAIM, "idempotency_key": "monday"})
    other = {"workflow": "claims", "payload": {"account": "acc-2", "amount": 1}, "idempotency_key": "monday"}
    before = count_facts(squid)
    assert "was used for another start" in failure(launch(JOBS["squid_start"], squid, other))
    assert count_facts(squid) == before
    assert metadata(first)["repeated"] is False


def test_a_database_that_cannot_be_reached_fails_the_run_in_our_words() -> None:
    resource = SquidResource(url="postgresql://nobody@127.0.0.1:1/nowhere")
    said = failure(launch(JOBS["squid_start"], resource, CLAIM))
    assert said.startswith("cannot reach Postgres at postgresql+psycopg://nobody@127.0.0.1:1/nowhere")


def test_an_outdated_schema_fails_the_run_and_names_the_command(
    postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUGIN_TEST_URL", postgres_url)
    monkeypatch.delenv("SQUID_AUTO_MIGRATE", raising=False)
    resource = SquidResource(url=dg.EnvVar("PLUGIN_TEST_URL"), schema_name=schema)
    assert "squid db upgrade" in failure(launch(JOBS["squid_start"], resource, CLAIM))


@pytest.mark.parametrize("named", ["", None, 7])
def test_a_hook_that_names_nobody_is_refused(squid: Squid, named: Any) -> None:
    jobs = build_command_jobs(workflows=every(), actor=lambda _: named)
    assert "the hook `actor` must give a name" in failure(launch(jobs[0], squid, CLAIM))
    assert count_facts(squid) == 0


def test_fields_that_nobody_knows_are_refused_before_a_run_is_launched(squid: Squid) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match="paylaod"):
        launch(JOBS["squid_start"], squid, {"paylaod": {}})


# --- what is done ---------------------------------------------------------------------------------------------------


def test_a_start_is_recorded_with_where_it_came_from_and_shown(squid: Squid) -> None:
    instance = dg.DagsterInstance.ephemeral()
    config = {**CLAIM, "comment": "please", "actor": "ada", "priority": 3}
    result = launch(JOBS["squid_start"], squid, config, instance=instance)
    shown = metadata(result)
    run = squid.inspect_run(shown["run_id"])
    assert (run.workflow, run.priority, run.input["account"]) == ("claims", 3, "acc-1")
    (signal,) = signals(squid, run.run_id)
    assert (signal.actor, signal.comment, signal.idempotency_key) == ("ada", "please", result.run_id)
    assert signal.metadata == {
        "actor_source": "dagster_launchpad",
        "actor_named_by": "launchpad",
        "dagster_run_id": result.run_id,
        "dagster_job": "squid_start",
    }
    assert shown["status"] == "running"
    assert shown["graph"].startswith("![claims · ")
    assert {"summary", "explanation", "timeline", "snapshot"} <= shown.keys()
    record = instance.get_run_by_id(result.run_id)
    assert record is not None
    assert record.tags["squid/run_id"] == run.run_id


@pytest.mark.parametrize(("job", "step"), [("squid_approve", "pay"), ("squid_reject", "refuse")])
def test_a_decision_leads_the_run_on_and_names_its_source(squid: Squid, job: str, step: str) -> None:
    run_id = squid.start("claims", PAYLOAD).run_id
    finish(squid)
    result = launch(JOBS[job], squid, {"run_id": run_id, "comment": "seen"})
    assert metadata(result)["run_id"] == run_id
    signal = signals(squid, run_id)[-1]
    assert (signal.actor, signal.comment) == ("dagster_launchpad", "seen")
    assert signal.metadata["actor_source"] == "dagster_launchpad"
    assert signal.metadata["actor_named_by"] == "nobody"
    finish(squid)
    assert {attempt.step for attempt in squid.inspect_run(run_id).attempts} == {"read", step}
    assert "dagster\\_launchpad" in metadata(result)["snapshot"]


@pytest.mark.parametrize("job", ["squid_approve", "squid_reject"])
def test_a_decision_about_another_step_than_the_run_waits_at_writes_nothing(squid: Squid, job: str) -> None:
    run_id = squid.start("claims", PAYLOAD).run_id
    finish(squid)
    state = squid.inspect_run(run_id).manual_state
    assert state is not None
    before = count_facts(squid)
    said = failure(launch(JOBS[job], squid, {"run_id": run_id, "step": "another"}))
    assert f"waits at {state.step!r}, not at 'another'" in said
    assert count_facts(squid) == before
    launch(JOBS[job], squid, {"run_id": run_id, "step": state.step}, raise_on_error=True)


def test_resume_cancel_replay_and_retry_do_what_they_say(squid: Squid, clock: VirtualClock) -> None:
    halted = squid.start("halted").run_id
    launch(JOBS["squid_resume"], squid, {"run_id": halted}, raise_on_error=True)
    finish(squid)
    assert squid.inspect_run(halted).status == "completed"

    cancelled = squid.start("halted").run_id
    launch(JOBS["squid_cancel"], squid, {"run_id": cancelled, "cascade": True}, raise_on_error=True)
    assert squid.inspect_run(cancelled).status == "cancelled"

    again = metadata(launch(JOBS["squid_replay"], squid, {"run_id": cancelled}))
    assert squid.inspect_run(again["run_id"]).replayed_from_run_id == cancelled

    dead = squid.start("deadly").run_id
    key = give_up(squid, clock, dead)
    assert squid.inspect_run(dead).reason == "dead_letter"
    launch(JOBS["squid_retry"], squid, {"run_id": dead, "runnable_key": key}, raise_on_error=True)
    finish(squid)
    assert squid.inspect_run(dead).status == "completed"


def test_a_hook_names_the_actor_from_the_tags_of_the_run(squid: Squid) -> None:
    def who(context: dg.OpExecutionContext) -> dict[str, Any]:
        return {"email": context.run.tags["user"]}

    jobs = build_command_jobs(workflows=every(), actor=who)
    config = {**CLAIM, "actor": "somebody else"}
    result = launch(jobs[0], squid, config, tags={"user": "ada@example.com"})
    (signal,) = signals(squid, metadata(result)["run_id"])
    assert signal.actor == {"email": "ada@example.com"}
    assert signal.metadata["actor_named_by"] == "location"


def test_a_queue_is_known_when_it_is_named_or_was_used(squid: Squid) -> None:
    jobs = build_command_jobs(workflows=every(), queues=["fast"])
    first = metadata(launch(jobs[0], squid, {**CLAIM, "queue": "fast"}))
    assert squid.inspect_run(first["run_id"]).queue == "fast"
    again = metadata(launch(JOBS["squid_start"], squid, {**CLAIM, "queue": "fast"}))
    assert again["run_id"] != first["run_id"]


# --- once -----------------------------------------------------------------------------------------------------------


def test_an_op_that_dagster_tries_again_does_it_once(squid: Squid) -> None:
    run_id = "11111111-1111-4111-8111-111111111111"
    first = metadata(launch(JOBS["squid_start"], squid, CLAIM, run_id=run_id))
    before = count_facts(squid)
    again = metadata(launch(JOBS["squid_start"], squid, CLAIM, run_id=run_id))
    assert (again["run_id"], again["repeated"]) == (first["run_id"], True)
    assert count_facts(squid) == before


_current: list[SquidResource] = []


def reloaded() -> dg.JobDefinition:
    """Return the job as a run worker finds it, with the resource of the test."""
    definitions = dg.Definitions(jobs=build_command_jobs(workflows=every()), resources={"squid": _current[-1]})
    return definitions.resolve_job_def("squid_start")


def test_a_re_execution_does_it_once_and_after_a_failure_does_it(squid: Squid) -> None:
    _current.append(SquidResource.for_testing(squid))
    job = dg.reconstructable(reloaded)
    with dg.instance_for_test() as instance:

        def execute(config: Any, parent: str | None = None) -> dg.JobExecutionResult:
            again = None if parent is None else dg.ReexecutionOptions(parent)
            given = {"ops": {"squid_start_run": {"config": config}}}
            return dg.execute_job(job, instance=instance, run_config=given, reexecution_options=again)

        first = execute(CLAIM)
        before = count_facts(squid)
        for parent in (first.run_id, execute(CLAIM, first.run_id).run_id):  # also of a re-execution
            assert execute(CLAIM, parent).success
        assert count_facts(squid) == before

        failed = execute({**CLAIM, "queue": "slow"})
        assert not failed.success
        squid.start("claims", PAYLOAD, queue="slow")
        before = count_facts(squid)
        assert execute({**CLAIM, "queue": "slow"}, failed.run_id).success
        assert count_facts(squid) > before


# --- as Dagster sees them -------------------------------------------------------------------------------------------


def test_dagster_never_tries_again_by_itself_and_needs_no_config_but_the_run() -> None:
    assert set(JOBS) == {
        "squid_start", "squid_approve", "squid_reject", "squid_resume", "squid_cancel", "squid_replay", "squid_retry",
    }  # fmt: skip
    for name, job in JOBS.items():
        assert job.tags["dagster/max_retries"] == "0"
        assert job.tags["squid/agent"] == "command"
        op = next(iter(job.graph.node_defs)).name
        needed = {} if name == "squid_start" else {"ops": {op: {"config": {"run_id": "r"}}}}
        dg.validate_run_config(job, needed)


def test_the_launchpad_names_the_workflows_and_shows_a_payload_for_each() -> None:
    schema: Any = JOBS["squid_start"].graph.node_defs[0].config_schema
    fields = schema.config_type.fields
    assert fields["workflow"].default_value == "claims"
    assert "`halted`" in fields["workflow"].description
    assert '`claims`: `{"account": "acc-1", "amount": 1, "api_token": "[REDACTED]"}`' in fields["payload"].description


def without_a_model() -> Workflow:
    wf = Workflow("refunds")

    @wf.step
    def refund(account: Annotated[str, Field(examples=["acc-7"])], amount: int, note: str = "sorry") -> str:
        return f"{account}: {amount}, {note}"

    return wf


def test_the_launchpad_shows_what_steps_take_where_a_workflow_declares_no_payload(
    postgres_virtual: PostgresStorage,
) -> None:
    start = next(job for job in build_command_jobs(workflows=[without_a_model()]) if job.name == "squid_start")
    schema: Any = start.graph.node_defs[0].config_schema
    description = schema.config_type.fields["payload"].description
    assert '`refunds`: `{"account": "acc-7", "amount": 1, "note": "sorry"}`' in description

    with Squid(postgres_virtual, without_a_model()) as squid:
        said = failure(launch(start, squid, {"payload": {"account": "acc-1", "amuont": 7}}))
        assert "amount: Field required; amuont: Extra inputs are not permitted (got int)" in said
        assert "The steps take account: str, amount: int, note: str (optional)" in said
        assert count_facts(squid) == 0
        run_id = metadata(launch(start, squid, {"payload": {"account": "acc-1", "amount": 7}}))["run_id"]
        finish(squid)
        assert squid.inspect_run(run_id).outputs == {"refund": "acc-1: 7, sorry"}


def test_all_commands_load_beside_each_other() -> None:
    resource = SquidResource(url=dg.EnvVar("PLUGIN_TEST_URL"))
    dg.Definitions.validate_loadable(dg.Definitions(jobs=list(JOBS.values()), resources={"squid": resource}))


def test_no_secret_of_a_run_is_shown(squid: Squid) -> None:
    payload = {"account": "acc-1", "amount": 7, "api_token": "hunter2"}
    result = launch(JOBS["squid_start"], squid, {"workflow": "claims", "payload": payload})
    finish(squid)
    approved = launch(JOBS["squid_approve"], squid, {"run_id": metadata(result)["run_id"]})
    for execution in (result, approved):
        assert "hunter2" not in str(metadata(execution))
