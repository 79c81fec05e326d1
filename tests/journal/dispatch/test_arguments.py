"""Dispatch, in every version on every storage: arguments that make no sense are refused."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.journal.contract.dispatch_store import ClaimRef
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread
from tests.facts import QUEUE, scheduled
from tests.journal.dispatch_fixture import DispatchFixture, one, seconds, work

_OUT_OF_RANGE: dict[str, Callable[[Any, ClaimRef], object]] = {
    "limit 0": lambda store, _: store.claim(QUEUE, "w", limit=0),
    "limit -1": lambda store, _: store.claim(QUEUE, "w", limit=-1),
    "limit 1001": lambda store, _: store.claim(QUEUE, "w", limit=1001),
    "limit True": lambda store, _: store.claim(QUEUE, "w", limit=True),
    "limit 1.5": lambda store, _: store.claim(QUEUE, "w", limit=1.5),
    "no lease": lambda store, _: store.claim(QUEUE, "w", lease=seconds(0)),
    "negative lease": lambda store, _: store.claim(QUEUE, "w", lease=seconds(-1)),
    "lease of 31 days": lambda store, _: store.claim(QUEUE, "w", lease=timedelta(days=31)),
    "lease without a unit": lambda store, _: store.claim(QUEUE, "w", lease=60),
    "no owner": lambda store, _: store.claim(QUEUE, ""),
    "long owner": lambda store, _: store.claim(QUEUE, "w" * 1001),
    "owner None": lambda store, _: store.claim(QUEUE, None),
    "blank owner": lambda store, _: store.claim(QUEUE, "  "),
    "owner with a NUL": lambda store, _: store.claim(QUEUE, "w\0"),
    "definitions as one text": lambda store, _: store.claim(QUEUE, "w", definitions="billing/f1"),
    "visible definitions as one text": lambda store, _: store.visible(QUEUE, definitions="billing/f1"),
    "expired definition with a NUL": lambda store, _: store.expired(QUEUE, definitions=["billing/\0"]),
    "heartbeat of no time": lambda store, ref: store.heartbeat([ref], seconds(0)),
    "heartbeat of 31 days": lambda store, ref: store.heartbeat([ref], timedelta(days=31)),
    "release for no reason": lambda store, ref: store.release([ref], ""),
    "release for a long reason": lambda store, ref: store.release([ref], "x" * 10_001),
}


def test_an_argument_out_of_range_is_refused_and_nothing_is_written(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled(), work("run-2", definition_fingerprint="f1"))
    held = one(dispatch)
    wrong: dict[str, str] = {}
    for name, call in _OUT_OF_RANGE.items():
        before = dispatch.entries()
        try:
            answer = call(dispatch.store, held.ref)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            if not isinstance(error, InvalidArgument):
                wrong[name] = f"{type(error).__name__}: {error}"
        else:
            wrong[name] = f"answered {answer}"
        assert dispatch.entries() == before, name
    assert wrong == {}


def test_an_odd_queue_is_refused(dispatch: DispatchFixture) -> None:
    odd: list[Any] = ["", "a b", "a:b", "queue\n", "-x", "x" * 201, None]
    for queue in odd:
        with pytest.raises(InvalidThread):
            dispatch.store.claim(queue, "w")
        for look in (dispatch.store.visible, dispatch.store.expired, dispatch.store.dead_letter_expired):
            with pytest.raises(InvalidThread):
                look(queue)
    assert dispatch.entries() == 0


def test_an_empty_group_is_no_error(dispatch: DispatchFixture) -> None:
    assert dispatch.store.settle([]) == dispatch.store.heartbeat([]) == dispatch.store.release([]) == []
    assert dispatch.entries() == 0
