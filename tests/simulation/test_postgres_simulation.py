"""The simulation on Postgres: set-based stores and SQL functions under faults, and bugs in SQL that it must catch."""

from collections.abc import Iterator

import pytest

from squid_dagster.testing.simulation.campaign import quiet
from squid_dagster.testing.simulation.environment.postgres import PostgresGround
from squid_dagster.testing.simulation.scenario import random_scenario
from squid_dagster.testing.simulation.schedule import expectation, play
from tests.simulation.sql_bugs import SQL_BUGS, hunt

FAST = ("a lease ends before its time", "fencing tokens do not grow", "a cut ignores who has announced a commit")


@pytest.fixture
def ground(postgres_url: str, schema: str) -> Iterator[PostgresGround]:
    """A schema that every schedule begins with anew."""
    made = PostgresGround(postgres_url, schema)
    yield made
    made.close()


def test_on_postgres_every_run_ends_as_it_does_without_faults_and_views_equal_folds(ground: PostgresGround) -> None:
    with quiet():
        for number in range(6):
            scenario = random_scenario(number)
            played = play(scenario, expectation(scenario), number * 1000, make_ground=ground)
            assert played.problems == (), f"seed {played.seed}: {played.faults}"


@pytest.mark.parametrize("name", FAST)
def test_a_bug_in_sql_is_caught(name: str, ground: PostgresGround) -> None:
    bug = next(each for each in SQL_BUGS if each.name == name)
    assert hunt(bug, ground, 20).played is not None
