"""`squid worker` runs steps until it is stopped; `squid recover` closes what crashes have left open."""

import json
import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from squid_dagster.cli.app import REFUSED
from squid_dagster.cli.place import Place, with_workflows
from squid_dagster.cli.run.options import Seconds
from squid_dagster.cli.run.session import need_modules, open_squid
from squid_dagster.cli.terminal.output import emit, table
from squid_dagster.cli.terminal.printable_text import printable
from squid_dagster.cli.terminal.stderr_log import logging_to_stderr
from squid_dagster.limits import MAX_CLAIMS, MAX_LEASE

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.runtime.recovery.recovery import RecoveryReport
    from squid_dagster.runtime.worker.report import WorkerReport

_LEVELS = ("debug", "info", "warning", "error")
_seconds = Seconds(min_open=True)


@click.command()
@click.option("--queue", "queues", multiple=True, help="A queue to serve; may be given more than once.")
@click.option(
    "--concurrency", type=click.IntRange(1, MAX_CLAIMS), default=10, show_default=True, help="Steps at a time."
)
@click.option("--until-idle", is_flag=True, help="End when nothing is due.")
@click.option(
    "--lease",
    type=Seconds(0, MAX_LEASE.total_seconds(), min_open=True),
    metavar="SECONDS",
    help="How long a claim lasts without a heartbeat.",
)
@click.option(
    "--grace",
    type=Seconds(),
    metavar="SECONDS",
    help="How long steps may take to finish when it is stopped.",
)
@click.option("--max-age", type=_seconds, metavar="SECONDS", help="End after so long, when the running steps are done.")
@click.option(
    "--wait",
    type=Seconds(),
    metavar="SECONDS",
    help="How long to wait for a database that is not there, or just starting; 0: fail at once.  [default: for ever]",
)
@click.option("--no-housekeeping", is_flag=True, help="Leave recovery and crons to others.")
@click.option("--resources", metavar="MODULE:NAME", help="A mapping, or a function that gives one, for the steps.")
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True, help="On stderr.")
@with_workflows
def worker(
    place: Place,
    as_json: bool,
    queues: tuple[str, ...],
    resources: str | None,
    log_level: str,
    no_housekeeping: bool,
    wait: float | None,
    **options: Any,
) -> None:
    """Run the steps of the workflows of -m until stopped, and then print a report.

    SIGTERM and Ctrl-C let running steps finish; a second time gives them back at once. A worker that starts before its
    database waits for it; one whose schema is missing or outdated does not. Exit code 1 if it stopped by itself, since
    too many cancelled steps do not end: start it again.
    """
    need_modules(place, "a worker")
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in {"lease", "grace", "max_age"} & chosen.keys():
        chosen[name] = timedelta(seconds=chosen[name])
    if no_housekeeping:
        chosen["housekeeping"] = None
    given = _resources(place, resources)
    with ExitStack() as opened:
        try:
            with _stop_signals(), logging_to_stderr("error" if log_level == "error" else "warning"):
                patience = None if wait is None else timedelta(seconds=wait)
                squid = opened.enter_context(place.squid(given, patience))
        except _Stopped:
            emit(as_json, _report_values(_empty_report()), "stopped before the database was there")
            return
        worker = squid.new_worker(list(dict.fromkeys(queues)) or None, **chosen)
        _print_served(squid, worker.worker_id, queues or (squid.runtime.queue,), as_json)
        with logging_to_stderr(log_level):
            report = worker.run()
    emit(as_json, _report_values(report), str(report))
    if report.gave_up is not None:
        click.echo(f"it stopped by itself: {report.gave_up}", err=True)
        click.get_current_context().exit(REFUSED)


class _Stopped(BaseException):
    """A signal to stop, before any step has started."""


@contextmanager
def _stop_signals() -> Iterator[None]:
    """Raise `_Stopped` in the block, in the main thread, on SIGTERM or SIGINT."""

    def stop(*_: object) -> None:
        raise _Stopped

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _empty_report() -> "WorkerReport":
    from squid_dagster.runtime.worker.report import WorkerReport

    return WorkerReport("")


def _print_served(squid: "Squid", worker_id: str, queues: tuple[str, ...], as_json: bool) -> None:
    """Print queues and workflows: on stderr if stdout is for the JSON document at the end."""
    workflows = sorted({definition.name for definition in squid.runtime.registry})
    if as_json:
        document = {"worker_id": worker_id, "queues": list(queues), "workflows": workflows}
        click.echo(json.dumps(document), err=True)
    else:
        click.echo(printable(f"worker {worker_id} serves {', '.join(queues)}: {', '.join(workflows)}"))


def _report_values(report: "WorkerReport") -> dict[str, Any]:
    """Return a worker's report as JSON values, always with the same keys."""
    return {**asdict(report), "steps": dict(sorted(report.steps.items()))}


def _resources(place: Place, name: str | None) -> Mapping[str, object] | None:
    """Load the resources of steps, by the name of a mapping or of a function that returns one."""
    if name is None:
        return None
    from importlib import import_module

    place.workflows()  # extends `sys.path`, and raises for broken modules first
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise _bad_resources(f"{name!r:.80} is not MODULE:NAME, such as shop.wiring:resources")
    try:
        source = getattr(import_module(module), attribute)
        resources = source if isinstance(source, Mapping) else source()
    except (Exception, SystemExit) as error:
        raise _bad_resources(f"{name!r:.80} gives no resources: {type(error).__name__}: {error}") from error
    if not isinstance(resources, Mapping):
        raise _bad_resources(f"{name!r:.80} gives a {type(resources).__name__}, not a mapping")
    return resources


def _bad_resources(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--resources")


@click.command()
@click.option("--queue", help="Only runs of this queue.")
@with_workflows
def recover(place: Place, as_json: bool, queue: str | None) -> None:
    """Close what crashes have left open: safe at any time, any number at once. Workers do it by themselves.

    Exit code 1 if a run could not be repaired, or had to be quarantined.
    """
    with open_squid(place) as squid, _without_logs():
        report = squid.recover(queue)
    emit(as_json, {"repaired": report.repaired, **asdict(report)}, *_recovery_parts(report, place))
    if report.failed or report.quarantined:
        click.get_current_context().exit(REFUSED)


@contextmanager
def _without_logs() -> Iterator[None]:
    """Disable the library's log in a block: the report says the same."""
    logger = logging.getLogger("squid_dagster")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _recovery_parts(report: "RecoveryReport", place: Place) -> list[Any]:
    numbers = {name: value for name, value in asdict(report).items() if isinstance(value, int) and value}
    listed = numbers.pop("listed", 0)
    shown: list[Any] = [f"{report.repaired} repaired" if report.repaired else "nothing to repair"]
    shown += [table(("what", "how many"), numbers.items())] if numbers else []
    shown += [f"{_several(listed)} written to the index, as recovery does now and then"] if listed else []
    if report.held:
        hint = "" if place.modules else ": pass the modules that hold their workflows with -m"
        shown.append(f"{len(report.held)} held, whose definition is not known here{hint}")
    bad = [(run_id, "quarantined") for run_id in report.quarantined] + list(report.failed.items())
    return [*shown, table(("run", "not repaired"), bad)] if bad else shown


def _several(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"
