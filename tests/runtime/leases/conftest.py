"""Every lease backend in turn."""

import pytest

from tests.runtime.leases.lease_backends import BACKENDS, Make


@pytest.fixture(params=BACKENDS)
def make_backend(request: pytest.FixtureRequest) -> Make:
    """Every backend."""
    return BACKENDS[request.param]
