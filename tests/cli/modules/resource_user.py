"""A workflow whose step asks for a resource: a worker has to be given it, and nobody else."""

from typing import Annotated

from squid_dagster import Resource, Workflow

needy = Workflow("needy")


@needy.step
def speak(greeting: Annotated[str, Resource("greeting")]) -> str:
    """Say what one was given to say."""
    return greeting


RESOURCES = {"greeting": "moin"}
NOTHING = 3


def make_resources() -> dict[str, object]:
    """Give resources as a function that opens connections would."""
    return dict(RESOURCES)
