"""The live views in Postgres are held to the table of rules, fact by fact and in one commit."""

from typing import Any, LiteralString

import pytest

from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views import rows
from squid_dagster.protocol import Fact
from tests.rules.rule import Rule
from tests.rules.table import RULES


def _one_by_one(facts: list[Fact]) -> list[list[Append]]:
    return [[Append(fact.thread, [fact])] for fact in facts]


def _together(facts: list[Fact]) -> list[list[Append]]:
    """Group facts into commits; a thread that comes again begins another, since a commit names a thread once."""
    commits: list[dict[str, list[Fact]]] = [{}]
    previous = None
    for fact in facts:
        if fact.thread in commits[-1] and fact.thread != previous:
            commits.append({})
        commits[-1].setdefault(fact.thread, []).append(fact)
        previous = fact.thread
    return [[Append(thread, group) for thread, group in commit.items()] for commit in commits]


def _rows(storage: PostgresStorage, text: LiteralString) -> list[dict[str, Any]]:
    return [row[0] for row in storage.rows(text)]


@pytest.mark.parametrize("split", [_one_by_one, _together])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_views_follow(journal: PostgresStorage, rule: Rule, split: Any) -> None:
    for thread in {fact.thread for fact in rule.facts}:
        journal.delete_thread(thread)

    for appends in split(list(rule.facts)):
        journal.commit(appends)

    rule.assert_holds(
        [rows.normalized("attempts", row) for row in _rows(journal, "SELECT to_json(v) FROM {schema}.attempts v")],
        [rows.normalized("runs", row) for row in _rows(journal, "SELECT to_json(v) FROM {schema}.runs v")],
        _rows(journal, "SELECT to_json(v) FROM {schema}.anomalies v ORDER BY position, ordinal"),
        _rows(journal, "SELECT to_json(v) FROM {schema}.queues v"),
    )

    for thread in {fact.thread for fact in rule.facts}:
        journal.delete_thread(thread)
