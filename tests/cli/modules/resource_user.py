"""A workflow whose step asks for a resource: only a worker has to be given it."""

from typing import Annotated

from squid_dagster import Resource, Workflow

needy = Workflow("needy")


@needy.step
def speak(greeting: Annotated[str, Resource("greeting")]) -> str:
    """Return the resource."""
    return greeting


RESOURCES = {"greeting": "moin"}
NOTHING = 3


def make_resources() -> dict[str, object]:
    """Return resources as a function that opens connections does."""
    return dict(RESOURCES)
