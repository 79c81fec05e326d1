"""`AttentionItem`: one thing that needs a person. The attention sensor, `squid status` and later pages list the same.

`attention_item` decides it, and is pure; `open_items` pages through the runs and dead letters of a journal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from squid_dagster.inspection.hold import HELD, Worker
from squid_dagster.inspection.run_list import RunSummary, list_runs
from squid_dagster.journal.contract.queries import JournalQueries
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.workflow.registry import Registry

WAITING, DEAD_LETTER, QUARANTINED = "waiting", "dead_letter", "quarantined"
KINDS = (WAITING, DEAD_LETTER, HELD, QUARANTINED)
_STATUSES = {WAITING: "paused", HELD: HELD, QUARANTINED: "quarantined"}
_KINDS = {status: kind for kind, status in _STATUSES.items()}

ItemCursor = str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItem:
    """One thing that a person should know of; all of it may be shown.

    `kind` is waiting, dead_letter, held, quarantined or anomaly; `key` is the same whenever it is the same thing;
    `summary` is a sentence; `actions` are the calls that make sense now, most useful first.
    """

    kind: str
    key: str
    run_id: str | None
    workflow: str | None = None
    queue: str | None = None
    step: str | None = None
    since: datetime | None = None
    summary: str = ""
    actions: tuple[str, ...] = ()
    manual_kind: str | None = None  # of a run that waits: approval or pause

    def __str__(self) -> str:
        """Return the item on one line."""
        run = f"run {self.run_id}" if self.run_id is not None else "no run"
        workflow = f" of {self.workflow}" if self.workflow is not None else ""
        return f"{self.kind.replace('_', ' ')}: {run}{workflow}: {self.summary}"


class ItemPage(NamedTuple):
    """Some items of one kind, still without a summary. `next_cursor` leads to more; None when there are none."""

    items: tuple[AttentionItem, ...]
    next_cursor: ItemCursor


def attention_item(subject: RunSummary | Attempt) -> AttentionItem | None:
    """Return what a person should know of a run, or of a dead letter; None when the run needs none."""
    if isinstance(subject, Attempt):
        return AttentionItem(
            kind=DEAD_LETTER,
            key=subject.runnable_key,
            run_id=subject.run_id,
            workflow=subject.workflow,
            queue=subject.queue,
            step=subject.step,
            since=subject.settled_at,
        )
    kind = _KINDS.get(subject.status)
    if kind is None:
        return None
    waits = kind == WAITING
    return AttentionItem(
        kind=kind,
        key=f"{subject.run_id}:{subject.manual_step}:{subject.paused_at}" if waits else subject.run_id,
        run_id=subject.run_id,
        workflow=subject.workflow,
        queue=subject.queue,
        step=subject.manual_step,
        since=subject.paused_at if waits else subject.started_at,
        manual_kind=subject.manual_kind if waits else None,
    )


def open_items(
    queries: JournalQueries,
    kind: str,
    *,
    limit: int,
    cursor: ItemCursor = None,
    registry: Registry | None = None,
    workers: Sequence[Worker] | None = None,
) -> ItemPage:
    """Return a page of open items of a kind: dead letters oldest first, runs newest first.

    Raises:
        InvalidArgument: an unknown kind, or a cursor of another listing.
    """
    if kind not in KINDS:
        raise InvalidArgument(f"kind {kind!r:.80} is unknown: take one of {', '.join(KINDS)}")
    if cursor is not None and isinstance(cursor, int) != (kind == DEAD_LETTER):
        raise InvalidArgument(f"cursor {cursor!r:.40} is of another kind than {kind!r}: begin without one")
    subjects: Sequence[RunSummary | Attempt]
    next_cursor: ItemCursor
    if kind == DEAD_LETTER:
        attempts = queries.dead_letters(None, limit, cursor if isinstance(cursor, int) else 0)
        subjects, next_cursor = attempts, attempts[-1].position if len(attempts) == limit else None
    else:
        after = cursor if isinstance(cursor, str) else None
        page = list_runs(queries, registry=registry, workers=workers, status=_STATUSES[kind], limit=limit, cursor=after)
        subjects, next_cursor = page.runs, page.next_cursor
    return ItemPage(tuple(item for subject in subjects if (item := attention_item(subject)) is not None), next_cursor)
