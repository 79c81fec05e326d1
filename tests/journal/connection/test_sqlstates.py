"""Every SQLSTATE has a class: repeat at once, wait and repeat, or refuse with an error of ours."""

import psycopg.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squid_dagster.journal.postgres.connection.sqlstates import _CLASSES, BEGIN_AGAIN, ErrorAction, sqlstate_rule

ALL = sorted(code for code in psycopg.errors._sqlcodes if len(code) == 5 and code[:2].upper() == code[:2])
"""All codes that psycopg knows: those of Postgres' Appendix A."""

REPEAT = {
    *(code for code in ALL if code[:2] == "40"),
    *("25P03", "25P04", "55006", "55P03", "57014", "72000"),
}
WAIT = {
    *(code for code in ALL if code[:2] in ("08", "28", "53", "57", "58", "F0")),
    *("25006", "3D000", "42501", "55000", "XX000"),
} - REPEAT


def test_psycopg_names_the_codes_that_this_test_goes_by() -> None:
    assert len(ALL) > 240
    assert {*REPEAT, *WAIT} < set(ALL)


@pytest.mark.parametrize("code", ALL)
def test_every_code_of_postgres_has_its_disposition(code: str) -> None:
    expected = ErrorAction.REPEAT if code in REPEAT else ErrorAction.WAIT if code in WAIT else ErrorAction.REFUSE
    assert sqlstate_rule(code).action is expected
    assert code[:2] in _CLASSES, "its class is known, so that a code of a later release finds it"
    assert sqlstate_rule(code).words


def test_a_code_that_a_later_release_adds_to_a_class_is_treated_as_its_class() -> None:
    assert sqlstate_rule("40Z99").action is ErrorAction.REPEAT
    assert sqlstate_rule("53Z99").action is ErrorAction.WAIT
    assert sqlstate_rule("42Z99").action is ErrorAction.REFUSE


@given(st.none() | st.text(max_size=8))
def test_whatever_the_code_is_there_is_a_disposition(code: str | None) -> None:
    assert sqlstate_rule(code, code).action in ErrorAction


def test_a_key_that_another_writer_was_first_with_is_tried_again_and_no_other_one() -> None:
    assert sqlstate_rule("23505", "journal_commits_pkey") == sqlstate_rule(BEGIN_AGAIN)
    assert sqlstate_rule("23505", "backlog_key").action is ErrorAction.REPEAT
    assert sqlstate_rule("23505", "journal_entries_pkey").action is ErrorAction.REFUSE
    assert sqlstate_rule("23505", None).action is ErrorAction.REFUSE
