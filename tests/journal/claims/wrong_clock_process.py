"""A worker in a process whose clock is wrong.

Usage: `python -m tests.journal.claims.wrong_clock_process <url> <hours>`. Each line of the input is a
JSON list: a schema and a command with its arguments; the answer is a line of JSON.

Every way in which Python code reads the time is shifted before `squid_dagster` is imported.
"""

import datetime as clock
import sys

from tests.shifted_clock import shift

shift(float(sys.argv[2]))

import json  # noqa: E402
from contextlib import closing  # noqa: E402
from datetime import timedelta  # noqa: E402

from squid_dagster.journal import (  # noqa: E402
    ClaimRef,
    Completed,
    Failed,
    NextAttempt,
    PostgresDispatchStore,
    PostgresStorage,
    Settlement,
)


def execute(store: PostgresDispatchStore, command: str, *arguments: str) -> object:
    """Execute one command as a worker does, and return its result."""
    match command:
        case "clock":
            return clock.datetime.now(clock.UTC).isoformat()
        case "claim":
            claims = store.claim("default", "wrong-clock", limit=10, lease=timedelta(seconds=60))
            return [
                [claim.ref.run_id, claim.ref.runnable_key, claim.ref.claim_id, claim.ref.token, str(claim.lease_until)]
                for claim in claims
            ]
        case "complete":
            answers = store.settle([Settlement(ClaimRef("default", *arguments[:4]), Completed({"done": True}))])
        case "fail":
            retry = NextAttempt(arguments[4], timedelta(seconds=30))
            answers = store.settle([Settlement(ClaimRef("default", *arguments[:4]), Failed({"message": "no"}, retry))])
        case _:
            answers = store.heartbeat([ClaimRef("default", *arguments[:4])], timedelta(seconds=60))
    return [type(answer.error).__name__ if answer.error else "ok" for answer in answers]


if __name__ == "__main__":
    for line in sys.stdin:
        schema, *command = json.loads(line)
        with closing(PostgresStorage(sys.argv[1], schema)) as storage:
            print(json.dumps(execute(PostgresDispatchStore(storage), *command)), flush=True)
