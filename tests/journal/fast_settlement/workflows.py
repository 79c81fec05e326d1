"""What the suites of fast settlements share: workflows whose completions lead to facts of every kind, and calls."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.dispatch_store import Answer, Claim, Completed, Planner, PlanRequest, Settlement
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.plan_state.cache import PlanStates
from squid_dagster.journal.postgres.dispatch.settle_fast import settle_fast
from squid_dagster.journal.postgres.dispatch.settle_template import SettleTemplates
from squid_dagster.protocol import Fact
from squid_dagster.workflow import Workflow, path
from tests.facts import QUEUE
from tests.journal.access import facts_of

ALONE = ("one", "chain")
"""Workflows whose first step is planned for without the run's state: it ends the run, or does not."""
BY_STATE = ("turn", "loop")
"""The same for workflows that may come back to a step."""
SHAPES = (*ALONE, *BY_STATE, "fan out", "approval", "wait", "condition", "priority", "fails", "undone")


def nothing() -> None:
    """Return nothing: only its facts matter."""


def workflow(shape: str) -> Workflow:
    """Return a workflow whose first completion leads to another kind of fact."""
    dependencies = ("one", "chain", "fan out", "wait", "priority")
    wf = Workflow("shape", entry=None if shape in dependencies else "a")
    undo = nothing if shape == "undone" else None
    wf.step(name="a", output="a", compensate=undo, max_visits=9 if shape in BY_STATE else None)(nothing)
    match shape:
        case "approval":
            wf.approval("b", deadline=timedelta(hours=1))
            wf.route("a", to="b")
            wf.route("b", to="complete")
            wf.route("b", on="error", to="fail")
        case "wait":
            wf.wait("b", timedelta(minutes=5), after=["a"])
        case "condition":
            wf.step(name="b")(nothing)
            wf.route("a", to="b", when=path("a.deep").exists())
            wf.route("a", to="complete")
            wf.route("b", to="complete")
        case "priority":
            wf.step(name="b", after=["a"], priority=7, max_deliveries=2, deadline=timedelta(minutes=1))(nothing)
        case "turn":
            wf.route("a", to="a", when=path("a.again") == True)  # noqa: E712  a condition
            wf.route("a", to="complete")
        case "loop":
            wf.step(name="b", output="b")(nothing)
            wf.route("a", to="b")
            wf.route("b", to="a", when=path("b.again") == True)  # noqa: E712  a condition
            wf.route("b", to="complete")
        case "fails" | "undone":
            wf.route("a", to="fail")
        case "chain" | "fan out":
            wf.step(name="b", after=["a"])(nothing)
            if shape == "fan out":
                wf.step(name="c", after=["a"])(nothing)
    return wf


def begun(storage: PostgresStorage, wf: Workflow, count: int = 1) -> tuple[Squid, list[Claim]]:
    """Start runs and claim their first steps."""
    squid = Squid(storage, [wf])
    squid.start_many(wf, [None] * count)
    return squid, claimed(squid, count)


def claimed(squid: Squid, count: int) -> list[Claim]:
    """Claim so many attempts, by the order of their runs."""
    claims = squid.runtime.dispatch.claim(QUEUE, "worker", limit=count)
    assert len(claims) == count
    return sorted(claims, key=lambda claim: claim.ref.runnable_key)


def completions(claims: Sequence[Claim], result: Any = None) -> list[Settlement]:
    """Return settlements by which these steps have succeeded."""
    return [Settlement(claim.ref, Completed(result)) for claim in claims]


def settled(squid: Squid, claims: Sequence[Claim], result: Any = None) -> list[Answer]:
    """Settle claims by the store that has claimed them."""
    return squid.runtime.dispatch.settle(completions(claims, result), squid.runtime.plan)


def fast(
    storage: PostgresStorage, claims: Sequence[Claim], plan: Planner, states: PlanStates | None = None
) -> list[str]:
    """Settle claims by the fast way alone; return the runs that were written."""
    known = {claim.ref.claim_id: claim.attempt for claim in claims}
    answers = settle_fast(
        storage, states or PlanStates(), SettleTemplates(storage.max_fact_bytes), known, completions(claims), plan
    )
    for place, answer in answers.items():
        assert answer.unwrap().runnable_key == claims[place].ref.runnable_key
        assert answer.unwrap().status == "completed"
    return [claims[place].ref.run_id for place in sorted(answers)]


def facts_without_names(storage: Storage, run_id: str) -> list[str]:
    """Return a run's facts as JSON, without random names."""
    made = {"claim_id", "claim_token_hash"}
    return [fact.model_dump_json(exclude=made).replace(run_id, "<run>") for fact in facts_of(storage.read_run(run_id))]


def raises(_: PlanRequest) -> Sequence[Fact]:
    """Raise instead of planning."""
    raise RuntimeError("nothing follows")
