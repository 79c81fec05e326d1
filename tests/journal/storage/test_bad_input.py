"""What is wrong is refused with an error of its own that says so, and nothing is written."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol import (
    AttemptClaimed,
    AttemptCompleted,
    Fact,
    QueuePaused,
    RunSignalReceived,
    RunStarted,
    UnknownFact,
    dispatch_thread,
    parse_fact,
    run_thread,
)
from squid_dagster.protocol.codec import DEFAULT_MAX_FACT_BYTES
from squid_dagster.protocol.errors import Conflict, InvalidArgument, InvalidFact, InvalidThread, SquidError
from tests.facts import RUN, T0, claimed, completed, queue_paused, queued, scheduled, signal, started, t
from tests.journal.access import QUEUE_THREAD, THREAD, Opener, all_entries, put


def refusals(storage: Storage, calls: dict[str, Callable[[], object]], kind: type[SquidError]) -> None:
    """Make each call, and meet that error and no other, with nothing written."""
    before, wrong = all_entries(storage), dict[str, str]()
    for name, call in calls.items():
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            if type(error) is not kind:
                wrong[name] = f"{type(error).__name__}: {error}"
            elif not str(error).strip():
                wrong[name] = "an error without words"
        else:
            wrong[name] = f"accepted: {answer!r}"
        if all_entries(storage) != before:
            wrong[name] = "something was written"
            before = all_entries(storage)
    assert wrong == {}


def bent(fact: Fact, **fields: Any) -> Fact:
    """The fact with wrong values that no check has seen."""
    changed: Fact = fact.model_copy(update=fields)
    return changed


def unchecked(kind: Any, **fields: Any) -> Fact:
    """A fact made past every check."""
    made: Fact = kind.model_construct(**fields)
    return made


# --- facts ----------------------------------------------------------------------------------------------------------

_NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


_WRONG_VALUES: dict[str, Any] = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity deep down": [{"y": float("-inf")}],
    "a time": T0,
    "bytes": b"abc",
    "a tuple": (1, 2),
    "a set": {1, 2},
    "an object": object(),
    "a key that is no text": {1: "x"},
    "a NUL": "a\0b",
    "a key that holds a NUL": {"a\0b": 1},
    "half a character": "\ud800",
    "a thousand levels": _deep(1000),
    "more than fits": "y" * DEFAULT_MAX_FACT_BYTES,
    "more bytes than fit, though not more characters": "🦑" * (DEFAULT_MAX_FACT_BYTES // 4 + 1),
}
# Made when they are asked for: whether a wrong fact is refused when it is made or when it is written is all the same.
_WRONG_FACTS: dict[str, Callable[[], Fact]] = {
    "naive time": lambda: bent(signal(), occurred_at=_NAIVE),
    "time as text": lambda: bent(signal(), occurred_at="2026-01-01T00:00:00Z"),
    "no time": lambda: bent(signal(), occurred_at=None),
    "naive lease": lambda: bent(claimed(), lease_until=_NAIVE),
    "lease that ends before it begins": lambda: bent(claimed(), lease_until=T0),
    "run id of a number": lambda: bent(signal(), run_id=7),
    "run id None": lambda: bent(signal(), run_id=None),
    "payload that is no object": lambda: bent(signal(), payload=[1]),
    "unknown field with NaN": lambda: bent(signal(), note=float("nan")),
    "result with NaN": lambda: bent(completed(), result=float("nan")),
    "priority out of range": lambda: bent(scheduled(), priority=11),
    "attempt number zero": lambda: bent(scheduled(), attempt_number=0),
    "token hash that is none": lambda: bent(claimed(), claim_token_hash="secret"),
    "step without a name": lambda: bent(scheduled(), step=""),
    "fencing token zero": lambda: bent(claimed(), fencing_token=0),
    "queue fact that names a run": lambda: bent(queue_paused(), run_id=RUN),
    "queue fact that names half an object": lambda: bent(queue_paused(), run_id='x","type":"run_terminal'),
    "queue fact that names a number as its run": lambda: bent(queue_paused(), run_id=7),
    "missing field": lambda: unchecked(RunStarted, run_id=RUN, occurred_at=T0),
    "missing time": lambda: unchecked(RunSignalReceived, run_id=RUN, signal_type="x", payload={}, metadata={}),
    "missing everything": lambda: unchecked(AttemptCompleted),
}


def _write(storage: Storage, make: Callable[[], Fact]) -> int:
    fact = make()
    return storage.append(QUEUE_THREAD if "queue" in type(fact).model_fields else THREAD, [fact])


def test_a_fact_of_a_wrong_shape_is_refused_however_it_was_made(storage: Storage) -> None:
    put(storage, signal())
    refusals(storage, {name: partial(_write, storage, make) for name, make in _WRONG_FACTS.items()}, InvalidFact)


def test_a_payload_that_cannot_be_kept_is_refused_whenever_it_came_in(storage: Storage) -> None:
    def changed_afterwards(value: Any) -> Fact:
        fact = signal(payload={})
        fact.payload["x"] = value
        return fact

    calls: dict[str, Callable[[], object]] = {}
    for name, value in _WRONG_VALUES.items():
        calls[f"{name}, from the start"] = partial(_write, storage, partial(bent, signal(), payload={"x": value}))
        calls[f"{name}, afterwards"] = partial(_write, storage, partial(changed_afterwards, value))
    refusals(storage, calls, InvalidFact)


def test_one_wrong_fact_among_many_keeps_all_of_them_out(storage: Storage) -> None:
    wrong = signal(payload={})
    wrong.payload["x"] = float("nan")
    refusals(
        storage,
        {
            "last of its append": lambda: storage.append(THREAD, [signal(), started(), wrong]),
            "first of its commit": lambda: storage.commit([Append(THREAD, [wrong]), Append(QUEUE_THREAD, [queued()])]),
            "last of its commit": lambda: storage.commit([Append(QUEUE_THREAD, [queued()]), Append(THREAD, [wrong])]),
        },
        InvalidFact,
    )


def test_what_is_no_fact_is_refused(storage: Storage) -> None:
    class Homemade(QueuePaused):
        pass

    strangers: dict[str, Any] = {
        "None": None,
        "a number": 5,
        "a dictionary": {"type": "run_started", "run_id": RUN},
        "a text": signal().model_dump_json(),
        "an unknown fact": UnknownFact("attempt_teleported", RUN, T0, {}),
        "the class itself": RunStarted,
        "a class of one's own": Homemade(occurred_at=T0),
    }
    refusals(
        storage,
        {name: partial(storage.append, QUEUE_THREAD, [fact]) for name, fact in strangers.items()},
        InvalidFact,
    )


def test_a_fact_on_the_wrong_thread_is_refused(storage: Storage) -> None:
    refusals(
        storage,
        {
            "another run's thread": lambda: storage.append(run_thread("run-2"), [signal()]),
            "another queue's thread": lambda: storage.append(dispatch_thread("slow"), [queue_paused()]),
            "a queue's instead of a run's": lambda: storage.append(QUEUE_THREAD, [signal()]),
            "a run's instead of a queue's": lambda: storage.append(THREAD, [scheduled()]),
            "the catalog": lambda: storage.append("squid:run_catalog:all", [started()]),
            "the backlog": lambda: storage.append("squid:backlog:cards", [started()]),
        },
        InvalidFact,
    )


def test_a_limit_of_one_s_own_on_the_size_of_facts_is_kept(open_storage: Opener) -> None:
    small = open_storage(max_fact_bytes=200)
    small.upgrade()
    for storage in (MemoryStorage(max_fact_bytes=200), small):
        refusals(storage, {"large": partial(storage.append, THREAD, [signal(payload={"x": "y" * 200})])}, InvalidFact)
        assert storage.append(THREAD, [signal(payload={"x": "y" * 50})]) == 1


def test_the_error_about_a_fact_names_the_field_and_never_a_long_value(storage: Storage) -> None:
    with pytest.raises(InvalidFact, match="occurred_at"):
        storage.append(THREAD, [bent(signal(), occurred_at=_NAIVE)])
    with pytest.raises(InvalidFact) as refused:
        storage.append(THREAD, [bent(signal(), payload="x" * 5000)])
    assert "payload" in str(refused.value)
    assert len(str(refused.value)) < 500
    with pytest.raises(InvalidFact, match=r"16,7\d\d,\d{3} bytes.*16,777,216"):
        storage.append(THREAD, [signal(payload={"x": "y" * (DEFAULT_MAX_FACT_BYTES + 1)})])


def test_a_fact_that_is_read_from_outside_is_checked_before_it_is_one() -> None:
    for value in (
        {"type": "run_started"},
        {"type": "run_started", "run_id": RUN, "workflow": "billing", "occurred_at": _NAIVE},
        {"type": "no_such_type", "run_id": RUN, "occurred_at": T0},
        {"run_id": RUN},
        "{",
        "[]",
        "null",
        b"\xff",
        None,
        7,
    ):
        with pytest.raises(InvalidFact):
            parse_fact(value)


def test_a_claim_at_a_time_before_its_lease_is_no_fact() -> None:
    with pytest.raises(ValueError, match="lease_until"):
        AttemptClaimed.model_validate({**claimed().model_dump(), "lease_until": t(0)})


# --- threads and commits --------------------------------------------------------------------------------------------

_ODD_PARTS = ("", "a\n", "\n", "a b", "a:b", "-a", ".a", "ü", "a" * 201, "a\0b", "a/b", " a", "a'b", 'a"b')


def test_an_odd_thread_is_refused(storage: Storage) -> None:
    odd: list[Any] = [f"squid:run:{part}" for part in _ODD_PARTS] + [f"squid:dispatch:{part}" for part in _ODD_PARTS]
    odd += [
        "",
        "run-1",
        "squid",
        "squid:run",
        "other:run:a",
        "squid:nothing:a",
        "SQUID:run:a",
        "squid:run_catalog:some",
    ]
    odd += ["squid:backlog:other", " squid:run:a", None, 7, b"squid:run:a", ["squid:run:a"]]
    refusals(
        storage,
        {repr(thread): partial(storage.append, thread, [signal()]) for thread in odd},
        InvalidThread,
    )


def test_a_run_or_queue_with_an_odd_name_cannot_even_be_made_into_a_fact() -> None:
    for part in _ODD_PARTS:
        with pytest.raises(InvalidFact):
            parse_fact({**signal().model_dump(), "run_id": part})
        with pytest.raises(InvalidFact):
            parse_fact({**queue_paused().model_dump(), "queue": part})


def test_a_commit_that_makes_no_sense_is_refused(storage: Storage) -> None:
    facts: Any = [signal()]
    strange: Any = "text"
    refusals(
        storage,
        {
            "nothing": lambda: storage.commit([]),
            "no facts": lambda: storage.append(THREAD, []),
            "no facts beside some": lambda: storage.commit([Append(THREAD, facts), Append(QUEUE_THREAD, [])]),
            "the same thread twice": lambda: storage.commit([Append(THREAD, facts), Append(THREAD, facts)]),
            "facts that are a text": lambda: storage.append(THREAD, strange),
            "facts that are a fact": lambda: storage.append(THREAD, facts[0]),
            "facts that can be read once": lambda: storage.append(THREAD, iter(facts)),
            "facts None": lambda: storage.append(THREAD, None),  # type: ignore[arg-type]
            "revision -1": lambda: storage.append(THREAD, facts, expected_rev=-1),
            "revision True": lambda: storage.append(THREAD, facts, expected_rev=True),
            "revision 1.0": lambda: storage.append(THREAD, facts, expected_rev=1.0),  # type: ignore[arg-type]
            "revision as text": lambda: storage.append(THREAD, facts, expected_rev="0"),  # type: ignore[arg-type]
            "appends that are none": lambda: storage.commit([(THREAD, facts)]),  # type: ignore[list-item]
            "commit id that is none": lambda: storage.commit([Append(THREAD, facts)], "first"),  # type: ignore[arg-type]
        },
        InvalidArgument,
    )


def test_a_revision_beyond_what_a_database_can_count_is_no_revision(storage: Storage) -> None:
    put(storage, signal())
    with pytest.raises((Conflict, InvalidArgument)):
        storage.append(THREAD, [signal()], expected_rev=2**64)
    assert len(all_entries(storage)) == 1


def test_a_read_that_makes_no_sense_is_refused(storage: Storage) -> None:
    put(storage, signal(), started())
    refusals(
        storage,
        {
            "after -1": lambda: storage.read(THREAD, after=-1),
            "after True": lambda: storage.read(THREAD, after=True),
            "after as text": lambda: storage.read(THREAD, after="1"),  # type: ignore[arg-type]
            "limit -1": lambda: storage.read(THREAD, limit=-1),
            "limit as text": lambda: storage.read(THREAD, limit="1"),  # type: ignore[arg-type]
            "limit -1 between cuts": lambda: storage.read_between(0, 9, limit=-1),
            "checkpoint at -1": lambda: storage.put_checkpoint(THREAD, -1, "{}"),
            "checkpoint at True": lambda: storage.put_checkpoint(THREAD, True, "{}"),
            "checkpoint that is no JSON": lambda: storage.put_checkpoint(THREAD, 1, "{"),
        },
        InvalidArgument,
    )
    assert storage.get_checkpoint(THREAD) is None


def test_a_clock_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="zone"):
        VirtualClock(_NAIVE)
