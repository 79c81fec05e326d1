"""The systems that are compared: how each is started, in which settings, and by which of its own tables it is judged.

A peer may have several candidates for a setting. They led when more were tried (`python -m bench tune` does it again),
and all are options that the peer itself documents (uvloop for procrastinate is an extra). Every round runs them all,
and the one with the best median counts: which one that is differs between machines, and no peer shall lose by a
setting. Ours has one. Its drain by several processes stands beside the same by one, which is a system of its own here.
The sizes give each system a few seconds of work: a slow one gets fewer jobs.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.peers import environment

OURS = "ours"
ONE_PROCESS = "one-process"  # of ours
PROCESSES = 4  # of ours, beside one
Settings = Mapping[str, Any]
Candidates = Sequence[Settings]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of jobs of a system in one round, other than drains."""

    single: int
    bulk: int
    latency: int = 100

    def quick(self) -> "Sizes":
        """Return a tenth of each, enough to see that everything works."""
        return Sizes(self.single // 10, self.bulk // 10, self.latency // 10)


@dataclass(frozen=True, slots=True)
class Drain:
    """How many starts a system drains in one round, in one setting or another."""

    count: int
    candidates: Candidates

    def quick(self) -> "Drain":
        """Return a tenth of it, in the first setting only."""
        return Drain(max(1, self.count // 10), self.candidates[:1])


@dataclass(frozen=True, slots=True)
class System:
    """One system under measurement. `drains` has those that it can do, by measurement.

    `waiting` and `done` are SQL on its own tables: how many jobs are to be run, and how many are completed. `proof`
    counts, in another of its tables, the completed jobs of so many steps.
    """

    name: str
    python: str
    module: str
    sizes: Sizes
    starts: Settings
    drains: Mapping[str, Drain]
    idles: Candidates
    waiting: str
    done: str
    proof: str

    @property
    def command(self) -> list[str]:
        """The command that takes an order."""
        return [self.python, "-m", self.module]

    def quick(self) -> "System":
        """Return the same system with less to do, in its first setting only."""
        return replace(
            self,
            sizes=self.sizes.quick(),
            drains={name: drain.quick() for name, drain in self.drains.items()},
            idles=self.idles[:1],
        )


_DBOS_ASYNC: Candidates = (
    {"workflows": "async", "worker_concurrency": None, "polling_interval_sec": 0.1, "pool_size": 20},
    {"workflows": "async", "worker_concurrency": 300, "polling_interval_sec": 0.01, "pool_size": 20},
)
_DBOS_SYNC: Candidates = (
    {"workflows": "sync", "worker_concurrency": 50, "polling_interval_sec": 0.01, "pool_size": 20},
    {"workflows": "sync", "worker_concurrency": 20, "polling_interval_sec": 0.01, "pool_size": 20},
)
_OURS = System(
    name=OURS,
    python=sys.executable,
    module="bench.drain",
    sizes=Sizes(single=300, bulk=10_000),
    starts={"bulk_chunk": 1_000},
    drains={
        "one-step drain": Drain(10_000, [{"concurrency": 300}]),
        "three-step drain": Drain(2_000, [{"concurrency": 300}]),
        "shared three-step drain": Drain(6_000, [{"concurrency": 300, "processes": PROCESSES}]),
        "step of a chain": Drain(300, [{"concurrency": 300}]),
        "sibling of a fan-out": Drain(30, [{"concurrency": 300}]),
        "child of a parent": Drain(30, [{"concurrency": 300}]),
    },
    idles=({"concurrency": 10}, {"concurrency": 1}),
    waiting="SELECT count(*) FROM squid.runs WHERE status <> 'completed'",
    done="SELECT count(*) FROM squid.runs WHERE status = 'completed'",
    proof="SELECT count(*) / %(steps)s FROM squid.journal_entries WHERE type = 'attempt_completed'",
)
_SYSTEMS = (
    _OURS,
    replace(
        _OURS,
        name=ONE_PROCESS,
        sizes=Sizes(0, 0, 0),
        drains={"shared three-step drain": Drain(6_000, [{"concurrency": 300, "processes": 1}])},
    ),
    System(
        name="dbos",
        python=environment.PYTHON,
        module="bench.peers.dbos_bench",
        sizes=Sizes(single=300, bulk=1_000),
        starts={"bulk_chunk": 500},
        drains={
            "one-step drain": Drain(1_000, _DBOS_ASYNC),
            "three-step drain": Drain(300, _DBOS_SYNC),
            "step of a chain": Drain(100, _DBOS_SYNC),
            "sibling of a fan-out": Drain(10, _DBOS_ASYNC),
            "child of a parent": Drain(
                10, [{**one, "children": way} for way in ("started", "queued") for one in _DBOS_ASYNC]
            ),
        },
        idles=(
            {"workflows": "sync", "worker_concurrency": None, "polling_interval_sec": 0.001, "pool_size": 5},
            {"workflows": "async", "worker_concurrency": None, "polling_interval_sec": 0.001, "pool_size": 20},
        ),
        waiting="SELECT count(*) FROM dbos.workflow_status WHERE status = 'ENQUEUED'",
        done="SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
        # A workflow without a step of its own has no other record than its status.
        proof="SELECT CASE WHEN %(steps)s = 1 THEN (SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS')"
        " ELSE (SELECT count(*) / %(steps)s FROM dbos.operation_outputs) END",
    ),
    System(
        name="procrastinate",
        python=environment.PYTHON,
        module="bench.peers.procrastinate_bench",
        sizes=Sizes(single=300, bulk=10_000),
        starts={"bulk_chunk": 1_000},
        drains={
            "one-step drain": Drain(
                1_500,
                [
                    {"concurrency": 3, "pool_size": 4, "uvloop": True},
                    {"concurrency": 10, "pool_size": 11, "uvloop": True},
                ],
            )
        },
        idles=({"concurrency": 1, "pool_size": 2, "uvloop": True},),
        waiting="SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'",
        done="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
        proof="SELECT count(*) FROM procrastinate_events WHERE type = 'succeeded'",
    ),
    System(
        name="pgqueuer",
        python=environment.PYTHON,
        module="bench.peers.pgqueuer_bench",
        sizes=Sizes(single=300, bulk=50_000),
        starts={"bulk_chunk": 10_000},
        drains={
            "one-step drain": Drain(
                20_000,
                [
                    {"batch_size": 1_000, "managers": 1, "pool_size": 4},
                    {"batch_size": 1_000, "managers": 2, "pool_size": 4},
                ],
            )
        },
        idles=({"batch_size": 10, "managers": 1, "pool_size": 1},),
        waiting="SELECT count(*) FROM pgqueuer WHERE status = 'queued'",
        done="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
        # A job that is done leaves the queue's table; one that were still there would be missing here.
        proof="SELECT (SELECT count(DISTINCT job_id) FROM pgqueuer_log) - (SELECT count(*) FROM pgqueuer)",
    ),
)
SYSTEMS = {system.name: system for system in _SYSTEMS}
