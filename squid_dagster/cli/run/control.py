"""`squid run approve|reject|resume|cancel|replay`: commands to one run, or with `--where` to many."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from squid_dagster.cli.place import Place, with_workflows
from squid_dagster.cli.run.bulk import Bulk, Target, bulk_key, new_bulk_id, run_bulk, with_bulk
from squid_dagster.cli.run.display import receipt_facts
from squid_dagster.cli.run.filters import find_runs, where_option
from squid_dagster.cli.run.options import CommandRecord, with_said
from squid_dagster.cli.run.session import naming_modules, open_squid
from squid_dagster.cli.terminal.output import emit

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.inspection import RunSummary
    from squid_dagster.runtime.commands.signals import Receipt

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Act = Callable[["Squid", str, dict[str, Any]], "Receipt"]

_WHERE = "Not one run but all that fit, such as 'status=paused workflow=orders started_before=2026-11-01T00:00:00Z'."


@dataclass(frozen=True, slots=True)
class _Asked:
    """What all of these commands are given."""

    place: Place
    as_json: bool
    run_id: str | None
    where: dict[str, Any] | None
    bulk: Bulk
    said: CommandRecord


def _control(command: _Command) -> _Command:
    """Add what all of these commands take: a run or `--where`, how a bulk goes, who says it, and where."""

    def asked(
        place: Place,
        as_json: bool,
        run_id: str | None,
        where: dict[str, Any] | None,
        bulk: Bulk,
        said: CommandRecord,
        **options: Any,
    ) -> Any:
        return command(_Asked(place, as_json, run_id, where, bulk, said), **options)

    asked.__doc__ = command.__doc__
    # Those of the command itself are shown first.
    asked.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    placed: Any = with_said(with_bulk(with_workflows(asked)))
    placed = click.option("--where", metavar="FILTERS", callback=where_option, help=_WHERE)(placed)
    return cast("_Command", click.argument("run_id", required=False)(placed))


_step = click.option("--step", metavar="NAME", help="Only if it waits at this step: the one that was looked at.")


@click.command()
@_control
@_step
def approve(asked: _Asked, step: str | None) -> None:
    """Approve what RUN_ID waits for, or what every run of --where waits for. Needs -m."""
    _do(asked, "approve", lambda squid, run_id, said: squid.approve(run_id, step=step, **said))


@click.command()
@_control
@_step
def reject(asked: _Asked, step: str | None) -> None:
    """Reject what RUN_ID waits for, or what every run of --where waits for. Needs -m."""
    _do(asked, "reject", lambda squid, run_id, said: squid.reject(run_id, step=step, **said))


@click.command()
@_control
@_step
def resume(asked: _Asked, step: str | None) -> None:
    """Resume RUN_ID, or every run of --where, that was paused. Needs -m."""
    _do(asked, "resume", lambda squid, run_id, said: squid.resume(run_id, step=step, **said))


@click.command()
@_control
@click.option("--cascade", is_flag=True, help="With all open runs below it.")
def cancel(asked: _Asked, cascade: bool) -> None:
    """End RUN_ID as cancelled, or every run of --where. What a running step still gives is refused."""
    _do(asked, "cancel", lambda squid, run_id, said: squid.cancel(run_id, cascade=cascade, **said))


@click.command()
@_control
@click.option("--allow-irreversible", is_flag=True, help="Also where steps were completed that cannot be undone.")
def replay(asked: _Asked, allow_irreversible: bool) -> None:
    """Start a new run with the workflow, trigger and payload of RUN_ID, or of every run of --where. Needs -m."""
    allow = allow_irreversible
    _do(asked, "replay", lambda squid, run_id, said: squid.replay(run_id, allow_irreversible=allow, **said))


def _do(asked: _Asked, verb: str, act: _Act) -> None:
    if (asked.run_id is None) == (asked.where is None):
        raise click.UsageError(f"say what to {verb}: either RUN_ID or --where")
    if asked.where is None and asked.bulk.asked:
        raise click.UsageError("--dry-run and --bulk-id go with --where")
    if asked.where is not None and asked.said.idempotency_key is not None:
        raise click.UsageError("--where makes a key for each run by itself: use --bulk-id instead of --idempotency-key")
    if asked.run_id is not None:
        _one(asked, asked.run_id, verb, act)
    elif asked.where is not None:
        _many(asked, asked.where, verb, act)


def _one(asked: _Asked, run_id: str, verb: str, act: _Act) -> None:
    with open_squid(asked.place) as squid:
        receipt = act(squid, run_id, asked.said.options())
        status = receipt.snapshot.status
    facts = {**receipt_facts(receipt), "status": status, "replayed_from_run_id": None}
    message = f"{verb}: run {receipt.run_id} is {status}"
    if receipt.run_id != run_id:
        facts["replayed_from_run_id"] = run_id
        message = f"{verb}: run {receipt.run_id} started, with the payload of {run_id}"
    emit(asked.as_json, facts, f"{message} (the key was used before)" if receipt.repeated else message)


def _many(asked: _Asked, wanted: dict[str, Any], verb: str, act: _Act) -> None:
    bulk_id = new_bulk_id() if asked.bulk.bulk_id is None else asked.bulk.bulk_id
    with open_squid(asked.place) as squid:
        runs = find_runs(squid, wanted)
        targets = [_target(run) for run in runs if not _made_by(bulk_id, run)]

        def act_on(target: Target, key: str) -> "Receipt":
            with naming_modules(asked.place):
                return act(squid, target.run_id, asked.said.options(key))

        run_bulk(verb, asked.bulk, bulk_id, targets, act_on, asked.as_json)


def _target(run: "RunSummary") -> Target:
    waits = None if run.manual_step is None else f"{run.manual_kind} {run.manual_step!r}"
    return Target(run.run_id, workflow=run.workflow, status=run.status, queue=run.queue, waits_for=waits)


def _made_by(bulk_id: str, run: "RunSummary") -> bool:
    """Return whether a run is a replay that this very bulk has started: a repeat must not replay it again."""
    from squid_dagster.runtime.commands.derived_ids import derived_run_id

    source = run.replayed_from_run_id
    if source is None:
        return False
    return run.run_id == derived_run_id("replay_run", source, bulk_key(bulk_id, Target(source)))
