"""Journals of every earlier schema version with open runs in them: upgraded, they equal new ones, and all runs end."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from squid_dagster.journal import MemoryStorage, verify
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.schema.drift import drift
from squid_dagster.journal.postgres.schema.names import CODE_VERSION
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import SchemaOutdated
from squid_dagster.testing import advance, check_invariants, drain, make_squid
from squid_dagster.workflow import Retry, StepContext, Workflow
from tests.facts import T0
from tests.journal.access import Opener, all_entries, assert_views_agree_with_the_journal
from tests.journal.schema.released_schemas import EARLIER_VERSIONS, make_released, written_by_this_code

_AN_HOUR = timedelta(hours=1)


def purchase() -> Workflow:
    """Check, ask a person, ship."""
    workflow = Workflow("purchase", version="1")
    workflow.step(name="check")(nothing)
    workflow.approval("review")
    workflow.step(name="ship")(nothing)
    workflow.route("check", to="review")
    workflow.route("review", to="ship")
    workflow.route("review", on="error", to="fail")
    workflow.route("ship", to="complete")
    return workflow


def nothing() -> None:
    """Return nothing."""


def parent() -> Workflow:
    """Start a child, wait, and go on."""
    workflow = Workflow("parent", version="1")

    @workflow.step
    def delegate(ctx: StepContext) -> str:
        return str(ctx.start_child_run("fan", child_key="a").run_id)

    workflow.wait("rest", _AN_HOUR)
    workflow.route(delegate, to="rest")
    workflow.route("rest", to="complete")
    return workflow


def fan() -> Workflow:
    """Return a workflow of two steps side by side, one of which fails at first, and one that joins them."""
    workflow = Workflow("fan", version="1")

    @workflow.step(retry=Retry(max_attempts=2, initial=_AN_HOUR))
    def left(ctx: StepContext) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("not yet")

    workflow.step(name="right")(nothing)
    workflow.step(name="join", after=["left", "right"])(nothing)
    return workflow


WORKFLOWS = (purchase(), parent(), fan())

# By run, which is on a queue of its own name: its workflow, and how many attempts of it are executed.
RUNS = {
    "scheduled": ("purchase", 0),
    "claimed": ("purchase", 0),
    "waiting": ("purchase", 1),
    "parent-begun": ("parent", 0),
    "parent-of-one": ("parent", 1),
    "retried": ("fan", 1),
    "before-its-join": ("fan", 2),
    "at-its-join": ("fan", 3),
    "ended": ("fan", 4),
}


class RecordingStorage(MemoryStorage):
    """A storage that records its commits."""

    def __init__(self, clock: VirtualClock) -> None:
        """Create an empty journal."""
        super().__init__(clock)
        self.clock = clock
        self.commits: list[Sequence[Append]] = []

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write, then record."""
        receipt = super().commit(appends, commit_id)
        self.commits.append(appends)
        return receipt


def populate(storage: PostgresStorage) -> None:
    """Commit what planner and workers commit for these runs."""
    recording = RecordingStorage(VirtualClock(T0))
    with make_squid(WORKFLOWS, storage=recording) as squid:
        for run_id, (workflow, executions) in RUNS.items():
            squid.start(workflow, run_id=run_id, queue=run_id)
            for execution in range(executions):
                if execution == 2:
                    advance(squid, _AN_HOUR)  # over the retry
                assert squid.execute_next(run_id) is not None
        assert squid.dispatch_agent("claimed").claim_next("a worker that is gone") is not None
    for appends in recording.commits:
        storage.commit(appends)


@pytest.mark.parametrize("version", EARLIER_VERSIONS)
def test_a_journal_of_every_earlier_version_is_upgraded_and_workers_finish_its_open_runs(
    open_storage: Opener, version: int
) -> None:
    # given a journal of that version, with runs at every point of their lives
    storage = make_released(open_storage(), version)
    with written_by_this_code(storage, version):
        populate(storage)
    before, cut = all_entries(storage), storage.cut()
    with pytest.raises(SchemaOutdated, match=f"at version {version}"):
        storage.check()
    # when it is upgraded
    assert storage.upgrade() == storage.check() == CODE_VERSION
    # then it is as a new one, no fact has changed, and the views still say what the facts say
    assert drift(storage) == []
    assert all_entries(storage) == before
    assert storage.cut() == cut == before[-1].position
    assert verify(storage) == []
    assert_views_agree_with_the_journal(storage)
    # and every run goes on to its end, with the child that one of them has and the one that another one starts
    later = PostgresStorage(storage.engine, storage.schema, clock=VirtualClock(T0 + timedelta(days=1)))
    with make_squid(WORKFLOWS, storage=later) as squid:
        for _ in range(3):  # over the rest of a parent and the retries of its child
            drain(squid)
            for run in squid.list_runs(status="paused").runs:
                squid.approve(run.run_id, actor="ada")
            advance(squid, _AN_HOUR)
        drain(squid)
        ends = {run.run_id: run.status for run in squid.list_runs().runs}
        assert set(ends.values()) == {"completed"}
        assert len(ends) == len(RUNS) + 2
    assert verify(storage) == []
    assert check_invariants(storage) == []
