"""The pages about the architecture name what there is: modules, SQL functions, and calls in the order they are made."""

import importlib
import re
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from squid_dagster import Squid, Workflow
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.docs.blocks import ROOT, documents

PACKAGE = ROOT / "squid_dagster"
PAGES = [name for name in documents() if name.startswith("docs/architecture")]
WALK = "docs/architecture/walk.md"
LONGEST_WALK = 70
_PATH = re.compile(r"`((?:[\w.-]+/)*[\w-]+(?:\.py|\.sql|/))`")
_HOP = re.compile(r"^\| \d+ \| `([\w/]+\.(?:py|sql))` \| (?:`([\w.]+)`)?", re.MULTILINE)


class Hop(NamedTuple):
    """One line of the walk: a function of a module, or an SQL function."""

    module: str
    function: str


class Order(BaseModel):
    """What the workflow of the walk is started with."""

    item: str


def tables() -> list[list[Hop]]:
    """Return the hops of each table of the walk."""
    blocks = (ROOT / WALK).read_text("utf-8").split("\n\n")
    return [hops for block in blocks if (hops := [Hop(*match) for match in _HOP.findall(block)])]


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_a_page_exist(page: str) -> None:
    roots = (ROOT, PACKAGE, PACKAGE / "journal", PACKAGE / "journal/postgres/schema", PACKAGE / "journal/postgres")
    functions = PACKAGE / "journal/postgres/schema/functions"
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    missing = [path for path in _PATH.findall(text) if not any((root / path).exists() for root in (*roots, functions))]
    assert missing == []


def test_the_walk_is_short() -> None:
    hops = [hop for table in tables() for hop in table]
    assert 0 < len(hops) < LONGEST_WALK


def test_every_name_in_the_walk_exists() -> None:
    for module, function in (hop for table in tables() for hop in table):
        assert (PACKAGE / module).exists(), module
        if module.endswith(".py"):
            imported = importlib.import_module(f"squid_dagster.{module.removesuffix('.py').replace('/', '.')}")
            assert callable(reduce(getattr, function.split("."), imported)), (module, function)


def test_each_table_of_the_walk_is_one_stack_of_calls(postgres: PostgresStorage) -> None:
    # given a chain of two steps, and a process that has asked the database for the time before
    shop = Workflow("shop", payload=Order, version="1")

    @shop.step
    def pack(item: str) -> str:
        return f"packed {item}"

    @shop.step
    def send(pack: str) -> str:
        return f"sent: {pack}"

    squid = Squid(postgres, [shop])
    squid.start("shop", {"item": "tea"})
    # when a run is started, executed and inspected
    stacks = Stacks()
    with stacks:
        run_id = squid.start("shop", {"item": "coffee"}).run_id
        while squid.execute_next() is not None:
            pass
        snapshot = squid.inspect_run(run_id)
    # then the calls of each table were under way at the same time, each one below the one before
    assert snapshot.status == "completed"
    for table in tables():
        calls = [hop for hop in table if hop.module.endswith(".py")]
        assert any(_in_order(calls, stack) for stack in stacks), calls


class Stacks:
    """The stacks of the library's calls while a block runs, each as deep as it came."""

    def __init__(self) -> None:
        """Start with none."""
        self._seen: set[tuple[Hop, ...]] = set()

    def __iter__(self) -> Iterator[tuple[Hop, ...]]:
        """Yield each stack once."""
        return iter(self._seen)

    def __enter__(self) -> None:
        """Record calls of this thread."""
        sys.setprofile(self._record)

    def __exit__(self, *_: object) -> None:
        """Stop recording."""
        sys.setprofile(None)

    def _record(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        calls: list[Hop] = []
        caller: FrameType | None = frame
        while caller is not None:
            path = Path(caller.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                calls.append(Hop(str(path.relative_to(PACKAGE)), caller.f_code.co_qualname))
            caller = caller.f_back
        self._seen.add(tuple(reversed(calls)))


def _in_order(calls: list[Hop], stack: tuple[Hop, ...]) -> bool:
    """Return whether a stack holds the calls in this order, others between them or not."""
    rest = iter(stack)
    return all(call in rest for call in calls)
