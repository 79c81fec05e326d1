"""Commits of facts on several threads, on storages that can span threads and on those that cannot.

Where a commit cannot span threads, the order of the appends makes every crash one that recovery repairs.
"""

from collections.abc import Callable, Iterable, Mapping

from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.journal.settlement.member_facts import group_appends
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.threads import ThreadKind, dispatch_thread, parse_thread


def commit_in_order(storage: Storage, facts: Iterable[Fact], revisions: Mapping[str, int]) -> None:
    """Write facts, given the revisions of all run threads that were read; raises `Conflict` if one has moved.

    Where a commit cannot span threads: the runs' threads first, in the order of the facts, so that a crash leaves a
    plan without its schedule, which recovery repairs, and never a schedule without its plan.
    """
    by_thread: dict[str, list[Fact]] = {}
    for fact in facts:
        by_thread.setdefault(fact.thread, []).append(fact)
    if storage.atomic_across_threads:
        appends = [Append(one.thread, one.facts, revisions.get(one.thread)) for one in group_appends(facts)]
        guards = [Append(thread, (), rev) for thread, rev in revisions.items() if rev and thread not in by_thread]
        storage.commit([*appends, *guards])
        return
    for thread in sorted(by_thread, key=lambda thread: not _is_run(thread)):  # queues last
        storage.commit([Append(thread, by_thread[thread], revisions.get(thread))])


def compared_revisions(storage: Storage, revisions: Mapping[str, int], facts: Iterable[Fact]) -> Mapping[str, int]:
    """Return the revisions that a command's commit is compared with.

    Where it cannot span threads, that of a queue counts only if nothing is written before it: a command that is on
    record must not be refused.
    """
    if storage.atomic_across_threads or not any(_is_run(fact.thread) for fact in facts):
        return revisions
    return {thread: revision for thread, revision in revisions.items() if _is_run(thread)}


def commit_group(
    storage: Storage, queue: str, revision: int, facts: list[Fact], planned: list[Append], recorded: Callable[[], None]
) -> None:
    """Write a group as one commit where that is possible; else outcomes first, then runs, then new work.

    `recorded` is called in between, when the outcomes are on record.
    """
    thread = dispatch_thread(queue)
    if not storage.atomic_across_threads:
        if facts:
            storage.commit([Append(thread, facts, revision)])
            recorded()
        for append in sorted(planned, key=lambda append: append.thread == thread):
            storage.commit([append])
        return
    scheduled = [fact for append in planned if append.thread == thread for fact in append.facts]
    together = [Append(thread, [*facts, *scheduled], revision)] if facts or scheduled else []
    together += [append for append in planned if append.thread != thread]
    if together:
        storage.commit(together)


def _is_run(thread: str) -> bool:
    return parse_thread(thread).kind is ThreadKind.RUN
