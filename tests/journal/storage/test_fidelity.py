"""What is read is what was written: every type of fact, any JSON value, and no entry that was changed since."""

from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import JsonValue

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Fact, to_json
from tests.facts import EXAMPLES, applied, completed, scheduled, signal, started, with_fields
from tests.histories import histories, json_objects, json_values
from tests.journal.access import (
    AWKWARD,
    EVERYTHING,
    THREAD,
    WITHOUT_SHRINKING,
    all_entries,
    append_one,
    as_json,
    facts_of,
    put,
    raw,
)


@pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: fact.type)
def test_every_type_of_fact_comes_back_as_it_was_written(
    fact: Fact, clock: VirtualClock, postgres_shared: PostgresStorage
) -> None:
    # given a fact with fields that this version does not know
    written = with_fields(fact, strange=AWKWARD, another=[1.5, "x"])
    for storage in (MemoryStorage(clock), MemoryStorage(clock, atomic_across_threads=False), postgres_shared):
        # when it is written and read again
        revision = append_one(storage, written)
        (entry,) = storage.read(written.thread, after=revision - 1)
        # then it is the same, to the last sign
        assert entry.fact == written
        assert as_json(entry) == to_json(written)
        assert type(entry.fact) is type(written)


@given(payload=json_objects(), value=json_values(), strange=json_values())
@settings(max_examples=60, phases=WITHOUT_SHRINKING)
def test_any_json_value_comes_back_as_it_was_written(
    postgres_shared: PostgresStorage, payload: dict[str, JsonValue], value: JsonValue, strange: JsonValue
) -> None:
    facts: list[Fact] = [
        signal("any", payload=payload, note=strange),
        started("any", input=payload, context={"value": value}),
        completed("any", result=value, note=strange),
        applied("any", result=value, transition=payload),
        scheduled("any", input=payload, note=value),
    ]
    for storage in (MemoryStorage(), postgres_shared):
        after = storage.cut()
        put(storage, *facts)
        read_facts = facts_of(storage.read_between(after, EVERYTHING))
        assert sorted(map(to_json, read_facts)) == sorted(map(to_json, facts))


_MISLEADING: tuple[dict[str, Any], ...] = (
    {"runnable_key": 7},
    {"runnable_key": ["x"]},
    {"runnable_key": "run-1:charge:1:1"},
    {"retry_runnable_key": {"a": 1}},
    {"step": {"a": 1}},
    {"child_run_id": ["x"]},
    {"queue": 5},
    {"runnables": "none"},
    {"workflow": None},
    {"thread": "squid:run:elsewhere"},
)


@pytest.mark.parametrize("fields", _MISLEADING, ids=str)
def test_an_unknown_field_with_the_name_of_another_fact_s_field_is_kept_and_means_nothing(
    fields: dict[str, Any], postgres_shared: PostgresStorage
) -> None:
    wrong: list[str] = []
    # given facts whose unknown field is called like another fact's own
    for fact in (fact for fact in EXAMPLES if not fields.keys() & type(fact).model_fields.keys()):
        strange = with_fields(fact, **fields)
        for storage in (MemoryStorage(), postgres_shared):
            # when they are written
            try:
                revision = append_one(storage, strange)
            except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
                wrong.append(f"{fact.type} in {type(storage).__name__}: {type(error).__name__}: {error}")
                continue
            # then they come back whole
            (entry,) = storage.read(strange.thread, after=revision - 1)
            if as_json(entry) != to_json(strange):
                wrong.append(f"{fact.type} in {type(storage).__name__}: came back as {entry}")
    assert wrong == []


@given(histories())
@settings(max_examples=25, phases=WITHOUT_SHRINKING)
def test_any_history_is_kept_whole_and_in_order(postgres_shared: PostgresStorage, history: list[Fact]) -> None:
    for storage in (MemoryStorage(), postgres_shared):
        after = storage.cut()
        for fact in history:
            storage.append(fact.thread, [fact])
        assert facts_of(storage.read_between(after, storage.cut())) == history


def test_an_entry_that_was_changed_behind_our_back_is_surfaced_and_not_believed(postgres: PostgresStorage) -> None:
    # given an entry that a superuser has altered
    postgres.append(THREAD, [signal(payload={"amount": 5}), started()])
    with raw(postgres) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute("UPDATE journal_entries SET data = replace(data::text, '5', '6')::json WHERE seq = 1")
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")
    # when it is read
    changed, untouched = postgres.read(THREAD)
    # then it says so, and the others are as they were
    assert "digest" in getattr(changed.fact, "reason", "")
    assert untouched.fact == started()


@pytest.mark.parametrize(
    "change",
    [
        "thread = 'squid:run:another'",
        "seq = 7",
        "type = 'run_started'",
        "run_id = 'another'",
        "run_id = NULL",
        "occurred_at = occurred_at + interval '1 microsecond'",
        "data = '{}'",
        "thread = thread || left(type, 1), type = substr(type, 2)",
    ],
)
def test_whatever_was_changed_in_an_entry_its_digest_does_not_fit(postgres: PostgresStorage, change: str) -> None:
    postgres.append(THREAD, [signal(payload={"amount": 5})])
    with raw(postgres) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute(f"UPDATE journal_entries SET {change}")
    (changed,) = all_entries(postgres)
    assert "digest" in getattr(changed.fact, "reason", "")
