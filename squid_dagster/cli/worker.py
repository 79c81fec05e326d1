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
from squid_dagster.cli.run.session import commanding, need_modules
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
    help="How long a step is safe from others without a sign.",
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
    """Run the steps of the workflows of -m until stopped, and then tell what was done.

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
            with _ended_by_signals(), logging_to_stderr("error" if log_level == "error" else "warning"):
                patience = None if wait is None else timedelta(seconds=wait)
                squid = opened.enter_context(place.squid(given, patience))
        except _Stopped:
            emit(as_json, _report_facts(_nothing_done()), "stopped before the database was there")
            return
        made = squid.new_worker(list(dict.fromkeys(queues)) or None, **chosen)
        _say_served(squid, made.worker_id, queues or (squid.runtime.queue,), as_json)
        with logging_to_stderr(log_level):
            report = made.run()
    emit(as_json, _report_facts(report), str(report))
    if report.gave_up is not None:
        click.echo(f"it stopped by itself: {report.gave_up}", err=True)
        click.get_current_context().exit(REFUSED)


class _Stopped(BaseException):
    """A signal came while there was nothing yet that would have to finish."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Raise `_Stopped` in the block, which belongs to the main thread, when a signal asks to stop."""

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


def _nothing_done() -> "WorkerReport":
    from squid_dagster.runtime.worker.report import WorkerReport

    return WorkerReport("")


def _say_served(squid: "Squid", worker_id: str, queues: tuple[str, ...], as_json: bool) -> None:
    """Say what is served: on stderr where stdout is for the one document at the end."""
    workflows = sorted({each.name for each in squid.runtime.registry})
    if as_json:
        facts = {"worker_id": worker_id, "queues": list(queues), "workflows": workflows}
        click.echo(json.dumps(facts), err=True)
    else:
        click.echo(printable(f"worker {worker_id} serves {', '.join(queues)}: {', '.join(workflows)}"))


def _report_facts(report: "WorkerReport") -> dict[str, Any]:
    """Give a worker's report as JSON values, always with the same keys."""
    return {**asdict(report), "steps": dict(sorted(report.steps.items()))}


def _resources(place: Place, name: str | None) -> Mapping[str, object] | None:
    """Get what steps ask for, by the name of a mapping, or of a function that gives one."""
    if name is None:
        return None
    from importlib import import_module

    place.workflows()  # looks where modules are found, and says what is wrong with them first
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise _bad_resources(f"{name!r:.80} is not MODULE:NAME, such as shop.wiring:resources")
    try:
        found = getattr(import_module(module), attribute)
        given = found if isinstance(found, Mapping) else found()
    except (Exception, SystemExit) as error:
        raise _bad_resources(f"{name!r:.80} gives no resources: {type(error).__name__}: {error}") from error
    if not isinstance(given, Mapping):
        raise _bad_resources(f"{name!r:.80} gives a {type(given).__name__}, not a mapping")
    return given


def _bad_resources(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--resources")


@click.command()
@click.option("--queue", help="Only runs of this queue.")
@with_workflows
def recover(place: Place, as_json: bool, queue: str | None) -> None:
    """Close what crashes have left open: safe at any time, any number at once. Workers do it by themselves.

    Exit code 1 if a run could not be repaired, or had to be quarantined.
    """
    with commanding(place) as squid, _quiet():
        report = squid.recover(queue)
    emit(as_json, {"repaired": report.repaired, **asdict(report)}, *_recovery_shown(report, place))
    if report.failed or report.quarantined:
        click.get_current_context().exit(REFUSED)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let the library log nothing for the time of a block: the report tells it all."""
    logger = logging.getLogger("squid_dagster")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _recovery_shown(report: "RecoveryReport", place: Place) -> list[Any]:
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
