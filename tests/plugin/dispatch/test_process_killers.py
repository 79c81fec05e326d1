"""Steps that end the process of their drain run: only they become dead letters, and the next run says so."""

import logging
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import dagster as dg

from squid_dagster.api import Squid
from squid_dagster.journal import verify
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin import SquidResource
from tests.plugin.dispatch.drains import messages
from tests.processes import Child, children
from tests.runtime.processes.process_deaths import MAX_DELIVERIES, deadly
from tests.runtime.runs import facts

LEASE, LINGER = "3", "10"  # seconds; what was lost comes back while a run lingers
INNOCENTS = 4


def test_a_step_that_ends_its_drain_run_takes_none_of_the_others_along(
    resource: SquidResource, postgres: PostgresStorage, make_squid: Callable[..., Squid], tmp_path: Path
) -> None:
    # given attempts that are held by one drain run, of which one ends the process when all of them have begun
    squid, home, notes = make_squid([deadly]), tmp_path / "dagster", tmp_path / "notes"
    home.mkdir()
    notes.mkdir()
    options = {"begun_before": INNOCENTS + 1, "notes": str(notes)}
    innocents = [squid.start("deadly", options).run_id for _ in range(INNOCENTS)]
    culprit = squid.start("deadly", {**options, "death": "kill"}).run_id
    # when run after run is launched, until one comes to its end by itself
    codes, last = list[int](), ""
    with children() as started:
        while 0 not in codes:
            assert len(codes) <= MAX_DELIVERIES, started[-1].errors()
            last = str(uuid4())
            started.append(
                Child("tests.plugin.dispatch.drains", str(home), last, resource.schema_name or "", LEASE, LINGER)
            )
            codes.append(started[-1].end())
    # then each delivery of the culprit has cost one run, and it is the only dead letter
    assert len(codes) == MAX_DELIVERIES + 1
    assert {squid.inspect_run(run_id).status for run_id in innocents} == {"completed"}
    (letter,) = squid.dead_letters()
    assert (letter.run_id, letter.deliveries) == (culprit, MAX_DELIVERIES)
    assert [fact.alone for fact in facts(squid, culprit, "attempt_claimed")] == [None, None, True]
    assert len({fact.owner_id for fact in facts(squid, culprit, "attempt_claimed")}) == MAX_DELIVERIES
    assert verify(postgres) == []
    # and the last run says so
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        errors = [text for level, text in messages(instance, last) if level == logging.ERROR]
    assert len(errors) == 1
    assert culprit in errors[0]
    assert "squid_retry" in errors[0]
