"""`build_external_sensor`: launches external steps as Dagster runs, and signals their outcomes.

The journal decides: the request is a fact before Dagster gets it, and Dagster's runs are found by their tags, never by
the sensor's state. The cursor is where the next page begins: without it, at the start.
"""

import re
from collections.abc import Sequence
from typing import Any

import dagster as dg

from squid_dagster.api import Squid
from squid_dagster.journal.settlement.rounds import concerns_all
from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.external.dagster_runs import (
    ExternalRun,
    ExternalStatus,
    deciding_run,
    describe_failure,
    find_runs,
    run_fields,
    storage_id,
    tag_abandoned,
)
from squid_dagster.plugin.failures import run_tick
from squid_dagster.plugin.names import (
    AGENT_EXTERNAL,
    EXTERNAL_SENSOR,
    QUEUE_TAG,
    RESOURCE,
    RUN_ID_TAG,
    RUNNABLE_KEY_TAG,
    job_tags,
)
from squid_dagster.protocol.errors import (
    IncompatibleDefinition,
    InvalidArgument,
    InvalidTransition,
    NotFound,
    SquidError,
)
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import Attempt, definition_key
from squid_dagster.redaction import redacted_text
from squid_dagster.runtime.adapters import definitions
from squid_dagster.runtime.commands.external_outcomes import launch_of, waiting_externals
from squid_dagster.runtime.commands.signals import Signal, SignalType
from squid_dagster.runtime.execution.step_execution import describe_error, error_map
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.checks.externals import unknown_targets
from squid_dagster.workflow.definition import Definition, StepDefinition
from squid_dagster.workflow.errors import InvalidInput, InvalidWorkflow
from squid_dagster.workflow.external_request import request_of
from squid_dagster.workflow.planner.schedule import DEFAULT_QUEUE

Job = Any  # a JobDefinition, or what define_asset_job returns: Dagster exports no name for both
Targets = dict[tuple[str, str], Job]  # by the lane of a definition, and a step of it
_PAGE = 200  # attempts of one tick


@builds
def build_external_sensor(
    *,
    workflows: Sequence[Workflow | Definition | str],
    jobs: Sequence[Job] = (),
    assets: Sequence[Any] | None = None,
    queues: Sequence[str] = (DEFAULT_QUEUE,),
    name: str = EXTERNAL_SENSOR,
    minimum_interval_seconds: int = 10,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Build the sensor that launches the external steps of these workflows; needs the resource `squid`.

    `jobs` are the location's jobs that steps of kind "dagster_job" name. Steps of kind "dagster_assets" get a job each,
    `squid_external_<workflow>_<step>`; `assets` are the location's, to check the keys; None leaves that to Dagster,
    which refuses unknown keys when the location loads. Two deployments that share a journal need queues of their own.

    A run is launched under the runnable's key, with the tags `squid/run_id` and `squid/runnable_key`, and without
    retries of Dagster's: the step's `retry=` decides. A run that a person cancels is not retried. When our run ends
    first, the Dagster run goes on, with the tag `squid/abandoned`.

    Raises:
        InvalidWorkflow: a step names a job or an asset that the location does not have.
        WorkflowsNotLoaded: a module holds no workflow.
    """
    known = definitions(list(workflows))
    for job in jobs:
        if not isinstance(getattr(job, "name", None), str):
            raise InvalidArgument(f"jobs must be a list of Dagster jobs, not of {type(job).__name__}")
    targets = _targets(known, {job.name: job for job in jobs}, assets)
    seen: dict[str, str] = {}  # runs by attempt whose start is a fact: this process need not read it again

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        def tick() -> dg.SensorResult:
            return _Tick(context, context.resources.squid.squid_for(workflows), targets, name, seen).run(queues)

        return run_tick(tick)

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        jobs=list({id(job): job for job in targets.values()}.values()) or None,
        minimum_interval_seconds=minimum_interval_seconds,
        description="Launches the external steps of squid runs, and reports their outcomes.",
        default_status=default_status,
        required_resource_keys={RESOURCE},
    )


# --- jobs of external steps -------------------------------------------------------------------------------------------


def _targets(known: Sequence[Definition], jobs: dict[str, Job], assets: Sequence[Any] | None) -> Targets:
    """Return the job of each external step. Raises `InvalidWorkflow` for names that are not in the location."""
    keys = None if assets is None else {key.to_user_string(): key for asset in assets for key in _keys(asset)}
    asset_jobs: dict[tuple[str, tuple[str, ...]], Job] = {}
    targets: Targets = {}
    for definition in known:
        if problems := list(unknown_targets(definition, jobs, keys)):
            raise InvalidWorkflow(definition.name, problems)
        for step in definition.steps.values():
            external = step.external
            if external is not None:
                job = (
                    jobs[external.job]
                    if external.job
                    else _asset_job(definition, step.name, external.assets, asset_jobs)
                )
                targets.update(((lane, step.name), job) for lane in definition.external_keys)
    return targets


def _asset_job(definition: Definition, step: str, assets: Sequence[str], asset_jobs: dict[Any, Job]) -> Job:
    """Return the job that materializes a step's assets: versions with the same assets share it."""
    name = re.sub(r"\W", "_", f"squid_external_{definition.name}_{step}")
    if any(known == name and others != tuple(sorted(assets)) for known, others in asset_jobs):
        name = f"{name}_{definition.fingerprint[:8]}"
    key = (name, tuple(sorted(assets)))
    if key not in asset_jobs:
        selection = dg.AssetSelection.assets(*(dg.AssetKey.from_user_string(asset) for asset in assets))
        asset_jobs[key] = dg.define_asset_job(name, selection=selection)
    return asset_jobs[key]


def _keys(asset: Any) -> Sequence[dg.AssetKey]:
    """Return the keys under which an asset or spec of the location can be materialized."""
    if isinstance(asset, dg.AssetsDefinition):
        return sorted(asset.keys) if asset.is_executable else ()
    return ()


# --- one tick ---------------------------------------------------------------------------------------------------------


class _Tick:
    """One tick: every waiting attempt, each on its own. An error of one attempt does not stop the others."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        squid: Squid,
        targets: Targets,
        name: str,
        seen: dict[str, str],
    ) -> None:
        self.context, self.squid, self.targets, self.name, self.seen = context, squid, targets, name, seen
        self.instance = context.instance
        self.launcher = storage_id(self.instance)

    def run(self, queues: Sequence[str]) -> dg.SensorResult:
        cursor = self.context.cursor or ""
        after = int(cursor) if cursor.isdigit() else 0
        waiting = waiting_externals(self.squid.runtime, queues, after=after, limit=_PAGE)
        keys = {row.attempt.runnable_key for row, _ in waiting}
        runs = find_runs(self.instance, keys)
        requests: list[dg.RunRequest] = []
        refused = 0
        for row, step in waiting:
            key = row.attempt.runnable_key
            try:
                request = self._advance(row.attempt, step, deciding_run(runs.get(key, [])), row.paused)
            except (InvalidTransition, NotFound, IncompatibleDefinition) as error:
                why = redacted_text(str(error))
                self.context.log.info(f"{key} is not waited for any more: {why}")
            except SquidError as error:
                if concerns_all(error):
                    if not requests:
                        raise
                    # Requests that are facts are returned; the next tick begins at the same place.
                    self.context.log.warning(f"the next tick looks at the rest: {redacted_text(str(error))}")
                    return dg.SensorResult(run_requests=requests, cursor=cursor)
                refused += 1
                why = f"{type(error).__name__}: {redacted_text(str(error))}"
                self.context.log.warning(f"{key} is looked at again by the next tick: {why}")
            else:
                requests += [] if request is None else [request]
        for run_id in tag_abandoned(self.instance, self.squid.runtime, keys, _PAGE):
            self.context.log.warning(f"Dagster run {run_id} goes on, but the squid run that wanted it has ended")
        full = len(waiting) == _PAGE
        cursor = str(waiting[-1][0].attempt.position if full else 0)
        if not full and not after:
            for key in self.seen.keys() - keys:
                del self.seen[key]
        if requests:
            return dg.SensorResult(run_requests=requests, cursor=cursor)
        reason = f"{len(waiting)} external steps wait; none is to be launched"
        reason += f", and nothing could be done for {refused}: the log says why" if refused else ""
        return dg.SensorResult(skip_reason=reason, cursor=cursor)

    def _advance(
        self, attempt: Attempt, step: StepDefinition, external: ExternalRun, paused: bool
    ) -> dg.RunRequest | None:
        """Apply the status of one attempt by signals; return the request if it is to be launched."""
        status, run = external
        if run is None or status is ExternalStatus.NOT_LAUNCHED:
            return None if paused else self._launch(attempt, step, missing=run is None)
        if status is ExternalStatus.ACTIVE:
            self._started(attempt, run)
        elif status is ExternalStatus.SUCCEEDED:
            self._completed(attempt, {"succeeded": True, "result": run_fields(run)}, run)
        elif status is ExternalStatus.FAILED:
            self._completed(attempt, {"succeeded": False, "error": describe_failure(self.instance, run)}, run)
        else:
            text = f"Dagster run {run.run_id} of job {run.job_name!r} was canceled"
            error = {**error_map("dagster_run_canceled", text), **run_fields(run)}
            self._completed(attempt, {"succeeded": False, "error": error, "final": True}, run)
        return None

    def _launch(self, attempt: Attempt, step: StepDefinition, *, missing: bool) -> dg.RunRequest | None:
        job = self.targets.get((definition_key(attempt.workflow, attempt.definition_fingerprint), step.name))
        if job is None or step.external is None:
            self.context.log.warning(f"{attempt.runnable_key} waits, but its workflow was not given to this sensor")
            return None
        launch = launch_of(self.squid.runtime, attempt) if missing else None
        lost = launch is not None and (launch.launcher != self.launcher or launch.external_run_id is not None)
        if launch is not None and lost and step.external.on_lost == "fail":
            run = f" {launch.external_run_id}" if launch.external_run_id else ""
            text = f"Dagster does not know run{run} of job {job.name!r} any more, and whether it was done is unknown"
            self._refuse(attempt, error_map("external_lost", text))
            return None
        request = self._request(attempt, step, job)
        if request is not None and missing and (launch is None or lost):
            count = 1 if launch is None else launch.count + 1
            self._note(SignalType.EXTERNAL_REQUESTED, attempt, f"request:{count}:{self.launcher}", {"launch": count})
        return request

    def _request(self, attempt: Attempt, step: StepDefinition, job: Job) -> dg.RunRequest | None:
        """Build the request and check it as Dagster does: a bad one fails the whole tick. None: the step failed."""
        try:
            wanted = request_of(step, attempt)
        except InvalidInput as error:
            self._refuse(attempt, error_map("invalid_input", str(error)))
            return None
        except Exception as error:  # noqa: BLE001  the author's function may raise anything
            self._completed(attempt, {"succeeded": False, "error": describe_error(error)})
            return None
        own = {RUN_ID_TAG: attempt.run_id, RUNNABLE_KEY_TAG: attempt.runnable_key, QUEUE_TAG: attempt.queue}
        request = dg.RunRequest(
            run_key=attempt.runnable_key,
            job_name=job.name,
            run_config=wanted.run_config,
            tags={**wanted.external.tags, **job_tags(AGENT_EXTERNAL), **own},  # ours override: only the journal retries
            partition_key=wanted.partition_key,
        )
        repository = self.context.repository_def
        if repository is None:
            return request
        try:
            resolved = repository.get_job(job.name)
            if wanted.partition_key is not None:
                request = request.with_resolved_tags_and_config(resolved, [], self.instance)
            dg.validate_run_config(resolved, request.run_config)
        except Exception as error:  # noqa: BLE001  Dagster raises many types here
            text = f"Dagster job {job.name!r} cannot be launched with this config or partition: {error}"
            self._refuse(attempt, error_map("invalid_run_request", text))
            return None
        return request

    def _refuse(self, attempt: Attempt, error: JsonObject) -> None:
        """Fail a step for good that cannot be launched, or must not be launched again."""
        self._completed(attempt, {"succeeded": False, "error": error, "final": True})

    # --- signals ------------------------------------------------------------------------------------------------------

    def _started(self, attempt: Attempt, run: dg.DagsterRun) -> None:
        if self.seen.get(attempt.runnable_key) == run.run_id:
            return
        launch = launch_of(self.squid.runtime, attempt)
        if launch is None or launch.external_run_id != run.run_id:
            self._note(SignalType.EXTERNAL_STARTED, attempt, f"start:{run.run_id}", {"external_run_id": run.run_id})
        self.seen[attempt.runnable_key] = run.run_id

    def _note(self, kind: SignalType, attempt: Attempt, key: str, fields: JsonObject) -> None:
        self._signal(kind, attempt, key, {"launcher": self.launcher, **fields})

    def _completed(self, attempt: Attempt, outcome: JsonObject, run: dg.DagsterRun | None = None) -> None:
        key = "refused" if run is None else f"end:{run.run_id}"
        known: JsonObject = {} if run is None else {"external_run_id": run.run_id}
        self._signal(SignalType.EXTERNAL_COMPLETED, attempt, key, {**known, **outcome})

    def _signal(self, kind: SignalType, attempt: Attempt, key: str, fields: JsonObject) -> None:
        self.squid.apply_signal(
            Signal(
                type=kind,
                payload={"run_id": attempt.run_id, "runnable_key": attempt.runnable_key, **fields},
                idempotency_key=f"{attempt.runnable_key}:{key}",
                actor="dagster",
                metadata={"actor_source": "dagster_sensor", "sensor": self.name},
            )
        )
