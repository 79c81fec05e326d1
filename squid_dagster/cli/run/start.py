"""`squid run start`: a payload from the command line or a file becomes a run, once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squid_dagster.cli.place import Place, with_workflows
from squid_dagster.cli.run.display import receipt_facts
from squid_dagster.cli.run.options import CommandRecord, InvalidValue, json_object, read_json, with_said
from squid_dagster.cli.run.session import open_squid, pass_module
from squid_dagster.cli.terminal.output import emit
from squid_dagster.limits import MAX_PRIORITY, MIN_PRIORITY

if TYPE_CHECKING:
    from squid_dagster.runtime.commands.signals import Receipt


@click.command()
@click.argument("workflow")
@click.option("--payload", metavar="JSON", callback=json_object, help="What it is started with, as a JSON object.")
@click.option(
    "--payload-file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="A file that holds it; - reads it from stdin.",
)
@click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="One value of the payload: JSON if it can be read so, else a text; may be given more than once.",
)
@click.option("--trigger", help="The trigger that it starts by; the manual one if not given.")
@click.option("--queue", help="The queue that its steps go through.")
@click.option("--run-id", help="An id of your own; repeating the start with it starts nothing twice.")
@click.option(
    "--priority",
    type=click.IntRange(MIN_PRIORITY, MAX_PRIORITY),
    default=0,
    show_default=True,
    help="Higher is sooner.",
)
@click.option("--version", help="The version of the workflow; the current one if not given.")
@with_said
@with_workflows
def start(
    place: Place,
    as_json: bool,
    workflow: str,
    payload: dict[str, Any] | None,
    payload_file: Path | None,
    params: tuple[str, ...],
    said: CommandRecord,
    **how: Any,
) -> None:
    """Start a run of WORKFLOW. With --idempotency-key or --run-id it is started once, however often it is asked for."""
    given = _payload(payload, payload_file, params)
    with open_squid(place) as squid:
        if squid.runtime.registry.current(workflow) is None:
            from squid_dagster.protocol.errors import NotFound

            known = ", ".join(sorted({definition.name for definition in squid.runtime.registry})) or "none"
            raise NotFound(f"workflow {workflow!r} is not known (known: {known}): {pass_module(place)}")
        receipt = squid.start(workflow, given, **how, **said.options())
    _show(receipt, workflow, as_json)


def _show(receipt: "Receipt", workflow: str, as_json: bool) -> None:
    how = "was started before, by the same key or id" if receipt.repeated else "started"
    emit(as_json, {**receipt_facts(receipt), "workflow": workflow}, f"run {receipt.run_id} of {workflow} {how}")


def _payload(whole: dict[str, Any] | None, file: Path | None, params: tuple[str, ...]) -> dict[str, Any]:
    if (whole is not None) + (file is not None) + bool(params) > 1:
        raise click.UsageError("give the payload in one way: --payload, --payload-file or -p")
    if file is not None:
        return _from_file(file)
    return _from_params(params) if whole is None else whole


def _from_file(file: Path) -> dict[str, Any]:
    try:
        with click.open_file(str(file), encoding="utf-8") as source:
            payload = read_json(source.read())
    except OSError as error:
        raise click.BadParameter(f"{file} cannot be read: {error.strerror}", param_hint="--payload-file") from None
    except InvalidValue as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--payload-file") from None
    except ValueError as error:
        raise click.BadParameter(f"{file} is not JSON: {error}", param_hint="--payload-file") from None
    if not isinstance(payload, dict):
        raise click.BadParameter(f"{file} holds no JSON object", param_hint="--payload-file")
    return payload


def _from_params(params: tuple[str, ...]) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for param in params:
        name, equals, text = param.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{param!r:.60} is not NAME=VALUE", param_hint="-p")
        if name in payload:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="-p")
        try:
            payload[name] = read_json(text)
        except InvalidValue as error:
            raise click.BadParameter(f"{name!r}: {error}", param_hint="-p") from None
        except ValueError:
            payload[name] = text
    return payload
