"""The pytest plugin: fixtures `squid` and `squid_clock`. Loads the library when a test requests one of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from squid_dagster.testing import SquidFactory, VirtualClock, VirtualSquid

pytest.register_assert_rewrite("squid_dagster.testing.storage_contract")


@pytest.fixture
def squid_clock() -> "VirtualClock":
    """A clock that moves only when told to; every squid of the fixture `squid` uses it."""
    from squid_dagster.testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def squid(squid_clock: "VirtualClock") -> "Iterator[SquidFactory]":
    """Make squids for a test: `app = squid(my_workflow)`. Takes what `make_squid` takes; all are closed at the end."""
    from squid_dagster.testing import make_squid

    made: list[VirtualSquid] = []

    def make(workflows: Any = (), **options: Any) -> "VirtualSquid":
        if options.get("clock") is None:
            # A storage with a clock of its own keeps it.
            options["clock"] = getattr(options.get("storage"), "clock", None) or squid_clock
        app = make_squid(workflows, **options)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()
