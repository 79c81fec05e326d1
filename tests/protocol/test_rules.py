"""The fold in memory is held to the table of rules."""

import pytest

from squid_dagster.journal.postgres.refold import ViewRows
from squid_dagster.protocol.entries import by_run
from tests.histories import RUN, entries
from tests.rules import RULES, Rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_fold_in_memory_follows(rule: Rule) -> None:
    rows = ViewRows()
    groups = by_run(entries(rule.facts))
    rows.add_loose(groups.pop(None, []))
    for run_id, group in groups.items():
        rows.add_run(str(run_id), group)

    attempts = {row["runnable_key"]: row for row in rows.attempts}
    for key, columns in rule.attempts.items():
        if columns is None:
            assert key not in attempts
        else:
            assert {name: attempts[key][name] for name in columns} == columns
    runs = {row["run_id"]: row for row in rows.runs}
    assert {name: runs[RUN][name] for name in rule.run} == rule.run
    assert [row["reason"] for row in rows.anomalies] == list(rule.anomalies)
    assert {row["queue"]: row["paused"] for row in rows.queues} == rule.queues
