"""SQL functions: one file each in their current state, replaced by every upgrade that finds other ones."""

import re
from importlib.resources import files
from typing import NamedTuple

import pytest

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema import functions
from squid_dagster.journal.postgres.schema.drift import drift
from squid_dagster.journal.postgres.schema.names import CODE_VERSION
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.rows import ATTEMPT_COLUMNS, RUN_COLUMNS
from squid_dagster.protocol.errors import SchemaOutdated
from tests.facts import signal
from tests.journal.access import THREAD, Opener, raw
from tests.journal.schema.released_schemas import make_released

_HEAD = re.compile(r"^CREATE OR REPLACE FUNCTION \{schema\}\.(\w+)\(", re.M)
_OLDER = "CREATE OR REPLACE FUNCTION cut() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'"


def test_a_file_holds_the_function_of_its_name_and_no_other() -> None:
    assert {name: _HEAD.findall(text) for name, text in functions.sources().items()} == {
        name: [name] for name in functions.sources()
    }


def test_every_function_of_the_schema_has_its_file(postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        rows = connection.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace(%s)", (postgres.schema,)
        ).fetchall()
    assert sorted(name for (name,) in rows) == sorted(functions.sources())


@pytest.mark.parametrize(("table", "columns"), [("runs", RUN_COLUMNS), ("attempts", ATTEMPT_COLUMNS)])
def test_rows_have_the_columns_of_their_table(postgres: PostgresStorage, table: str, columns: tuple[str, ...]) -> None:
    with raw(postgres) as connection:
        rows = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            (table,),
        ).fetchall()
    assert sorted(columns) == sorted(name for (name,) in rows)


def test_no_function_of_this_code_names_the_columns_of_a_row_one_by_one() -> None:
    for name in ("append_entries", "settle_runs", "start_runs"):
        text = files(functions).joinpath(f"{name}.sql").read_text("utf-8")
        assert "definition_fingerprint" not in text


def test_functions_of_other_code_are_noticed_and_replaced(postgres: PostgresStorage) -> None:
    # given functions that older code has left there
    postgres.append(THREAD, [signal()])
    with raw(postgres) as connection:
        connection.execute(_OLDER)
        connection.execute("COMMENT ON FUNCTION cut IS 'older'")
    # then this code does not use them
    with pytest.raises(SchemaOutdated, match="squid db upgrade"):
        postgres.check()
    # and an upgrade replaces them
    assert postgres.upgrade() == CODE_VERSION
    assert postgres.check() == CODE_VERSION
    assert drift(postgres) == []
    assert postgres.cut() == postgres.read(THREAD)[0].position


def test_an_upgrade_replaces_no_function_that_is_as_it_should_be(postgres: PostgresStorage) -> None:
    # given that one function is of other code, and another one has lost its comment
    with raw(postgres) as connection:
        connection.execute("COMMENT ON FUNCTION cut IS 'older'")
        connection.execute("COMMENT ON FUNCTION take_number IS NULL")
        before = _row_versions(connection)
        # when the schema is upgraded
        postgres.upgrade()
        after = _row_versions(connection)
    # then these two were replaced
    assert {name for name in after if after[name] != before[name]} == {"cut", "take_number"}


def test_functions_of_a_newer_schema_are_left_alone(postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        connection.execute("COMMENT ON FUNCTION cut IS 'newer'")
        connection.execute(f"UPDATE squid_schema SET version = {CODE_VERSION + 1}")
        before = _row_versions(connection)
        assert postgres.check() == postgres.upgrade() == CODE_VERSION + 1
        assert _row_versions(connection) == before


def _row_versions(connection: PgConnection) -> dict[str, str]:
    """Return by function which transaction wrote its row in the catalog."""
    query = "SELECT proname, xmin::text FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
    return dict(connection.execute(query).fetchall())


def test_functions_that_released_migrations_made_are_replaced(open_storage: Opener) -> None:
    # given a schema as version 5 was released
    storage = make_released(open_storage(), 5)
    released = _signatures(storage)
    with pytest.raises(SchemaOutdated, match="at version 5"):
        storage.check()
    # when it is upgraded, then it is as a new one
    assert storage.upgrade() == CODE_VERSION
    assert drift(storage) == []
    # and code of that version finds everything that it calls
    now = _signatures(storage)
    assert [one for one in released if not any(_answers(function, one) for function in now)] == []


class Signature(NamedTuple):
    """How a function is called."""

    name: str
    arguments: list[str]
    defaults: int  # so many of the last ones may be left out
    result: str


def _answers(function: Signature, call: Signature) -> bool:
    """Return whether a call with the arguments of the other function is answered by this one."""
    count, extra = len(call.arguments), len(function.arguments) - len(call.arguments)
    same = (function.name, function.result) == (call.name, call.result)
    return same and function.arguments[:count] == call.arguments and 0 <= extra <= function.defaults


def _signatures(storage: PostgresStorage) -> list[Signature]:
    with raw(storage) as connection:
        rows = connection.execute(
            """SELECT p.proname, ARRAY(SELECT format_type(a, NULL) FROM unnest(p.proargtypes) a), p.pronargdefaults,
                      pg_get_function_result(p.oid)
                 FROM pg_proc p WHERE p.pronamespace = to_regnamespace(%s)""",
            (storage.schema,),
        ).fetchall()
    return [Signature(*row) for row in rows]
