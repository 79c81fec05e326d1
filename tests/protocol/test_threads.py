"""Thread ids: how they are spelled, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squid_dagster.protocol import (
    BACKLOG_THREAD,
    CATALOG_THREAD,
    ThreadKind,
    dispatch_thread,
    idempotency_key,
    parse_thread,
    run_index_thread,
    run_thread,
    runnable_key,
)
from squid_dagster.protocol.errors import InvalidThread
from squid_dagster.protocol.threads import check_part

ODD_PARTS = ["", " ", "a b", "a:b", "a/b", "-a", "_a", ".a", "ä", "٣", "a\n", "\na", "a\0", "a" * 201]


def test_every_kind_of_thread_has_its_own_spelling() -> None:
    assert run_thread("r") == "squid:run:r"
    assert dispatch_thread("q") == "squid:dispatch:q"
    assert run_index_thread("w") == "squid:run_index:w"
    assert (CATALOG_THREAD, BACKLOG_THREAD) == ("squid:run_catalog:all", "squid:backlog:cards")


@pytest.mark.parametrize(
    ("thread_id", "kind", "part"),
    [
        ("squid:run:r-1", ThreadKind.RUN, "r-1"),
        ("squid:dispatch:default", ThreadKind.DISPATCH, "default"),
        ("squid:run_index:billing.v2", ThreadKind.RUN_INDEX, "billing.v2"),
        ("squid:run_catalog:all", ThreadKind.RUN_CATALOG, "all"),
        ("squid:backlog:cards", ThreadKind.BACKLOG, "cards"),
    ],
)
def test_a_thread_id_is_taken_apart_and_put_together_again(thread_id: str, kind: ThreadKind, part: str) -> None:
    thread = parse_thread(thread_id)

    assert (thread.kind, thread.part, str(thread)) == (kind, part, thread_id)


@pytest.mark.parametrize("thread_id", ["", "squid", "squid:run", "squid:runs:a", "mesh:run:a", "SQUID:run:a", None, 5])
def test_what_is_no_thread_id_is_refused_by_name(thread_id: str) -> None:
    with pytest.raises(InvalidThread, match=r"is not a thread id|cannot be part of a thread id") as refused:
        parse_thread(thread_id)

    assert repr(thread_id) in str(refused.value)


@pytest.mark.parametrize("part", ODD_PARTS)
def test_an_odd_part_of_a_thread_id_is_refused_by_name(part: str) -> None:
    with pytest.raises(InvalidThread) as refused:
        parse_thread(f"squid:run:{part}")

    assert repr(part) in str(refused.value)


@pytest.mark.parametrize("thread_id", ["squid:run_catalog:some", "squid:backlog:all"])
def test_there_is_one_catalog_and_one_backlog(thread_id: str) -> None:
    with pytest.raises(InvalidThread, match="the only"):
        parse_thread(thread_id)


@pytest.mark.parametrize("part", [*ODD_PARTS, None, 5])
def test_a_part_is_checked_under_the_name_of_what_it_is_for(part: str) -> None:
    with pytest.raises(InvalidThread, match=r"^queue ") as refused:
        check_part(part, "queue")

    assert repr(part) in str(refused.value)


@given(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,199}\Z"))
def test_a_proper_part_is_taken_as_it_is(part: str) -> None:
    assert check_part(part, "run id") == part
    assert parse_thread(run_thread(part)).part == part


def test_an_idempotency_key_is_stable_over_attempts_and_differs_between_visits() -> None:
    assert runnable_key("r", "s", 2, 3) == "r:s:2:3"
    assert idempotency_key("r", "s", 2) == "r:s:2"
