"""Random workflows whose runs have exactly one end, whatever is delayed, repeated or done by another worker.

The result of a step depends on its name, visit and input, never on the number of its calls. So a run that ends in
another way than without faults shows a defect of the runtime.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import Parameter, Signature
from random import Random
from typing import Any

from pydantic import BaseModel

from squid_dagster.protocol.entries import digest
from squid_dagster.workflow import Cron, Defer, Fail, Retry, StepContext, Workflow, path
from squid_dagster.workflow.definition import Definition

ENDS = ("complete", "fail")
_KINDS = ("step",) * 6 + ("wait", "log", "pause", "approval")
_FOR_EVER = 10**9


class Flag(BaseModel):
    """The payload of random workflows: routes ask for it."""

    flag: int = 0


@dataclass(slots=True)
class StepProfile:
    """The behaviour of a step, on every visit."""

    failures: int = 0  # so many attempts fail before one succeeds
    final: bool = False  # the first failure is for good
    deferrals: int = 0
    seconds: float = 0.0
    children: int = 0
    child: Workflow | None = None
    reads_state: bool = False


@dataclass(slots=True)
class Memory:
    """The external effects of steps, which no crash undoes."""

    deferred: dict[str, int] = field(default_factory=dict)
    executed: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        """Clear all records."""
        self.deferred.clear()
        self.executed.clear()


def act(behaviour: StepProfile, memory: Memory, ctx: StepContext, given: dict[str, Any]) -> dict[str, Any]:
    """Execute a step: wait, defer, fail or start children; return a value that depends only on its input."""
    key = ctx.idempotency_key
    memory.executed[key] = memory.executed.get(key, 0) + 1
    if behaviour.seconds:
        ctx.cancelled.wait(behaviour.seconds)
    if memory.deferred.get(key, 0) < behaviour.deferrals:
        memory.deferred[key] = memory.deferred.get(key, 0) + 1
        raise Defer("not yet", after=timedelta(seconds=2))
    for number in range(behaviour.children):
        ctx.start_child_run(behaviour.child, {"flag": number}, child_key=f"{number}-{_visit(ctx)}")
    if ctx.attempt <= behaviour.failures:
        raise Fail("for good") if behaviour.final else RuntimeError("this time")
    if behaviour.reads_state:
        known = {name: value.get("said") for name, value in ctx.state.items() if isinstance(value, dict)}
        given = {**given, "state": known}  # decisions of people contain times, and are left out
    said = zlib.crc32(digest([ctx.step, _visit(ctx), given]).encode())
    return {"said": said, "pick": said % 3}


def _visit(ctx: StepContext) -> str:
    return ctx.idempotency_key.rpartition(":")[2]


def _function(behaviour: StepProfile, memory: Memory, takes: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """Return a step's function that takes these outputs by name."""

    def do(ctx: StepContext, **given: Any) -> dict[str, Any]:
        return act(behaviour, memory, ctx, given)

    hints: dict[str, Any] = {"ctx": StepContext, "flag": int, **dict.fromkeys(takes, dict)}
    do.__annotations__ = {**hints, "return": dict[str, Any]}
    do.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=hint) for name, hint in hints.items()]
    )
    return do


@dataclass(slots=True)
class Generator:
    """The generator of random workflows, which share one memory."""

    random: Random
    memory: Memory = field(default_factory=Memory)
    rejected: set[tuple[str, str]] = field(default_factory=set)  # approvals that are rejected: workflow and step
    undoes: bool = False  # the workflow that is being drawn fails late, and most of its steps can be undone

    def workflow(self, name: str, child: Workflow | None = None, *, cron: bool = False) -> Workflow:
        """Draw a workflow: of routes or of dependencies."""
        self.undoes = self.random.random() < 0.25
        draw = self._routes if self.random.random() < 0.55 else self._dependencies
        triggers = [Cron("* * * * *", catch_up="all", payload={"flag": 1})] if cron else []
        return draw(name, child, triggers)

    def _behaviour(self, child: Workflow | None, retry: Retry | None) -> StepProfile:
        random = self.random
        behaviour = StepProfile()
        if random.random() < 0.15:
            behaviour.seconds = random.choice([0.05, 1.0, 5.0, 9.0])
        if random.random() < 0.08:
            behaviour.deferrals = random.randint(1, 2)
        drawn = random.random()
        if drawn < 0.12:
            behaviour.failures = _FOR_EVER
            behaviour.final = random.random() < 0.5
        elif drawn < 0.35 and retry is not None and retry.max_attempts > 1:
            behaviour.failures = random.randint(1, retry.max_attempts - 1)
        if child is not None and random.random() < 0.3:
            behaviour.child, behaviour.children = child, random.randint(1, 2)
        return behaviour

    def _step(self, wf: Workflow, name: str, child: Workflow | None, takes: tuple[str, ...] = (), **extra: Any) -> None:
        random, memory = self.random, self.memory
        retry = (
            Retry(max_attempts=random.randint(1, 3), initial=timedelta(seconds=1)) if random.random() < 0.5 else None
        )
        behaviour = self._behaviour(child, retry)
        # Which outputs exist depends on siblings: only without siblings is it always the same.
        behaviour.reads_state = "after" not in extra and random.random() < 0.15
        options: dict[str, Any] = {"retry": retry, **extra}
        if random.random() < 0.25:
            options["priority"] = random.randint(-5, 5)
        if self.undoes and int(name[1:]) >= 2:
            behaviour.failures = _FOR_EVER
        elif self.undoes:
            behaviour.failures = 0
        if random.random() < (0.8 if self.undoes else 0.3):
            undoing = StepProfile(failures=_FOR_EVER if random.random() < 0.15 else 0)
            options["compensate"] = _function(undoing, memory, (*takes, name))
        wf.step(name=name, **options)(_function(behaviour, memory, takes))

    def _dependencies(self, name: str, child: Workflow | None, triggers: list[Cron]) -> Workflow:
        """Draw up to five steps, each after some of those before it."""
        random = self.random
        wf = Workflow(name, payload=Flag, triggers=triggers)
        names = [f"s{number}" for number in range(random.randint(3 if self.undoes else 2, 5))]
        afters = [random.sample(names[:i], random.randint(0, min(i, 3))) for i in range(len(names))]
        declared = any(afters)
        steps: list[str] = []
        for step, after in zip(names, afters, strict=True):
            drawn = random.random() if declared else 1.0
            if drawn < 0.1:
                wf.wait(step, timedelta(seconds=random.choice([1, 6])), after=after)
            elif drawn < 0.15:
                wf.log(step, "here", after=after)
            else:
                takes = tuple(earlier for earlier in after if earlier in steps)
                self._step(wf, step, child, takes, after=after, max_deliveries=random.choice([2, 3, 5, 1000]))
                steps.append(step)
        return wf

    def _routes(self, name: str, child: Workflow | None, triggers: list[Cron]) -> Workflow:
        """Draw up to five steps with loops, conditions and error routes; on success it can always go forward."""
        random = self.random
        wf = Workflow(name, payload=Flag, entry="s0", triggers=triggers)
        most = random.randint(3 if self.undoes else 2, 5)
        kinds = {f"s{number}": random.choice(_KINDS) for number in range(most)}
        routes = {step: self._routes_of(step, list(kinds), kind) for step, kind in kinds.items()}
        reached = ["s0"]
        for step in reached:
            reached += [to for to in dict.fromkeys(to for _, to, _ in routes[step]) if to not in (*ENDS, *reached)]
        for step in sorted(reached):
            visits = random.randint(1, 3)
            match kinds[step]:
                case "wait":
                    wf.wait(step, timedelta(seconds=random.choice([1, 6])), max_visits=visits)
                case "log":
                    wf.log(step, "here", max_visits=visits)
                case "pause":
                    wf.pause(step, max_visits=visits)
                case "approval":
                    wf.approval(step, max_visits=visits)
                    if random.random() < 0.4:
                        self.rejected.add((name, step))
                case _:
                    # A dead letter takes an error route: no run with faults may get there.
                    leaves = any(outcome == "error" for outcome, _, _ in routes[step])
                    deliveries = 1000 if leaves else random.choice([2, 3, 5, 1000])
                    self._step(wf, step, child, max_visits=visits, max_deliveries=deliveries)
            for outcome, to, when in routes[step]:
                wf.route(step, on=outcome, to=to, when=when)
        return wf

    def _routes_of(self, step: str, names: list[str], kind: str) -> list[tuple[Any, str, Any]]:
        random = self.random
        later = names[names.index(step) + 1 :]
        forward = [*later[:1] * 4, *later, *ENDS[: 1 if random.random() < 0.8 else 2]]
        anywhere = [*names, *ENDS]
        outcomes = ["ok"] if kind in ("pause", "wait", "log") else ["ok", "error"]
        if kind == "step" and random.random() < 0.5:
            outcomes.remove("error")
        routes: list[tuple[Any, str, Any]] = []
        for outcome in outcomes:
            asked = [] if kind in ("pause", "approval") else random.sample(range(3), random.randint(0, 2))
            for value in asked:
                picks = outcome == "ok" and kind == "step" and random.random() < 0.5
                when = path(f"{step}.pick") == value if picks else path("flag") == value
                routes.append((outcome, random.choice(anywhere), when))
            routes.append((outcome, random.choice(forward if outcome == "ok" else anywhere), None))
        return routes


def frozen(workflows: list[Workflow]) -> list[Definition]:
    """Return the definitions of these workflows."""
    return [workflow.freeze() for workflow in workflows]
