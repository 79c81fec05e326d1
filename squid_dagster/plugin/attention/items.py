"""What needs attention, as the journal tells it: runs that wait, are held or quarantined, dead letters, anomalies."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from squid_dagster.api import Squid
from squid_dagster.protocol.anomalies import Anomaly
from squid_dagster.protocol.errors import InvalidArgument, NotFound

WAITING, DEAD_LETTER, HELD, QUARANTINED, ANOMALY = "waiting", "dead_letter", "held", "quarantined", "anomaly"
KINDS = (WAITING, DEAD_LETTER, HELD, QUARANTINED)  # those that are open until somebody acts
PAGE = 500  # looked at in one tick, of each kind; the next tick goes on from there
_STATUSES = {WAITING: "paused", HELD: "held", QUARANTINED: "quarantined"}

Place = str | int | None


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

    def __str__(self) -> str:
        """Say it in one line."""
        run = f"run {self.run_id}" if self.run_id is not None else "no run"
        workflow = f" of {self.workflow}" if self.workflow is not None else ""
        return f"{self.kind.replace('_', ' ')}: {run}{workflow}: {self.summary}"


class Anchor(NamedTuple):
    """The last anomaly that was told, by its place: a journal that has another entry there is another journal."""

    position: int
    thread: str
    seq: int


def look(squid: Squid, kind: str, place: Place) -> tuple[list[AttentionItem], Place]:
    """Give some open things of a kind, still without a summary, and where to go on; None when these were the last.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    if kind == DEAD_LETTER:
        return _dead_letters(squid, place if isinstance(place, int) else 0)
    try:
        page = squid.list_runs(status=_STATUSES[kind], limit=PAGE, cursor=place if isinstance(place, str) else None)
    except InvalidArgument:  # a cursor that is damaged, or of another version of ours: a hint that is worth nothing
        page = squid.list_runs(status=_STATUSES[kind], limit=PAGE)
    found = [
        AttentionItem(
            kind=kind,
            key=f"{run.run_id}:{run.manual_step}:{run.paused_at}" if kind == WAITING else run.run_id,
            run_id=run.run_id,
            workflow=run.workflow,
            queue=run.queue,
            step=run.manual_step,
            since=run.paused_at if kind == WAITING else run.started_at,
        )
        for run in page.runs
    ]
    return found, page.next_cursor


def _dead_letters(squid: Squid, after: int) -> tuple[list[AttentionItem], Place]:
    attempts = squid.dead_letters(limit=PAGE, after=after)
    found = [
        AttentionItem(
            kind=DEAD_LETTER,
            key=each.runnable_key,
            run_id=each.run_id,
            workflow=each.workflow,
            queue=each.queue,
            step=each.step,
            since=each.settled_at,
        )
        for each in attempts
    ]
    return found, attempts[-1].position if len(attempts) == PAGE else None


def described(squid: Squid, item: AttentionItem) -> AttentionItem | None:
    """Give an open thing with its explanation; None when its run is gone.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    if item.run_id is None or item.summary:
        return item
    try:
        found = squid.explain_run(item.run_id)
    except NotFound:
        return None
    calls = tuple(action.call for action in found.next_actions if action.call)
    return replace(item, summary=found.summary, step=item.step or found.step, actions=calls)


def anomalies_after(squid: Squid, anchor: Anchor | None, horizon: int) -> list[Anomaly] | None:
    """Give anomalies after the anchor and up to the horizon, by position; None if the anchor is of another journal."""
    found = squid.runtime.queries.anomalies(None, PAGE, 0 if anchor is None else anchor.position - 1)
    if anchor is not None:
        first = [each for each in found if each.position == anchor.position]
        if not first or (first[0].thread, first[0].seq) != (anchor.thread, anchor.seq):
            return None
        found = found[len(first) :]
    return [each for each in found if each.position <= horizon]


def anomaly_items(
    squid: Squid, anomalies: list[Anomaly], history: int
) -> Iterator[tuple[AttentionItem | None, Anchor]]:
    """Give what to tell of anomalies, several of one run in a row as one, each with its anchor.

    Up to the position `history`, which was there before anybody looked, those of ended runs are not worth a word.
    """
    for run_id, group in groupby(anomalies, key=lambda each: each.run_id):
        several = list(group)
        last = several[-1]
        row = squid.runtime.queries.get_run(run_id) if run_id is not None else None
        ended = row is not None and row.terminal_status is not None
        anchor = Anchor(last.position, last.thread, last.seq)
        if ended and last.position <= history:
            yield None, anchor
            continue
        reasons = Counter(f"{each.reason.value.replace('_', ' ')} ({each.entry_type})" for each in several)
        told = ", ".join(f"{count} × {reason}" if count > 1 else reason for reason, count in reasons.most_common(10))
        where = f"thread {last.thread!r}, revision {last.seq}"
        yield (
            AttentionItem(
                kind=ANOMALY,
                key=f"{several[0].thread}:{several[0].seq}",
                run_id=run_id,
                workflow=None if row is None else row.workflow,
                queue=None if row is None else row.queue,
                summary=f"{len(several)} entries have no effect: {told}; the latest is {where}.",
                actions=() if run_id is None else (f"squid.inspect_run({run_id!r}, include_history=True)",),
            ),
            anchor,
        )
