"""Any declaration is refused with all of its problems, or becomes a definition; nothing else happens."""

from datetime import timedelta
from typing import Annotated, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squid_dagster.workflow import Cron, Deadline, InvalidWorkflow, Manual, Resource, Retry, StepContext, Workflow, path
from tests.workflow.drafts import Order, nothing, take_order


def takes_outputs(a: int, b: str = "b", c: None = None) -> None:
    """Receive outputs of others."""


def takes_things(ctx: StepContext, slack: Annotated[object, Resource("slack")], *args: int) -> None:
    """Receive what is not data."""


FUNCTIONS: list[Any] = [nothing, take_order, takes_outputs, takes_things, len, Order]
JUNK: list[Any] = [
    None,
    True,
    0,
    5,
    -1,
    1.5,
    float("nan"),
    "",
    "a",
    "b",
    "c",
    "complete",
    b"a",
    object(),
    [],
    {},
    ["a"],
]
JUNK += [{}, ["a"]]
JUNK += [
    timedelta(1),
    timedelta(-1),
    timedelta.max,
    path("a"),
    path("a.b") == 1,
    Retry(),
    Deadline(timedelta(1)),
    Order,
]

names = st.sampled_from("abcd") | st.sampled_from(JUNK)
anything = st.sampled_from(JUNK) | st.sampled_from(FUNCTIONS)
outcomes = st.sampled_from(["ok", "error"]) | anything
targets = st.sampled_from(["a", "b", "c", "complete", "fail"]) | anything
conditions = st.sampled_from([None, path("a") > 1, path("amount") == 5]) | anything
recoveries = st.sampled_from([None, "undo"]) | anything
retries = st.none() | st.builds(Retry, *[anything] * 5) | anything
deadlines = st.none() | st.builds(Deadline, *[anything] * 3) | anything
crons = st.builds(Cron, *[st.text(max_size=9) | anything] * 6)
triggers = st.lists(crons | st.builds(Manual, anything) | anything, max_size=2) | anything
options = st.fixed_dictionaries(
    {},
    optional={
        "output": names,
        "after": st.lists(names, max_size=2) | anything,
        "retry": retries,
        "compensate": anything,
        "irreversible": anything,
        "transactional": anything,
        "isolate": anything,
        "deadline": deadlines,
        "priority": anything,
        "max_deliveries": anything,
        "max_visits": anything,
    },
)
steps = st.lists(st.tuples(names, st.sampled_from(FUNCTIONS), options), max_size=4)
routes = st.lists(st.tuples(targets, targets, outcomes, conditions, recoveries), max_size=6)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_declared_is_refused_or_becomes_a_definition(data: st.DataObject) -> None:
    workflow = Workflow(
        data.draw(names),
        payload=data.draw(st.sampled_from([None, Order]) | anything),
        version=data.draw(st.none() | anything),
        triggers=data.draw(triggers),
        entry=data.draw(st.none() | anything),
    )
    for name, function, given_options in data.draw(steps):
        workflow.step(name=name, **given_options)(function)
    workflow.wait(data.draw(names), data.draw(anything))
    workflow.log(data.draw(names), data.draw(anything), data.draw(anything))
    workflow.approval(data.draw(names), output=data.draw(anything), deadline=data.draw(deadlines))
    for source, to, on, when, recovery in data.draw(routes):
        workflow.route(source, to=to, on=on, when=when, recovery=recovery)

    try:
        definition = workflow.freeze()
    except InvalidWorkflow as refused:
        problems = refused.problems
    else:
        problems = ()
        assert set(definition.entry_steps) <= set(definition.steps)
    assert all(problem.message and problem.path for problem in problems)
