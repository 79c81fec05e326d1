"""The simulation on Postgres: set-based stores and SQL functions under faults, and bugs in SQL that it must catch."""

from collections.abc import Iterator

import pytest

from squid_dagster.testing.simulation.campaign import quiet
from squid_dagster.testing.simulation.environment.postgres import PostgresJournals
from squid_dagster.testing.simulation.scenario import random_scenario
from squid_dagster.testing.simulation.schedule import expectation, play
from tests.simulation.sql_bugs import SQL_BUGS, hunt

FAST = ("a lease ends before its time", "fencing tokens do not grow", "a cut ignores who has announced a commit")


@pytest.fixture
def journals(postgres_url: str, schema: str) -> Iterator[PostgresJournals]:
    """A schema that every schedule begins with anew."""
    made = PostgresJournals(postgres_url, schema)
    yield made
    made.close()


def test_on_postgres_every_run_ends_as_it_does_without_faults_and_views_equal_folds(
    journals: PostgresJournals,
) -> None:
    with quiet():
        for number in range(6):
            scenario = random_scenario(number)
            played = play(scenario, expectation(scenario), number * 1000, make_journal=journals)
            assert played.problems == (), f"seed {played.seed}: {played.faults}"


@pytest.mark.parametrize("name", FAST)
def test_a_bug_in_sql_is_caught(name: str, journals: PostgresJournals) -> None:
    bug = next(candidate for candidate in SQL_BUGS if candidate.name == name)
    assert hunt(bug, journals, 20).played is not None
