"""Whether Dagster's code locations work on the journal at hand.

A location's configuration cannot tell: where its database is, its own environment says. So it is seen by what it does.
Whenever the dispatch sensor of a location ticks, it leaves a row with the location's name in the presence table of its
journal, and tells it again every ten minutes. A location that ticks, and has left no such row here, works elsewhere.
"""

import json
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from squid_dagster.cli.doctor.findings import DAGSTER_ELSEWHERE, CheckUnavailable, DoctorContext, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

# As the plugin names them; this room may not import it.
LOCATION_KIND = "dagster_location"
DISPATCH_SENSOR = "squid_dispatch_sensor"
DISPATCH_JOB = "squid_dispatch"

_SAID_WITHIN = timedelta(minutes=25)  # before its latest tick: twice as long as a location is silent, and some
_TIMEOUT_SECONDS = 15
_QUERY = """query SquidDoctor { workspaceOrError { __typename
  ... on PythonError { message }
  ... on Workspace { locationEntries { name locationOrLoadError { __typename
    ... on PythonError { message }
    ... on RepositoryLocation { repositories { sensors { name targets { pipelineName }
      sensorState { status ticks(limit: 1) { timestamp status error { message } } } } } } } } } } }"""


def check_address(address: str) -> str:
    """Return the address of a webserver without a slash at its end. Raises `ValueError` for what is none."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{address!r} is no address of a Dagster webserver, such as http://127.0.0.1:3000")
    return address.rstrip("/")


def dagster_elsewhere(context: DoctorContext) -> list[Finding]:
    """Compare the locations of a webserver that tick with the liveness rows of this journal."""
    from squid_dagster.journal.contract.worker_liveness import FORGOTTEN_AFTER

    if context.dagster is None:
        raise CheckUnavailable("no webserver was named (--dagster http://host:port)")
    here = {
        row.details.get("location"): row.seen_at
        for row in context.squid.runtime.liveness.workers(FORGOTTEN_AFTER)
        if row.kind == LOCATION_KIND and row.seen_at is not None
    }
    findings: list[Finding] = []
    unclear: list[str] = []
    asked = 0
    for name, state in _sensors(_ask(context.dagster), unclear):
        asked += 1
        tick: dict[str, Any] | None = next(iter(state["ticks"]), None)
        if tick is None or state["status"] != "RUNNING":
            unclear.append(f"the dispatch sensor of location {name!r} does not tick: is it on, and the daemon running?")
        elif not _has_spoken(here.get(name), datetime.fromtimestamp(tick["timestamp"], UTC)):
            findings.append(_elsewhere(context, name, tick))
    if not findings and unclear:
        raise CheckUnavailable("; ".join(unclear))
    if not asked:
        raise CheckUnavailable(f"no location at {context.dagster} has a sensor {DISPATCH_SENSOR}")
    return findings


def _has_spoken(seen_at: datetime | None, ticked_at: datetime) -> bool:
    return seen_at is not None and seen_at >= ticked_at - _SAID_WITHIN


def _elsewhere(context: DoctorContext, name: str, tick: dict[str, Any]) -> Finding:
    where = f"database {context.storage.engine.url.database!r}, schema {context.storage.schema!r}"
    detail = f"Dagster location {name!r} at {context.dagster} does not work on this journal ({where})"
    if tick["status"] == "FAILURE":
        said = ((tick["error"] or {}).get("message") or "").strip().splitlines()
        detail += f"; its sensor fails: {said[0] if said else 'no message'}"
    remedy = "give the code location and this command the same SQUID_DATABASE_URL and SQUID_SCHEMA, and reload it"
    return Finding(DAGSTER_ELSEWHERE, detail, remedy)


def _sensors(workspace: dict[str, Any], unclear: list[str]) -> "Iterator[tuple[str, dict[str, Any]]]":
    """Return the states of our dispatch sensors with their locations' names; locations that do not load are unclear."""
    for entry in workspace["locationEntries"]:
        location = entry["locationOrLoadError"]
        if location is None or location["__typename"] != "RepositoryLocation":
            said = ((location or {}).get("message") or "it is loading").strip().splitlines()[0]
            unclear.append(f"location {entry['name']!r} is not loaded: {said}")
            continue
        for repository in location["repositories"]:
            for sensor in repository["sensors"]:
                jobs = {target["pipelineName"] for target in sensor["targets"] or ()}
                if sensor["name"] == DISPATCH_SENSOR or DISPATCH_JOB in jobs:
                    yield entry["name"], sensor["sensorState"]


def _ask(address: str) -> dict[str, Any]:
    """Request the workspace. Raises `CheckUnavailable`."""
    body = json.dumps({"query": _QUERY}).encode()
    request = Request(f"{address}/graphql", body, {"Content-Type": "application/json"})  # noqa: S310  http or https
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310  checked when it was given
            response = json.load(answer)
        workspace: dict[str, Any] = response["data"]["workspaceOrError"]
        if workspace["__typename"] != "Workspace":
            raise CheckUnavailable(f"{address} has no workspace: {workspace.get('message')}")
    except HTTPError as error:
        raise CheckUnavailable(f"{address} answers with {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise CheckUnavailable(f"{address} does not answer: {getattr(error, 'reason', None) or error}") from None
    except (ValueError, KeyError, TypeError):
        raise CheckUnavailable(f"{address} does not answer as a Dagster webserver does") from None
    return workspace
