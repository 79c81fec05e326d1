"""The storage in memory: steps and commands early and late in one run, and claims beside few attempts and many.

CPU of this process. Steps do nothing.
"""

import time
from statistics import median

from bench.report import Measure, progress
from bench.settle import CHILDREN, SIBLINGS, VISITS
from bench.workloads import EARLY, ROUNDS, WINDOW, calls_about, chain, decided_loop, family, fan, loop, watched
from squid_dagster.api import Squid
from squid_dagster.journal import FoldDispatchStore, MemoryStorage
from squid_dagster.workflow import Workflow

DEPTH = 10_000


def measure(
    visits: int = VISITS, siblings: int = SIBLINGS, children: int = CHILDREN, depth: int = DEPTH
) -> list[Measure]:
    """Compare visits, siblings, children and claims, the second hundred with the last but one; and commands."""
    return [
        _run(loop(visits), f"memory: visit {visits:,} of a loop", visits),
        _run(fan(siblings), f"memory: sibling {siblings:,}", siblings),
        _family(children),
        _claims(depth),
        *_commands(visits),
    ]


def _run(workflow: Workflow, name: str, steps: int) -> Measure:
    squid = Squid(MemoryStorage(), [workflow])
    run_id = squid.start(workflow.name, {}).run_id
    costs = watched(squid, time.process_time, steps)
    assert squid.inspect_run(run_id).status == "completed"
    return _early_and_late(name, costs)


def _family(children: int) -> Measure:
    *workflows, costs = family(time.process_time, children)
    squid = Squid(MemoryStorage(), workflows)
    run_id = squid.start("parent", {"n": children}).run_id
    squid.execute_next()
    assert squid.inspect_run(run_id).status == "completed"
    return _early_and_late(f"memory: child {children:,} of one parent", costs)


def _claims(depth: int) -> Measure:
    squid = Squid(MemoryStorage(), [chain(1)])
    store = FoldDispatchStore(squid.journal)
    shallow = _claim(squid, store, 3 * WINDOW)
    deep = _claim(squid, store, depth)
    return _beside(f"memory: claim beside {depth:,} attempts", deep, shallow, f"one beside {3 * WINDOW:,}")


def _claim(squid: Squid, store: FoldDispatchStore, depth: int) -> float:
    """Return the microseconds of a claim once so many attempts wait, the second hundred of them."""
    squid.start_many("chain_1", [{"n": 1}] * depth)
    for _ in range(2):
        began = time.process_time()
        assert all(store.claim("default", "bench") for _ in range(WINDOW))
    return (time.process_time() - began) / WINDOW * 1e6


def _commands(visits: int) -> list[Measure]:
    """Measure an approval, a keyed signal and an external outcome at late visits, beside the tenth and after."""
    workflow = decided_loop(visits)
    squid = Squid(MemoryStorage(), [workflow])
    run_id = squid.start(workflow.name, {}).run_id
    early, _, late = (_commanded(squid, run_id, 1 + ROUNDS * n) for n in range(3))
    squid.worker(until_idle=True)
    assert squid.inspect_run(run_id).status == "completed"
    return [_beside(f"memory: {name} at visit {visits:,}", late[name], early[name], f"visit {EARLY}") for name in late]


def _commanded(squid: Squid, run_id: str, first: int) -> dict[str, float]:
    """Drain up to each visit with decisions. Return the median microseconds of each command there."""
    spent: dict[str, list[float]] = {}
    for number in range(first, first + ROUNDS):
        squid.worker(until_idle=True)
        progress("commands", number, 3 * ROUNDS)
        for name, call in calls_about(run_id, f"{run_id}:elsewhere:{number}:1").items():
            began = time.process_time()
            call(squid)
            spent.setdefault(name, []).append(time.process_time() - began)
    return {name: median(costs) * 1e6 for name, costs in spent.items()}


def _early_and_late(name: str, costs: list[float]) -> Measure:
    early, late = ((b - a) / WINDOW * 1e6 for a, b in ((costs[1], costs[2]), (costs[-3], costs[-2])))
    return _beside(name, late, early, "the second hundred")


def _beside(name: str, value: float, base: float, what: str) -> Measure:
    return Measure(
        name, "times as much CPU", value / base, at_most=1.5, detail=f"{value:,.0f} us beside {base:,.0f} us of {what}"
    )
