"""Scenarios: the workflows of a simulation, the runs to start, and the commands of operators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from squid_dagster.testing.simulation.workflows import Generator, frozen
from squid_dagster.workflow.cron.triggers import Cron
from squid_dagster.workflow.definition import Definition

QUEUES = ("default", "other")


class Start(NamedTuple):
    """A run that a client starts once, with retries. `by_key`: by an idempotency key, else by its run id."""

    key: str
    workflow: str
    payload: Any
    queue: str = QUEUES[0]
    by_key: bool = False
    cancelled: bool = False  # an operator cancels it, with its children
    replayed: bool = False  # an operator replays it when it has ended


Decision = Callable[[str, str], bool]


def approve_all(workflow: str, step: str) -> bool:
    """Approve every approval."""
    return True


@dataclass(frozen=True, slots=True)
class Scenario:
    """The subject of a simulation. `approves` returns whether the approvals of a workflow's step are approved.

    `resources` returns the resources of steps, new ones for every schedule; `reset` is called before each schedule.
    """

    definitions: Sequence[Definition]
    starts: Sequence[Start]
    approves: Decision = approve_all
    resources: Callable[[], Mapping[str, object]] = dict
    reset: Callable[[], None] = field(default=lambda: None)

    @property
    def crons(self) -> frozenset[str]:
        """The workflows that the clock starts."""
        return frozenset(
            definition.name
            for definition in self.definitions
            if any(isinstance(trigger, Cron) for trigger in definition.triggers.values())
        )

    @property
    def every_minute(self) -> frozenset[str]:
        """The workflows that the clock starts every minute, and for all minutes that were missed."""
        triggers = ((wf.name, trigger) for wf in self.definitions for trigger in wf.triggers.values())
        return frozenset(
            name
            for name, trigger in triggers
            if isinstance(trigger, Cron) and trigger.expression == "* * * * *" and trigger.catch_up == "all"
        )

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of the runs."""
        return tuple(dict.fromkeys([QUEUES[0], *(start.queue for start in self.starts)]))


def random_scenario(seed: int) -> Scenario:
    """Return a scenario of random workflows: a root or two, a child that their steps start, at times a cron."""
    random = Random(f"scenario {seed}")  # noqa: S311  no secret
    generator = Generator(random)
    child = generator.workflow("child")
    roots = [generator.workflow(f"root{number}", child) for number in range(random.randint(1, 2))]
    crons = [generator.workflow("timed", cron=True)] if random.random() < 0.1 else []
    two_queues = random.random() < 0.3
    starts = []
    for number in range(random.choice([1, 2, 2, 3])):
        drawn = random.random()
        starts.append(
            Start(
                f"run-{number}",
                random.choice(roots).name,
                {"flag": random.randint(0, 2)},
                random.choice(QUEUES) if two_queues else QUEUES[0],
                by_key=random.random() < 0.5,
                cancelled=drawn < 0.12,
                replayed=0.12 <= drawn < 0.2,
            )
        )
    return Scenario(
        frozen([child, *roots, *crons]),
        starts,
        approves=lambda workflow, step: (workflow, step) not in generator.rejected,
        reset=generator.memory.clear,
    )
