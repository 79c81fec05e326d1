"""SQL functions: one file each in their current state, replaced by every upgrade that finds other ones."""

import re
from typing import NamedTuple

import pytest

from squid_dagster.journal.postgres import functions, migrate
from squid_dagster.journal.postgres.drift import drift
from squid_dagster.journal.postgres.schema import CODE_VERSION
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import SchemaOutdated
from tests.facts import signal
from tests.journal.contract import THREAD, Opener, raw

_HEAD = re.compile(r"^CREATE OR REPLACE FUNCTION \{schema\}\.(\w+)\(", re.M)
_OLDER = "CREATE OR REPLACE FUNCTION cut() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'"


def test_a_file_holds_the_function_of_its_name_and_no_other() -> None:
    assert {name: _HEAD.findall(text) for name, text in functions.sources().items()} == {
        name: [name] for name in functions.sources()
    }


def test_every_function_of_the_schema_has_its_file(postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        found = connection.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace(%s)", (postgres.schema,)
        ).fetchall()
    assert sorted(name for (name,) in found) == sorted(functions.sources())


def test_functions_of_other_code_are_noticed_and_replaced(postgres: PostgresStorage) -> None:
    # given functions that older code has left there
    postgres.append(THREAD, [signal()])
    with raw(postgres) as connection:
        connection.execute(_OLDER)
        connection.execute("UPDATE squid_functions SET digest = 'older'")
    # then this code does not use them
    with pytest.raises(SchemaOutdated, match="squid db upgrade"):
        postgres.check()
    # and an upgrade replaces them
    assert postgres.upgrade() == CODE_VERSION
    assert postgres.check() == CODE_VERSION
    assert drift(postgres) == []
    assert postgres.cut() == postgres.read(THREAD)[0].position


def test_functions_of_a_newer_schema_are_left_alone(postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        connection.execute("UPDATE squid_functions SET digest = 'newer'")
        connection.execute(f"UPDATE squid_schema SET version = {CODE_VERSION + 1}")
        assert postgres.check() == postgres.upgrade() == CODE_VERSION + 1
        assert connection.execute("SELECT digest FROM squid_functions").fetchone() == ("newer",)


def test_functions_that_released_migrations_made_are_replaced(open_storage: Opener, schema: str) -> None:
    # given a schema as version 5 was released
    storage = open_storage()
    with storage.engine.begin() as connection:
        connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
        migrate.migrate_tables(connection, schema, "0005")
    released = _signatures(storage)
    with pytest.raises(SchemaOutdated, match="at version 5"):
        storage.check()
    # when it is upgraded, then it is as a new one
    assert storage.upgrade() == CODE_VERSION
    assert drift(storage) == []
    # and code of that version finds everything that it calls
    now = _signatures(storage)
    assert [one for one in released if not any(_answers(each, one) for each in now)] == []


class Signature(NamedTuple):
    """How a function is called."""

    name: str
    arguments: list[str]
    defaults: int  # so many of the last ones may be left out
    result: str


def _answers(function: Signature, call: Signature) -> bool:
    """Whether a call in the way of the other function is answered by this one."""
    count, extra = len(call.arguments), len(function.arguments) - len(call.arguments)
    same = (function.name, function.result) == (call.name, call.result)
    return same and function.arguments[:count] == call.arguments and 0 <= extra <= function.defaults


def _signatures(storage: PostgresStorage) -> list[Signature]:
    with raw(storage) as connection:
        found = connection.execute(
            """SELECT p.proname, ARRAY(SELECT format_type(a, NULL) FROM unnest(p.proargtypes) a), p.pronargdefaults,
                      pg_get_function_result(p.oid)
                 FROM pg_proc p WHERE p.pronamespace = to_regnamespace(%s)""",
            (storage.schema,),
        ).fetchall()
    return [Signature(*row) for row in found]
