"""The part of the storage contract about refusals: each error is of its own class, and nothing is written."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.protocol.codec import DEFAULT_MAX_FACT_BYTES
from squid_dagster.protocol.entries import UnknownFact
from squid_dagster.protocol.errors import Conflict, InvalidArgument, InvalidFact, InvalidThread, SquidError
from squid_dagster.protocol.facts import AttemptCompleted, Fact, QueuePaused, RunSignalReceived, RunStarted
from squid_dagster.protocol.threads import dispatch_thread, run_thread
from squid_dagster.testing.example_facts import (
    QUEUE_THREAD,
    RUN,
    T0,
    THREAD,
    all_entries,
    claimed,
    completed,
    put,
    queue_paused,
    queued,
    scheduled,
    signal,
    started,
)


def bent(fact: Fact, **fields: Any) -> Fact:
    """Return a copy of the fact with wrong values that no check has seen."""
    changed: Fact = fact.model_copy(update=fields)
    return changed


def unchecked(kind: Any, **fields: Any) -> Fact:
    """Return a fact made without validation."""
    made: Fact = kind.model_construct(**fields)
    return made


NAIVE_TIME = datetime(2026, 1, 1)  # noqa: DTZ001


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
    "naive time": lambda: bent(signal(), occurred_at=NAIVE_TIME),
    "time as text": lambda: bent(signal(), occurred_at="2026-01-01T00:00:00Z"),
    "no time": lambda: bent(signal(), occurred_at=None),
    "naive lease": lambda: bent(claimed(), lease_until=NAIVE_TIME),
    "lease that ends before it begins": lambda: bent(claimed(), lease_until=T0),
    "run id of a number": lambda: bent(signal(), run_id=7),
    "run id None": lambda: bent(signal(), run_id=None),
    "payload that is no object": lambda: bent(signal(), payload=[1]),
    "unknown field with NaN": lambda: bent(signal(), note=float("nan")),
    "result with NaN": lambda: bent(completed(), result=float("nan")),
    "priority out of range": lambda: bent(scheduled(), priority=11),
    "attempt number zero": lambda: bent(scheduled(), attempt_number=0),
    "token hash that is none": lambda: bent(claimed(), claim_token_hash="secret"),  # noqa: S106
    "step without a name": lambda: bent(scheduled(), step=""),
    "fencing token zero": lambda: bent(claimed(), fencing_token=0),
    "queue fact that names a run": lambda: bent(queue_paused(), run_id=RUN),
    "queue fact that names half an object": lambda: bent(queue_paused(), run_id='x","type":"run_terminal'),
    "queue fact that names a number as its run": lambda: bent(queue_paused(), run_id=7),
    "missing field": lambda: unchecked(RunStarted, run_id=RUN, occurred_at=T0),
    "missing time": lambda: unchecked(RunSignalReceived, run_id=RUN, signal_type="x", payload={}, metadata={}),
    "missing everything": lambda: unchecked(AttemptCompleted),
}
ODD_PARTS = ("", "a\n", "\n", "a b", "a:b", "-a", ".a", "ü", "a" * 201, "a\0b", "a/b", " a", "a'b", 'a"b')


class InvalidArgumentContract:
    """Tests of facts, threads and arguments that must be refused."""

    def test_a_fact_of_a_wrong_shape_is_refused_however_it_was_made(self, storage: Storage) -> None:
        put(storage, signal())
        refusals(storage, {name: partial(_write, storage, make) for name, make in _WRONG_FACTS.items()}, InvalidFact)

    def test_a_payload_that_cannot_be_kept_is_refused_whenever_it_came_in(self, storage: Storage) -> None:
        def changed_afterwards(value: Any) -> Fact:
            fact = signal(payload={})
            fact.payload["x"] = value
            return fact

        calls: dict[str, Callable[[], object]] = {}
        for name, value in _WRONG_VALUES.items():
            calls[f"{name}, from the start"] = partial(_write, storage, partial(bent, signal(), payload={"x": value}))
            calls[f"{name}, afterwards"] = partial(_write, storage, partial(changed_afterwards, value))
        refusals(storage, calls, InvalidFact)

    def test_one_wrong_fact_among_many_keeps_all_of_them_out(self, storage: Storage) -> None:
        wrong = signal(payload={})
        wrong.payload["x"] = float("nan")
        refusals(
            storage,
            {
                "last of its append": lambda: storage.append(THREAD, [signal(), started(), wrong]),
                "first of its commit": lambda: storage.commit(
                    [Append(THREAD, [wrong]), Append(QUEUE_THREAD, [queued()])]
                ),
                "last of its commit": lambda: storage.commit(
                    [Append(QUEUE_THREAD, [queued()]), Append(THREAD, [wrong])]
                ),
            },
            InvalidFact,
        )

    def test_what_is_no_fact_is_refused(self, storage: Storage) -> None:
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

    def test_a_fact_on_the_wrong_thread_is_refused(self, storage: Storage) -> None:
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

    def test_the_error_about_a_fact_names_the_field_and_never_a_long_value(self, storage: Storage) -> None:
        with pytest.raises(InvalidFact, match="occurred_at"):
            storage.append(THREAD, [bent(signal(), occurred_at=NAIVE_TIME)])
        with pytest.raises(InvalidFact) as refused:
            storage.append(THREAD, [bent(signal(), payload="x" * 5000)])
        assert "payload" in str(refused.value)
        assert len(str(refused.value)) < 500
        with pytest.raises(InvalidFact, match=r"16,7\d\d,\d{3} bytes.*16,777,216"):
            storage.append(THREAD, [signal(payload={"x": "y" * (DEFAULT_MAX_FACT_BYTES + 1)})])

    def test_an_odd_thread_is_refused(self, storage: Storage) -> None:
        odd: list[Any] = [f"squid:run:{part}" for part in ODD_PARTS] + [f"squid:dispatch:{part}" for part in ODD_PARTS]
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

    def test_a_commit_that_makes_no_sense_is_refused(self, storage: Storage) -> None:
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

    def test_a_revision_beyond_what_a_database_can_count_is_no_revision(self, storage: Storage) -> None:
        put(storage, signal())
        with pytest.raises((Conflict, InvalidArgument)):
            storage.append(THREAD, [signal()], expected_rev=2**64)
        assert len(all_entries(storage)) == 1

    def test_a_read_that_makes_no_sense_is_refused(self, storage: Storage) -> None:
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


def refusals(storage: Storage, calls: dict[str, Callable[[], object]], expected: type[SquidError]) -> None:
    """Assert that each call raises exactly the expected error, and that nothing is written."""
    before, unexpected = all_entries(storage), dict[str, str]()
    for name, call in calls.items():
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001  whatever it raises is reported
            if type(error) is not expected:
                unexpected[name] = f"{type(error).__name__}: {error}"
            elif not str(error).strip():
                unexpected[name] = "an error without words"
        else:
            unexpected[name] = f"accepted: {answer!r}"
        if all_entries(storage) != before:
            unexpected[name] = "something was written"
            before = all_entries(storage)
    assert unexpected == {}


def _write(storage: Storage, make: Callable[[], Fact]) -> int:
    fact = make()
    return storage.append(QUEUE_THREAD if "queue" in type(fact).model_fields else THREAD, [fact])
