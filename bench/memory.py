"""The storage in memory: settled steps early and late in one run, and claims beside few attempts and many.

CPU of this process. Steps do nothing.
"""

import time

from bench.report import Measure
from bench.settle import CHILDREN, SIBLINGS, VISITS, WINDOW, chain, family, fan, loop, watched
from squid_dagster.api import Squid
from squid_dagster.journal import FoldDispatchStore, MemoryStorage
from squid_dagster.workflow import Workflow

DEPTH = 10_000


def measure(
    visits: int = VISITS, siblings: int = SIBLINGS, children: int = CHILDREN, depth: int = DEPTH
) -> list[Measure]:
    """Compare visits, siblings, children and claims, the second hundred with the last but one."""
    return [
        _run(loop(visits), f"memory: visit {visits:,} of a loop", visits),
        _run(fan(siblings), f"memory: sibling {siblings:,}", siblings),
        _family(children),
        _claims(depth),
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


def _early_and_late(name: str, costs: list[float]) -> Measure:
    early, late = ((b - a) / WINDOW * 1e6 for a, b in ((costs[1], costs[2]), (costs[-3], costs[-2])))
    return _beside(name, late, early, "the second hundred")


def _beside(name: str, value: float, base: float, what: str) -> Measure:
    return Measure(
        name, "times as much CPU", value / base, at_most=1.5, detail=f"{value:,.0f} us beside {base:,.0f} us of {what}"
    )
