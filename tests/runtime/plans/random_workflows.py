"""Random workflows, and random things that happen to their runs. Every workflow drawn here is a valid one."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from squid_dagster.workflow import Defer, Fail, Retry, StepContext, Workflow, path
from squid_dagster.workflow.authoring.conditions import Condition

ENDS = ("complete", "fail")


class Flag(BaseModel):
    flag: int = 0


@dataclass
class Script:
    """What steps do, one after another; when it is over, all of them succeed."""

    outcomes: list[str]
    calls: list[str] = field(default_factory=list)

    def again(self) -> None:
        """Reset the script."""
        self.calls.clear()

    def act(self, ctx: StepContext) -> Any:
        """Execute what comes next."""
        self.calls.append(ctx.runnable_key)
        place = len(self.calls) - 1
        match self.outcomes[place] if place < len(self.outcomes) else "ok":
            case "error":
                raise RuntimeError("this time")
            case "fail":
                raise Fail("for good")
            case "defer":
                raise Defer("later", after=timedelta(seconds=7))
            case other:
                return {"n": len(self.calls), "said": other}


outcomes = st.lists(st.sampled_from(["ok", "ok", "ok", "error", "fail", "defer"]), max_size=25)
_kinds = st.sampled_from(["step", "step", "step", "step", "wait", "log", "pause", "approval"])
_options = st.fixed_dictionaries(
    {},
    optional={
        "retry": st.builds(Retry, max_attempts=st.integers(1, 3), initial=st.just(timedelta(seconds=1))),
        "max_deliveries": st.integers(1, 3),
        "priority": st.integers(-10, 10),
        "irreversible": st.booleans(),
        "compensate": st.just(True),
    },
)


def _step(wf: Workflow, name: str, options: dict[str, Any], script: Script, **placement: Any) -> None:
    def do(ctx: StepContext) -> Any:
        return script.act(ctx)

    options = dict(options)
    if options.pop("compensate", False):
        options.pop("irreversible", None)  # what is undone was not irreversible
        options["compensate"] = do
    wf.step(name=name, **options, **placement)(do)


@st.composite
def dependencies(draw: st.DrawFn, script: Script) -> Workflow:
    """Generate up to seven steps, each after some of those before it."""
    wf = Workflow("random", payload=Flag)
    names = [f"s{n}" for n in range(draw(st.integers(1, 7)))]
    afters = [draw(st.lists(st.sampled_from(names[:n]), unique=True)) if n else [] for n in range(len(names))]
    declared = any(afters)
    for name, after in zip(names, afters, strict=True):
        kind = draw(st.sampled_from(["step", "step", "step", "wait", "log"])) if declared else "step"
        if kind == "wait":
            wf.wait(name, timedelta(seconds=30), after=after)
        elif kind == "log":
            wf.log(name, "here", after=after)
        else:
            _step(wf, name, draw(_options), script, after=after)
    return wf


@st.composite
def routes(draw: st.DrawFn, script: Script) -> Workflow:
    """Generate up to five steps with loops, conditions and error routes; a success can always lead forward."""
    wf = Workflow("random", payload=Flag, entry="s0")
    kinds = {f"s{n}": draw(_kinds) for n in range(draw(st.integers(1, 5)))}
    names = list(kinds)
    planned: dict[str, list[tuple[str, str, Condition | None]]] = {}
    for number, (name, kind) in enumerate(kinds.items()):
        forward = st.sampled_from([*names[number + 1 :], *ENDS])
        anywhere = st.sampled_from([*names, *ENDS])
        on = ["ok"] if kind in ("pause", "wait", "log") else ["ok", "error"]
        if kind == "step" and draw(st.booleans()):
            on.remove("error")
        planned[name] = []
        for outcome in on:
            asked = [] if kind in ("pause", "approval") else draw(st.lists(st.integers(0, 3), unique=True, max_size=2))
            planned[name] += [(outcome, draw(anywhere), path("flag") == value) for value in asked]
            planned[name].append((outcome, draw(forward if outcome == "ok" else anywhere), None))
    reached = ["s0"]
    for name in reached:
        reached += [to for to in dict.fromkeys(to for _, to, _ in planned[name]) if to not in (*ENDS, *reached)]
    for name in sorted(reached):
        visits = draw(st.integers(1, 3))
        match kinds[name]:
            case "wait":
                wf.wait(name, timedelta(seconds=30), max_visits=visits)
            case "log":
                wf.log(name, "here", max_visits=visits)
            case "pause":
                wf.pause(name, max_visits=visits)
            case "approval":
                wf.approval(name, max_visits=visits)
            case _:
                _step(wf, name, draw(_options), script, max_visits=visits)
        for outcome, to, when in planned[name]:
            wf.route(name, on=outcome, to=to, when=when)  # type: ignore[arg-type]
    return wf
