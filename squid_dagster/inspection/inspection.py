"""`Inspection`: everything that can be looked at in a journal. `Squid` is one, with commands beside.

Writes nothing, so that it works on a standby and with a role that may only read. Answers are redacted. Every answer
about one run is made from one `Case`, so that status and reason agree, with those of a listing too.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Unpack

from squid_dagster.inspection.attention import Attention, attention
from squid_dagster.inspection.attention_items import ItemCursor, ItemPage, open_items
from squid_dagster.inspection.explain.case import Case, QueueState, make_case
from squid_dagster.inspection.explain.explanation import Explanation, explain
from squid_dagster.inspection.graph.run_graph import RunGraph, graph
from squid_dagster.inspection.hold import HELD
from squid_dagster.inspection.queue_state import read_queue_state
from squid_dagster.inspection.run_list import DEFAULT_LIMIT, RunFilters, RunPage, list_runs
from squid_dagster.inspection.run_record import Record, read_record
from squid_dagster.inspection.snapshot.snapshot import RunSnapshot, snapshot
from squid_dagster.inspection.timeline import TimelineEvent, timeline
from squid_dagster.journal.contract.queries import JournalQueries, QueueRow
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.contract.worker_liveness import WorkerLiveness, WorkerRow
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.workflow.registry import Registry

ALIVE_WITHIN = timedelta(seconds=20)
"""A worker is alive if its liveness row is younger."""


@checks_arguments
class Inspection:
    """A journal to look at.

    A run is asked for as it is now, as it was at a revision of its own thread (`at_revision`), or as it was at a time
    (`at`): these are its own facts and those of its queue up to there. A claim that was alive then is shown alive. Of
    the past, no worker and no pause of a queue is known, and no run is held. A time to come is answered as now.
    """

    def __init__(
        self, storage: Storage, queries: JournalQueries, liveness: WorkerLiveness, definitions: Registry | None = None
    ) -> None:
        """Bind to a journal. `definitions` decide which runs are held; None: nothing is said of definitions."""
        self._storage, self._queries, self._liveness = storage, queries, liveness
        self._definitions = definitions

    @property
    def journal(self) -> Storage:
        """The storage that holds all facts."""
        return self._storage

    def inspect_run(
        self,
        run_id: str,
        at_revision: int | None = None,
        include_history: bool = False,
        *,
        at: datetime | None = None,
    ) -> RunSnapshot:
        """Return everything that is known of a run; with history, all of its facts.

        >>> squid.inspect_run(run_id).status
        'paused'
        >>> squid.inspect_run(run_id, at_revision=1).status
        'new'

        Raises:
            NotFound: no such run, or none at that time.
            InvalidArgument: a revision that it does not have, a time without a zone, or both.
        """
        case = self._case(run_id, at_revision, at)
        case = self._with_queue_state(case, case.visible, case.expired)
        return snapshot(case, include_history=include_history)

    def explain_run(self, run_id: str, at_revision: int | None = None, *, at: datetime | None = None) -> Explanation:
        """Return why a run is where it is, which facts show that, and what can be done. Raises as `inspect_run`.

        >>> squid.explain_run(run_id).reason
        'manual_intervention_required'
        """
        case = self._case(run_id, at_revision, at)
        return explain(self._with_queue_state(case, case.visible, case.expired, case.external, case.scheduled))

    def inspect_run_graph(
        self,
        run_id: str,
        at_revision: int | None = None,
        include_history: bool = False,
        *,
        at: datetime | None = None,
    ) -> RunGraph:
        """Return a run's steps and routes; with history, also inputs and results of steps. Raises as `inspect_run`.

        >>> squid.inspect_run_graph(run_id).current_node_ids
        ('review',)
        """
        return graph(self._case(run_id, at_revision, at), include_history=include_history)

    def inspect_run_timeline(
        self, run_id: str, at_revision: int | None = None, *, at: datetime | None = None
    ) -> list[TimelineEvent]:
        """Return what happened to a run, oldest first. Raises as `inspect_run`.

        >>> squid.inspect_run_timeline(run_id)[-1].summary
        "Step 'review' waits for an approval."
        """
        return timeline(self._record(run_id, at_revision, at))

    def list_runs(
        self, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None, **filters: Unpack[RunFilters]
    ) -> RunPage:
        """Return runs, newest first, and the cursor of the next page. Which runs are held is judged line by line.

        >>> [run.run_id for run in squid.list_runs(workflow="orders", status="paused").runs] == [run_id]
        True

        Raises:
            InvalidArgument: a bad filter, limit or cursor.
        """
        workers = self.live_workers()
        return list_runs(
            self._queries, registry=self._definitions, workers=workers, limit=limit, cursor=cursor, **filters
        )

    def dead_letters(self, queue: str | None = None, limit: int = 100, after: int = 0) -> list[Attempt]:
        """Return attempts that were delivered too often and wait for a person, by `position`, those after `after`.

        >>> squid.dead_letters()
        []
        """
        return self._queries.dead_letters(queue, limit, after)

    def queues(self) -> list[QueueRow]:
        """Return the open work of each queue that has any, or was ever paused, by name.

        >>> squid.queues()
        []
        """
        return self._queries.queues()

    def inspect_queue(self, queue: str) -> QueueState:
        """Return whether a queue is paused, since when, and the fact with the latest comment on that.

        >>> squid.inspect_queue("default").paused
        False
        """
        return read_queue_state(self._storage, self._queries, queue)

    def live_workers(self) -> list[WorkerRow]:
        """Return the workers whose liveness row is younger than `ALIVE_WITHIN`, by id.

        >>> squid.live_workers()
        []
        """
        return self._liveness.workers(ALIVE_WITHIN)

    def attention(self) -> list[Attention]:
        """Return what needs a person, one line for each kind of trouble, most urgent first.

        >>> [(trouble.kind, trouble.run_ids == (run_id,)) for trouble in squid.attention()]
        [('waiting', True)]
        """
        queues, workers, now = self.queues(), self.live_workers(), self._storage.now()
        return attention(self._storage, self._queries, queues, workers, now, self._definitions)

    def attention_items(self, kind: str, limit: int = 100, cursor: ItemCursor = None) -> ItemPage:
        """Return a page of what needs a person, of one kind: waiting, dead_letter, held or quarantined.

        >>> [item.step for item in squid.attention_items("waiting").items if item.run_id == run_id]
        ['review']

        Raises:
            InvalidArgument: an unknown kind, a bad limit, or a cursor of another listing.
        """
        workers = self.live_workers() if kind == HELD else None
        return open_items(self._queries, kind, limit=limit, cursor=cursor, registry=self._definitions, workers=workers)

    def _record(self, run_id: str, at_revision: int | None, at: datetime | None) -> Record:
        if at is not None and at_revision is None and at >= self._storage.now():
            at = None  # no fact is of then
        return read_record(self._storage, run_id, at_revision, at)

    def _case(self, run_id: str, at_revision: int | None, at: datetime | None) -> Case:
        now = self._storage.now()
        record = self._record(run_id, at_revision, at)
        if record.as_of is not None or record.unit.run.stopped:
            return make_case(record, now, registry=self._definitions)
        return make_case(record, now, registry=self._definitions, workers=self.live_workers())

    def _with_queue_state(self, case: Case, *waiting: Sequence[Attempt]) -> Case:
        """Return the case with the state of its queue, if it is about the present and any attempt waits there."""
        if case.workers is None or case.queue is None or not any(waiting):
            return case
        return replace(case, queue_state=self.inspect_queue(case.queue))
