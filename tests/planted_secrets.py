"""Workflows that put a secret wherever a text can stand, and a journal full of it: what may show it is then searched.

The canary is what must never be seen. It stands under innocent names, inside a URL or a connection string.
"""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from squid_dagster import Cron, Defer, Fail, Retry, StepContext, Workflow, path
from squid_dagster.api import Squid

CANARY = "hunter2canary"
URL = f"https://bob:{CANARY}@api.example.com/v1"
QUERY = f"https://api.example.com/v1?page=2&access_token={CANARY}&x=1"
DSN = f"host=127.0.0.1 user=bob password={CANARY} dbname=app"
TOLD: dict[str, Any] = {"link": URL, "more": [QUERY, {"dsn": DSN, "header": f"Authorization: Bearer {CANARY}"}]}


class Call(BaseModel):
    """What to call, and how the call ends."""

    endpoint: str = URL
    how: str = "give"


calling = Workflow("calling", payload=Call, triggers=[Cron("0 4 * * *", name="night", payload={"endpoint": URL})])


@calling.step(output="answer", retry=Retry(max_attempts=2, initial=timedelta(0)), max_deliveries=1)
def call(ctx: StepContext, endpoint: str, how: str) -> dict[str, Any]:
    """Log what it calls, and end in one of many ways."""
    ctx.log.warning("calling %s", endpoint)
    match how:
        case "raise":
            try:
                raise ConnectionError(f"cannot connect with {DSN}")
            except ConnectionError as error:
                ctx.log.exception("no answer from %s", endpoint)
                raise RuntimeError(f"{endpoint} gives no answer") from error
        case "fail":
            raise Fail(f"{endpoint} refuses", details=TOLD)
        case "defer":
            raise Defer(f"{endpoint} is busy", after=timedelta(hours=1))
        case "unfit":
            return {"answer": object(), endpoint: 1}
    return {"next": endpoint, **TOLD}


calling.log("note", f"called {URL}")
calling.approval("review", output="review")
calling.route("call", to="note", when=path("endpoint") == URL)
calling.route("call", to="fail")
calling.route("note", to="review")
calling.route("review", to="complete")
calling.route("review", on="error", to="fail")

family = Workflow("family", payload=Call)


@family.step
def start_child(ctx: StepContext, endpoint: str) -> str:
    """Start a child run with the secret in its payload."""
    assert ctx.start_child_run is not None
    return str(ctx.start_child_run(calling, {"endpoint": endpoint}, child_key="only", metadata=TOLD).run_id)


def _config(endpoint: str) -> dict[str, Any]:
    return {"ops": {"load": {"config": {"endpoint": endpoint}}}}


outside = Workflow("outside", payload=Call)
outside.external("load", "dagster_job", job="load", run_config=_config)

workflows = [calling, family, outside]


def fill(squid: Squid) -> list[str]:
    """Write secrets into runs of every kind of end, and return the runs; needs no worker."""
    said: dict[str, Any] = {"actor": {"name": "bob", "link": URL}, "comment": f"see {QUERY}", "metadata": TOLD}
    runs = [
        squid.start("calling", {"how": how}, **said).run_id
        for how in ("give", "give", "raise", "fail", "defer", "unfit")
    ]
    parent = squid.start("family", {}, actor=f"bob of {URL}").run_id
    event = {
        "specversion": "1.0",
        "id": "e-1",
        "source": "/squid/runtime/commands",
        "type": "squid.runtime.command.start_run",
        "data": {"type": "start_run", "payload": {"workflow": "outside", "input": {"endpoint": URL}}, "metadata": TOLD},
    }
    outer = squid.apply_signal(event).run_id
    squid.worker(until_idle=True, concurrency=1)
    squid.approve(runs[0], **said)
    squid.reject(runs[1], **said)
    squid.worker(until_idle=True, concurrency=1)
    failed = {
        "run_id": outer,
        "runnable_key": f"{outer}:load:1:1",
        "succeeded": False,
        "error": {"message": DSN, **TOLD},
    }
    squid.apply_signal({"type": "external_completed", "payload": failed, "metadata": TOLD})
    squid.pause_queue("later", **said)
    late = squid.start("calling", {}, queue="later").run_id
    squid.cancel(late, **said)
    squid.backlog.create("card-1", "a card")
    squid.backlog.claim("bob")
    squid.backlog.fail("card-1", error=f"no answer from {URL}")
    squid.backlog.block("card-1", reason=f"see {DSN}")
    return [*runs, parent, *(child.child_run_id for child in squid.inspect_run(parent).child_runs), outer, late]
