"""Deployments of workflows with external steps, and counters that are empty for each test."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.plugin.external.definitions import BROKEN, TRAINED
from tests.plugin.external.deployment import Deploy, Deployment


@pytest.fixture
def deploy() -> Iterator[Deploy]:
    """A function that creates a deployment; options are those of `build_external_sensor`."""
    with ExitStack() as stack:
        yield partial(Deployment, stack)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Empty the counters before and after each test."""
    TRAINED.clear()
    BROKEN.clear()
    yield
    TRAINED.clear()
    BROKEN.clear()
