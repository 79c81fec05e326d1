"""Items that the attention sensor reports: runs and dead letters that need a person, and new anomalies."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from squid_dagster.api import Squid
from squid_dagster.inspection.attention_items import AttentionItem, ItemCursor, ItemPage
from squid_dagster.protocol.anomalies import Anomaly
from squid_dagster.protocol.errors import InvalidArgument, NotFound

ANOMALY = "anomaly"
PAGE = 500  # read in one tick, of each kind; the next tick goes on from there


class AnomalyPosition(NamedTuple):
    """The place of the last reported anomaly: a journal that has another entry there is another journal."""

    position: int
    thread: str
    seq: int


def look(squid: Squid, kind: str, cursor: ItemCursor) -> ItemPage:
    """Return a page of open items of a kind; from the beginning where the cursor, a hint, is damaged.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    try:
        return squid.attention_items(kind, PAGE, cursor)
    except InvalidArgument:
        return squid.attention_items(kind, PAGE)


def described(squid: Squid, item: AttentionItem) -> AttentionItem | None:
    """Return an item with its explanation; None when its run is gone.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    if item.run_id is None or item.summary:
        return item
    try:
        explanation = squid.explain_run(item.run_id)
    except NotFound:
        return None
    calls = tuple(action.call for action in explanation.next_actions if action.call)
    return replace(item, summary=explanation.summary, step=item.step or explanation.step, actions=calls)


def anomalies_after(squid: Squid, anchor: AnomalyPosition | None, horizon: int) -> list[Anomaly] | None:
    """Return anomalies after the anchor up to the horizon, by position; None if the anchor is of another journal."""
    anomalies = squid.runtime.queries.anomalies(None, PAGE, 0 if anchor is None else anchor.position - 1)
    if anchor is not None:
        first = [anomaly for anomaly in anomalies if anomaly.position == anchor.position]
        if not first or (first[0].thread, first[0].seq) != (anchor.thread, anchor.seq):
            return None
        anomalies = anomalies[len(first) :]
    return [anomaly for anomaly in anomalies if anomaly.position <= horizon]


def anomaly_items(
    squid: Squid, anomalies: list[Anomaly], history: int
) -> Iterator[tuple[AttentionItem | None, AnomalyPosition]]:
    """Yield an item for anomalies, several of one run in a row as one, each with its anchor.

    Up to the position `history`, that of the first tick, anomalies of ended runs give no item.
    """
    for run_id, group in groupby(anomalies, key=lambda anomaly: anomaly.run_id):
        several = list(group)
        last = several[-1]
        row = squid.runtime.queries.get_run(run_id) if run_id is not None else None
        ended = row is not None and row.terminal_status is not None
        anchor = AnomalyPosition(last.position, last.thread, last.seq)
        if ended and last.position <= history:
            yield None, anchor
            continue
        reasons = Counter(f"{anomaly.reason.value.replace('_', ' ')} ({anomaly.entry_type})" for anomaly in several)
        counted = ", ".join(f"{count} × {reason}" if count > 1 else reason for reason, count in reasons.most_common(10))
        where = f"thread {last.thread!r}, revision {last.seq}"
        yield (
            AttentionItem(
                kind=ANOMALY,
                key=f"{several[0].thread}:{several[0].seq}",
                run_id=run_id,
                workflow=None if row is None else row.workflow,
                queue=None if row is None else row.queue,
                summary=f"{len(several)} entries have no effect: {counted}; the latest is {where}.",
                actions=() if run_id is None else (f"squid.inspect_run({run_id!r}, include_history=True)",),
            ),
            anchor,
        )
