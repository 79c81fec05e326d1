"""The pytest plugin: found by itself, usable in any project, and loading nothing where it is not used."""

import subprocess
import sys

import pytest

from squid_dagster import testing

pytest_plugins = ["pytester"]

HEAVY = "{'pydantic', 'sqlalchemy', 'psycopg', 'dagster', 'pyspark', 'squid_dagster.api'}"


def test_every_exported_name_is_there() -> None:
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        testing.no_such_name  # noqa: B018


def test_importing_the_kit_loads_neither_pytest_nor_the_library_and_using_it_loads_no_pytest() -> None:
    code = (
        f"import sys, squid_dagster.testing; print(sorted(({HEAVY} | {{'pytest'}}) & set(sys.modules)));"
        "from squid_dagster.testing import *; print(sorted({'pytest', 'dagster', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


def test_the_fixtures_work_in_a_project_of_their_own(pytester: pytest.Pytester) -> None:
    # given a project that knows nothing of us but the fixtures' names
    pytester.makepyfile(
        test_first=f"""
        import sys

        LOADED = {HEAVY} & set(sys.modules)

        def test_nothing_is_loaded_for_those_who_do_not_ask():
            assert not LOADED
        """,
        test_second="""
        from datetime import timedelta
        import pytest
        from squid_dagster import Workflow

        nap = Workflow("nap")
        nap.wait("sleep", timedelta(days=365))

        @nap.step(after="sleep")
        def wake() -> str:
            return "awake"

        @pytest.mark.parametrize("again", [1, 2])
        def test_every_test_has_a_journal_and_a_time_of_its_own(squid, squid_clock, again):
            from squid_dagster.testing import execute_until_blocked

            app = squid(nap)
            before = squid_clock.now()
            run_id = app.start(nap).run_id
            assert run_id == "run-1"
            assert execute_until_blocked(app, run_id).outputs == {"wake": "awake"}
            assert squid_clock.now() - before == timedelta(days=365)
            assert before.year == 2026
        """,
    )
    # when it is tested, with all warnings as errors
    done = pytester.runpytest_subprocess("-q", "-W", "error")
    # then all is as it says
    done.assert_outcomes(passed=3)


def test_the_fixtures_say_what_they_are_and_can_be_left_out(pytester: pytest.Pytester) -> None:
    shown = pytester.runpytest_inprocess("--fixtures", "-q")
    shown.stdout.fnmatch_lines(["squid_clock*", "*A clock that moves only when told to*", "squid*", "*Make squids*"])
    pytester.makepyfile("def test_without(squid): pass")
    pytester.runpytest_inprocess("-p", "no:squid_dagster").assert_outcomes(errors=1)


def test_what_was_made_is_closed_in_the_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        closed = []

        def test_two_are_made(squid):
            for app in (squid(), squid()):
                app.close = lambda app=app: closed.append(app)

        def test_both_were_closed():
            assert len(closed) == 2
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2)
