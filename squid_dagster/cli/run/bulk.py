"""One command to many runs: the count is shown and confirmed, and each run gets a command of its own.

Every command has an idempotency key that follows from the bulk's id: after a crash, the same bulk id does the rest and
nothing twice. A run that refuses stops no other one.
"""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from uuid import uuid4

import click

from squid_dagster.cli.app import REFUSED, Refused
from squid_dagster.cli.option_types import name_option
from squid_dagster.cli.terminal.output import emit, progress, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from squid_dagster.runtime.commands.signals import Receipt

_Command = TypeVar("_Command", bound=Callable[..., Any])

_SHOWN = 20  # lines of a list that people are shown


class Target(NamedTuple):
    """One run, and of a dead letter the key of its attempt; and what people are shown of it."""

    run_id: str
    runnable_key: str | None = None
    workflow: str | None = None
    status: str | None = None
    queue: str | None = None
    step: str | None = None  # of a dead letter
    waits_for: str | None = None  # what a person is to decide

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        step = None if self.step is None else f"step {self.step!r}"
        queue = None if self.queue is None else f"queue {self.queue}"
        return ", ".join(part for part in (self.workflow, self.status, step, self.waits_for, queue) if part is not None)


@dataclass(frozen=True, slots=True)
class Bulk:
    """How a bulk was asked for. `bulk_id` is None where one is to be made up."""

    dry_run: bool = False
    yes: bool = False
    bulk_id: str | None = None

    @property
    def asked(self) -> bool:
        """Whether anything was said that only a bulk knows; `--yes` does no harm elsewhere."""
        return self.dry_run or self.bulk_id is not None


class BulkResult(NamedTuple):
    """What came of one target: done, repeated (an earlier try had done it) or refused."""

    target: Target
    outcome: str
    run_id: str  # of a replay, the new run
    error: str | None = None
    message: str | None = None


def with_bulk(command: _Command) -> _Command:
    """Add `--dry-run`, `--yes` and `--bulk-id`; the command is called with a `bulk`."""

    @functools.wraps(command)
    def bulked(*args: Any, dry_run: bool, yes: bool, bulk_id: str | None, **options: Any) -> Any:
        return command(*args, bulk=Bulk(dry_run, yes, bulk_id), **options)

    bulk_id_help = "The id of a bulk that was cut off: does the rest, and nothing twice."
    placed: Any = click.option("--bulk-id", metavar="ID", callback=name_option, help=bulk_id_help)(bulked)
    placed = click.option("-y", "--yes", is_flag=True, help="Do it without asking.")(placed)
    placed = click.option("--dry-run", is_flag=True, help="Show what it would be about, and change nothing.")(placed)
    return cast("_Command", placed)


def bulk_key(bulk_id: str, target: Target) -> str:
    """Return the idempotency key of one command of a bulk."""
    return ":".join(part for part in ("bulk", bulk_id, target.run_id, target.runnable_key) if part is not None)


def new_bulk_id() -> str:
    """Return a random id."""
    return uuid4().hex[:12]


def run_bulk(
    verb: str,
    bulk: Bulk,
    bulk_id: str,
    targets: Sequence[Target],
    act: "Callable[[Target, str], Receipt]",
    as_json: bool,
) -> None:
    """Run a command for all targets, after asking, and print the result of each; exit code 1 if any refused.

    `act` is given a target and the idempotency key of its command.

    Raises:
        Refused: it was not confirmed, or stdin is no terminal; nothing was changed.
        SquidError: the database is gone; the message names the bulk id by which the rest can be done.
    """
    facts = {"bulk_id": bulk_id, "command": verb, "dry_run": bulk.dry_run, "matched": len(targets)}
    if bulk.dry_run or not targets:
        runs = [_told(BulkResult(target, "matched", target.run_id)) for target in targets]
        counts = {"done": 0, "repeated": 0, "refused": 0}
        emit(as_json, {**facts, **counts, "runs": runs}, *_matched(verb, targets))
        return
    _confirm(verb, len(targets), bulk.yes)
    if bulk.bulk_id is None:
        # Before anything is done: a bulk that is cut off can then be continued.
        notice = f"bulk id {bulk_id}: after a crash, the same command with --bulk-id {bulk_id} does the rest"
        click.echo(json.dumps({"bulk_id": bulk_id}) if as_json else notice, err=True)
    done = _act_on_all(verb, bulk_id, targets, act)
    counts = {name: sum(result.outcome == name for result in done) for name in ("done", "repeated", "refused")}
    emit(as_json, {**facts, **counts, "runs": [_told(result) for result in done]}, *_summary(verb, counts, done))
    if counts["refused"]:
        click.get_current_context().exit(REFUSED)


def _confirm(verb: str, count: int, yes: bool) -> None:
    if yes:
        return
    what = f"{verb} {count} {'run' if count == 1 else 'runs'}"
    if not sys.stdin.isatty():
        raise Refused(f"this would {what}, and nobody is there to ask: add --yes, or --dry-run to see them")
    if not click.confirm(f"This will {what}. Go on?", err=True):
        raise Refused("not confirmed: nothing was changed")


def _act_on_all(
    verb: str, bulk_id: str, targets: Sequence[Target], act: "Callable[[Target, str], Receipt]"
) -> list[BulkResult]:
    from squid_dagster.protocol.errors import SquidError, StorageUnavailable
    from squid_dagster.redaction import redacted_text

    done: list[BulkResult] = []
    with progress(verb, len(targets)) as so_far:
        for number, target in enumerate(targets, 1):
            try:
                receipt = act(target, bulk_key(bulk_id, target))
            except StorageUnavailable as error:
                left = f"{number - 1} of {len(targets)} runs are done; --bulk-id {bulk_id} does the rest"
                raise StorageUnavailable(f"{error} ({left})") from error
            except SquidError as error:
                line = " ".join(redacted_text(str(error)).split())
                done.append(BulkResult(target, "refused", target.run_id, type(error).__name__, line))
            else:
                done.append(BulkResult(target, "repeated" if receipt.repeated else "done", receipt.run_id))
            so_far(number)
    return done


def _told(done: BulkResult) -> dict[str, Any]:
    """Return what came of one target as JSON values, always with the same keys."""
    new = done.run_id if done.run_id != done.target.run_id else None
    return {
        **done.target._asdict(),
        "outcome": done.outcome,
        "new_run_id": new,
        "error": done.error,
        "message": done.message,
    }


def _matched(verb: str, targets: Sequence[Target]) -> "list[RenderableType]":
    if not targets:
        return ["nothing matches"]
    rows = [(target.run_id, target.about) for target in targets[:_SHOWN]]
    hidden = len(targets) - len(rows)
    rest = [f"and {hidden} more"] if hidden else []
    return [f"would {verb} {len(targets)}; nothing was changed", "", table(("run", "about"), rows), *rest]


def _summary(verb: str, counts: dict[str, int], done: Sequence[BulkResult]) -> "list[RenderableType]":
    counted = ", ".join(f"{count} {name}" for name, count in counts.items())
    refused = [(result.target.run_id, result.message) for result in done if result.outcome == "refused"]
    if not refused:
        return [f"{verb}: {counted}"]
    hidden = len(refused) - _SHOWN
    rest = [f"and {hidden} more"] if hidden > 0 else []
    return [f"{verb}: {counted}", "", table(("refused", "why"), refused[:_SHOWN]), *rest]
