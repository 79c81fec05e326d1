"""The facts that list runs: in the index of their workflow, and in the catalog of all runs."""

from typing import Annotated, Literal

from pydantic import Field

from squid_dagster.protocol.facts.base import FactBase, Part
from squid_dagster.protocol.threads import CATALOG_THREAD, run_index_thread


class _Listed(FactBase):
    run_id: Part
    workflow: Part
    queue: Part


class RunIndexed(_Listed):
    """The run can be found under its workflow."""

    type: Literal["run_indexed"] = "run_indexed"

    @property
    def thread(self) -> str:
        """The workflow's index thread."""
        return run_index_thread(self.workflow)


class RunCataloged(_Listed):
    """The run can be found among all runs."""

    type: Literal["run_cataloged"] = "run_cataloged"

    @property
    def thread(self) -> str:
        """The one catalog thread."""
        return CATALOG_THREAD


IndexFact = Annotated[RunIndexed | RunCataloged, Field(discriminator="type")]
