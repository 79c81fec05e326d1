"""The fold in memory is held to the table of rules."""

import pytest

from squid_dagster.journal.postgres.views.folded_rows import ViewRows
from squid_dagster.protocol.entries import by_run
from tests.facts import entries
from tests.rules.rule import Rule
from tests.rules.table import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_fold_in_memory_follows(rule: Rule) -> None:
    rows = ViewRows()
    groups = by_run(entries(rule.facts))
    rows.add_loose(groups.pop(None, []))
    for run_id, group in groups.items():
        rows.add_run(str(run_id), group)

    rule.assert_holds(rows.attempts, rows.runs, rows.anomalies, rows.queues)
