"""The examples in docstrings of public methods: each is run, and no public method is without one."""

import doctest
import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.agents import DispatchAgent, WorkflowAgent
from squid_dagster.api import Squid
from squid_dagster.backlog import Backlog
from squid_dagster.inspection.inspection import Inspection
from squid_dagster.journal import MemoryStorage, PostgresStorage
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.testing import VirtualSquid, advance, make_squid
from squid_dagster.workflow import Cron, Workflow

CLASSES = (Squid, Inspection, DispatchAgent, WorkflowAgent, Backlog, Worker)
WITHOUT = {"Squid.close", "DispatchAgent.__init__", "WorkflowAgent.__init__", "Backlog.__init__", "Worker.__init__"}
WITHOUT |= {"Inspection.__init__", "Worker.run", "Worker.stop"}  # made and called by `Squid`


class Order(BaseModel):
    item: str = "tea"


def _check(item: str) -> str:
    return item


def _workflows() -> list[Workflow]:
    orders = Workflow("orders", payload=Order)
    orders.step(name="check", max_deliveries=1)(_check)
    orders.approval("review")
    orders.route("check", to="review")
    orders.route("review", to="complete")
    orders.route("review", on="error", to="fail")
    nightly = Workflow("nightly", triggers=[Cron("0 4 * * *", name="night")])
    nightly.pause("rest")
    nightly.route("rest", to="complete")
    return [orders, nightly]


WORKFLOWS = _workflows()


def namespace(wanted: str) -> dict[str, Any]:
    """Return what an example may use: a journal in memory with runs in several states; as little as it names."""
    squid: VirtualSquid = make_squid(WORKFLOWS)
    names: dict[str, Any] = {
        "Squid": Squid,
        "MemoryStorage": MemoryStorage,
        "timedelta": timedelta,
        "squid": squid,
        "orders": WORKFLOWS[0],
        "agent": squid.dispatch_agent(),
        "backlog": squid.backlog,
    }
    if re.search(r"\bdead_letter\b", wanted):
        squid.start("orders")
        squid.dispatch_agent().claim_next("ada", lease=timedelta(seconds=1))
        advance(squid, timedelta(seconds=2))
        squid.recover()
        squid.dispatch_agent().claim_next("ada")
        names["dead_letter"] = next(iter(squid.dead_letters()), None)
    if "paused_run_id" in wanted:
        names["paused_run_id"] = squid.start("nightly").run_id
    if re.search(r"\brun_id\b", wanted):
        names["run_id"] = squid.start("orders", {"item": "tea"}).run_id
        squid.execute_next()
    if any(word in wanted for word in ("claim_next", "execute_next", "worker(until", "claim_many", "visible_attempts")):
        squid.start("orders", {"item": "tea"})
    return names


def examples() -> Iterator[tuple[str, Any]]:
    """Yield every public method of the classes, by name."""
    for cls in CLASSES:
        for name, member in vars(cls).items():
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function) and (not name.startswith("_") or name == "__init__"):
                yield f"{cls.__name__}.{name}", function


METHODS = dict(examples())


def run_example(name: str, names: dict[str, Any]) -> None:
    """Run the example of a method's docstring, and fail with what it printed instead."""
    text = inspect.getdoc(METHODS[name]) or ""
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert result.failed == 0, "".join(said)
    assert result.attempted > 0


@pytest.mark.parametrize("name", sorted(METHODS.keys() - WITHOUT - {"Squid.connect"}))
def test_the_example_of_a_public_method_works(name: str) -> None:
    run_example(name, namespace(inspect.getdoc(METHODS[name]) or ""))


def test_the_example_of_connect_works(postgres_url: str, schema_names: Iterator[str]) -> None:
    schema = next(schema_names)
    storage = PostgresStorage(postgres_url, schema)
    storage.upgrade()
    storage.close()
    run_example("Squid.connect", {**namespace(""), "url": postgres_url, "schema": schema})
