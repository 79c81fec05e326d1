"""`squid queue`: show, pause and resume queues, and put dead letters back."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click

from squid_dagster.cli.place import Place, on_journal
from squid_dagster.cli.queue.display import (
    dead_letter_values,
    dead_letters_table,
    no_work,
    pause_values,
    queue_values,
    queues_table,
    worker_values,
    workers_table,
)
from squid_dagster.cli.run.bulk import Bulk, Target, new_bulk_id, run_bulk, with_bulk
from squid_dagster.cli.run.display import receipt_facts
from squid_dagster.cli.run.options import CommandRecord, with_said
from squid_dagster.cli.run.session import open_squid
from squid_dagster.cli.terminal.output import emit, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from squid_dagster.api import Squid
    from squid_dagster.protocol.folds.attempt import Attempt

_PAGE = 500  # dead letters in one query
_SHOWN = 100  # dead letters that `inspect` shows


@click.group()
def queue() -> None:
    """Show, pause and resume queues, and put dead letters back."""


# --- looking --------------------------------------------------------------------------------------------------------


@queue.command("list")
@on_journal
def list_(place: Place, as_json: bool) -> None:
    """List the queues that have open work, were ever paused, or have a worker."""
    with open_squid(place) as squid:
        known, workers = {row.queue: row for row in squid.queues()}, squid.live_workers()
    names = sorted({*known, *(name for worker in workers for name in worker.queues)})
    rows = [known.get(name) or no_work(name) for name in names]
    shown = queues_table(rows, workers) if rows else "no queues"
    emit(as_json, {"queues": [queue_values(row, workers) for row in rows]}, shown)


@queue.command()
@click.argument("name", metavar="QUEUE")
@on_journal
def inspect(place: Place, as_json: bool, name: str) -> None:
    """Show QUEUE: its open work, who paused it, who serves it, and its dead letters, the first hundred."""
    with open_squid(place) as squid:
        _check_known(squid, name)
        row = next((row for row in squid.queues() if row.queue == name), None) or no_work(name)
        pause = pause_values(squid.inspect_queue(name))
        dead = squid.dead_letters(name, _SHOWN)
        workers = [worker for worker in squid.live_workers() if name in worker.queues]
    document = {
        **queue_values(row, workers),
        "paused_by": pause,
        "workers": [worker_values(worker) for worker in workers],
        "dead_letters": [dead_letter_values(attempt) for attempt in dead],
    }
    shown: list[RenderableType] = [queues_table([row], workers)]
    if pause is not None:
        actor, why = pause["actor"] or "an unknown actor", f": {pause['comment']}" if pause["comment"] else ""
        shown += ["", f"paused by {actor} at {show(datetime.fromisoformat(pause['at']))}{why}"]
    shown += ["", workers_table(workers) if workers else "no worker serves it"]
    if dead:
        shown += ["", dead_letters_table(dead)]
    emit(as_json, document, *shown)


@queue.command()
@click.argument("name", metavar="[QUEUE]", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--after", type=click.IntRange(0), default=0, metavar="POSITION", help="Where the last page ended.")
@on_journal
def dead(place: Place, as_json: bool, name: str | None, limit: int, after: int) -> None:
    """List dead letters: attempts that were delivered too often, and wait for a person; of QUEUE, or of all."""
    with open_squid(place) as squid:
        if name is not None:
            _check_known(squid, name)
        attempts = squid.dead_letters(name, limit + 1, after)
    page = attempts[:limit]
    next_after = page[-1].position if len(attempts) > limit else None
    document = {"dead_letters": [dead_letter_values(attempt) for attempt in page], "next_after": next_after}
    rest = [] if next_after is None else [f"more: the same command with --after {next_after}"]
    emit(as_json, document, dead_letters_table(page) if page else "no dead letters", *rest)


# --- changing -------------------------------------------------------------------------------------------------------


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.option("--new", is_flag=True, help="Also a queue that nothing was put on yet.")
@with_said
@on_journal
def pause(place: Place, as_json: bool, name: str, new: bool, said: CommandRecord) -> None:
    """Pause QUEUE: it gives no claims until it is resumed. Steps that run now go on."""
    _set_paused(place, as_json, name, said, paused=True, new=new)


@queue.command()
@click.argument("name", metavar="QUEUE")
@with_said
@on_journal
def resume(place: Place, as_json: bool, name: str, said: CommandRecord) -> None:
    """Allow claims from QUEUE again."""
    _set_paused(place, as_json, name, said, paused=False, new=False)


def _set_paused(place: Place, as_json: bool, name: str, said: CommandRecord, *, paused: bool, new: bool) -> None:
    with open_squid(place) as squid:
        if not new:
            _check_known(squid, name)
        change = squid.pause_queue if paused else squid.resume_queue
        first = change(name, **said.options())
    text = f"queue {name} is {'paused' if paused else 'open'}"
    if not first:
        text = f"queue {name} was {'paused' if paused else 'resumed'} before with this key; nothing was changed"
    emit(as_json, {"queue": name, "paused": paused, "repeated": not first}, text)


@queue.command()
@click.argument("run_id", required=False)
@click.argument("key", required=False)
@click.option("--all", "everything", is_flag=True, help="Not one, but all dead letters.")
@click.option("--queue", "name", help="With --all: only those of this queue.")
@with_bulk
@with_said
@on_journal
def retry(
    place: Place,
    as_json: bool,
    run_id: str | None,
    key: str | None,
    everything: bool,
    name: str | None,
    bulk: Bulk,
    said: CommandRecord,
) -> None:
    """Put a dead letter of RUN_ID back: that of KEY, or the only one; or with --all all of them, after asking."""
    if everything == (run_id is not None):
        raise click.UsageError("say what to retry: either RUN_ID or --all")
    if not everything and (name is not None or bulk.asked):
        raise click.UsageError("--queue, --dry-run and --bulk-id go with --all")
    if everything and said.idempotency_key is not None:
        raise click.UsageError("--all makes a key for each by itself: use --bulk-id instead of --idempotency-key")
    with open_squid(place) as squid:
        if run_id is None:
            _retry_all(squid, name, bulk, said, as_json)
            return
        receipt = squid.retry_attempt(run_id, key, **said.options())
    text = f"run {run_id}: the dead letter is on its queue again"
    document = {**receipt_facts(receipt), "runnable_key": key}
    emit(as_json, document, f"{text} (the key was used before)" if receipt.repeated else text)


def _retry_all(squid: "Squid", name: str | None, bulk: Bulk, said: CommandRecord, as_json: bool) -> None:
    if name is not None:
        _check_known(squid, name)
    targets = [
        Target(row.run_id, row.runnable_key, workflow=row.workflow, queue=row.queue, step=row.step)
        for row in _dead_letters(squid, name)
    ]
    bulk_id = new_bulk_id() if bulk.bulk_id is None else bulk.bulk_id
    run_bulk(
        "retry",
        bulk,
        bulk_id,
        targets,
        lambda target, key: squid.retry_attempt(target.run_id, target.runnable_key, **said.options(key)),
        as_json,
    )


def _dead_letters(squid: "Squid", name: str | None) -> "Iterator[Attempt]":
    after = 0
    while page := squid.dead_letters(name, _PAGE, after):
        yield from page
        after = page[-1].position


def _check_known(squid: "Squid", name: str) -> None:
    """Raise `NotFound` for a queue that has no facts and no worker: most likely it is misspelt."""
    from squid_dagster.protocol.errors import NotFound
    from squid_dagster.protocol.threads import check_part, dispatch_thread

    known = squid.journal.revision(dispatch_thread(check_part(name, "queue"))) > 0
    if not known and not any(name in worker.queues for worker in squid.live_workers()):
        raise NotFound(f"there is no queue {name!r}: nothing was ever put on it, and no worker serves it")
