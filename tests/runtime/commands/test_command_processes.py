"""One key, eight processes at once, on Postgres: one of them has an effect, and all get the same receipt."""

import json

import psycopg

from squid_dagster.api import Squid
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.journal.access import plain_url
from tests.processes import Child, children
from tests.runtime.commands.command_processes import START_LOCK, commands, review
from tests.runtime.runs import facts, unit

PROCESSES = 8


def test_a_key_used_by_eight_processes_at_once_is_one_command(postgres: PostgresStorage, postgres_url: str) -> None:
    squid = Squid(postgres, review())
    runs = {name: squid.start("review").run_id for name in ("approve", "reject", "cancel", "replay")}
    arguments = (postgres_url, postgres.schema, json.dumps(runs))
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection, children() as started:
        connection.execute("SELECT pg_advisory_lock(%s)", (START_LOCK,))
        started += [Child("tests.runtime.commands.command_processes", *arguments) for _ in range(PROCESSES)]
        for child in started:
            child.wait_for_lines(1)
        connection.execute("SELECT pg_advisory_unlock(%s)", (START_LOCK,))
        for child in started:
            assert child.end() == 0, child.errors()
        said = [json.loads(line) for child in started for line in child.lines[1:]]
    for name in commands(squid, runs):
        receipts = [tuple(rest) for command, *rest in said if command == name]
        assert len(receipts) == PROCESSES
        assert len({(run_id, at) for run_id, at, _ in receipts}) == 1, "all hear of the same command"
        assert sorted(repeated for *_, repeated in receipts) == [False] + [True] * (PROCESSES - 1), name
        run_id = receipts[0][0]
        signals = [fact.signal_type for fact in facts(squid, run_id, "run_signal_received")]
        assert signals == (["start_run", f"{name}_run"] if name in runs and name != "replay" else signals[:1])
        assert not unit(squid, run_id).anomalies
    everyone = squid.list_runs(limit=500).runs
    assert len(everyone) == len(runs) + 4, "one each by start, replay, window and signal"
    squid.runtime.notifier.close()
