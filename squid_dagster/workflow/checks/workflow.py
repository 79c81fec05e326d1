"""Checks of the workflow itself: its name, its version, its payload's contract and its triggers."""

from pydantic import BaseModel

from squid_dagster.protocol.errors import InvalidPayload, InvalidThread
from squid_dagster.protocol.threads import check_part
from squid_dagster.workflow.authoring.draft import Draft
from squid_dagster.workflow.cron.triggers import CATCH_UPS, CRON_IDEMPOTENCIES, Cron, Manual
from squid_dagster.workflow.errors import Code, Path, Problems
from squid_dagster.workflow.fingerprint import payload_contract
from squid_dagster.workflow.payload import accept_payload, is_payload_model
from squid_dagster.workflow.values import is_one_of, shown

_MAX_VERSION_LENGTH = 1000  # as the fact `run_started` has it


def check_workflow(draft: Draft, problems: Problems) -> type[BaseModel] | None:
    """Check name, version, payload and triggers. Return the declared payload model if it can be used."""
    record_bad_name(draft.name, "workflow", ("name",), Code.INVALID_WORKFLOW_NAME, problems)
    version = draft.version
    if version is not None and not (isinstance(version, str) and 0 < len(version) <= _MAX_VERSION_LENGTH):
        message = f"must be a text of 1 to {_MAX_VERSION_LENGTH} characters, not {shown(version)}"
        problems.add(("version",), Code.INVALID_VERSION, message)
    payload = _check_payload(draft.payload, problems)
    names: set[object] = set()
    for index, trigger in enumerate(draft.triggers):
        path: Path = ("triggers", index)
        if not isinstance(trigger, Manual | Cron):
            problems.add(path, Code.INVALID_TRIGGER, f"{shown(trigger)} is no trigger: use Manual() or Cron(...)")
            continue
        if record_bad_name(trigger.name, "trigger", (*path, "name"), Code.INVALID_TRIGGER_NAME, problems):
            continue
        if trigger.name in names:
            message = f"there are two triggers {trigger.name!r}: give one another name="
            problems.add((*path, "name"), Code.DUPLICATE_TRIGGER_NAME, message)
        names.add(trigger.name)
        if isinstance(trigger, Cron):
            _check_cron(trigger, path, problems)
    return payload


def is_name(name: object) -> bool:
    """Return whether a name can be part of thread ids and runnable keys."""
    try:
        check_part(name, "name")  # type: ignore[arg-type]  # anything may have been given
    except InvalidThread:
        return False
    return True


def record_bad_name(name: object, what: str, path: Path, code: Code, problems: Problems) -> bool:
    """Record a name that cannot be part of thread ids and runnable keys. Return whether it is bad."""
    try:
        check_part(name, what)  # type: ignore[arg-type]  # anything may have been given
    except InvalidThread as error:
        problems.add(path, code, str(error).replace("part of a thread id", "a name", 1))
        return True
    return False


def _check_payload(payload: type[BaseModel] | None, problems: Problems) -> type[BaseModel] | None:
    if payload is None:
        return None
    if not is_payload_model(payload):
        message = f"{shown(payload)} is no contract: use a pydantic BaseModel with fields, or None"
        problems.add(("payload",), Code.INVALID_PAYLOAD_MODEL, message)
        return None
    try:
        payload_contract(payload)
    except Exception as error:  # noqa: BLE001  a model's own hooks run here and may raise anything
        message = f"{payload.__name__} has no JSON schema: {str(error).partition(chr(10))[0]}"
        problems.add(("payload",), Code.INVALID_PAYLOAD_MODEL, message)
        return None
    return payload


def _check_cron(cron: Cron, path: Path, problems: Problems) -> None:
    try:
        cron.fields()
    except ValueError as error:
        problems.add((*path, "expression"), Code.INVALID_CRON_EXPRESSION, str(error))
    try:
        cron.zone()
    except ValueError as error:
        problems.add((*path, "timezone"), Code.INVALID_CRON_TIMEZONE, str(error))
    if not is_one_of(cron.catch_up, CATCH_UPS):
        message = f"must be one of {', '.join(CATCH_UPS)}, not {shown(cron.catch_up)}"
        problems.add((*path, "catch_up"), Code.INVALID_CRON_CATCH_UP, message)
    if not is_one_of(cron.idempotency, CRON_IDEMPOTENCIES):
        message = f"must be one of {', '.join(CRON_IDEMPOTENCIES)}, not {shown(cron.idempotency)}"
        problems.add((*path, "idempotency"), Code.INVALID_CRON_IDEMPOTENCY, message)


def check_cron_payloads(draft: Draft, payload: type[BaseModel] | None, problems: Problems) -> None:
    """Record each cron trigger whose payload does not fit the model."""
    for index, cron in enumerate(draft.triggers):
        if not isinstance(cron, Cron):
            continue
        try:
            accept_payload(draft.name, payload, cron.payload)
        except InvalidPayload as error:
            message = f"{error}; the clock starts runs with this payload: give Cron(payload=...) or defaults"
            problems.add(("triggers", index, "payload"), Code.INVALID_CRON_PAYLOAD, message)
