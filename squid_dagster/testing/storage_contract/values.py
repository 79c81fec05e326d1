"""The part of the storage contract about values: what is read is what was written, however strange or large."""

from functools import partial

from pydantic import JsonValue

from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.codec import to_json
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.threads import run_thread
from squid_dagster.testing.example_facts import (
    AWKWARD,
    EXAMPLE_FACTS,
    QUEUE_THREAD,
    RUN,
    THREAD,
    all_entries,
    facts_of,
    planned,
    put,
    scheduled,
    signal,
    with_fields,
)


class ValueContract:
    """Tests of facts that come back as they were written."""

    def test_every_kind_of_fact_comes_back_as_it_was_written(self, storage: Storage) -> None:
        # given facts with fields that this version does not know
        facts = [with_fields(fact, strange=AWKWARD, another=[1.5, "x"]) for fact in EXAMPLE_FACTS]
        for fact in facts:
            # when each is written and read again
            revision = storage.append(fact.thread, [fact])
            (entry,) = storage.read(fact.thread, after=revision - 1)
            # then it is the same, to the last sign
            assert entry.fact == fact
            assert type(entry.fact) is type(fact)
            assert to_json(entry.fact) == to_json(fact)
        assert facts_of(all_entries(storage)) == facts

    def test_neither_writers_nor_readers_change_a_fact_by_changing_what_they_hold(self, storage: Storage) -> None:
        # given a fact whose payload its writer goes on using
        payload: dict[str, JsonValue] = {"items": [1]}
        fact = signal(payload=payload)
        storage.append(THREAD, [fact])
        fact.payload["items"] = "changed by the writer"
        # when a reader changes what it was given
        for read in (partial(storage.read, THREAD), partial(storage.read_run, RUN), partial(all_entries, storage)):
            (fact_read,) = facts_of(read())
            fact_read.payload["items"].append("changed by a reader")
        # then the journal still says what was written
        assert facts_of(storage.read(THREAD)) == [signal(payload={"items": [1]})]

    def test_five_thousand_facts_fit_into_one_commit(self, storage: Storage) -> None:
        # given a commit of 5,000 facts over 501 threads
        facts: list[Fact] = [signal(f"run-{n % 500}", at=n) for n in range(4500)]
        facts += [scheduled(f"run-{n}") for n in range(500)]
        # when it is written
        put(storage, *facts)
        # then every one is there
        assert len(all_entries(storage)) == 5000
        assert storage.revision(run_thread("run-7")) == 9
        assert storage.revision(QUEUE_THREAD) == 500
        assert storage.cut() == all_entries(storage)[-1].position

    def test_a_fact_of_almost_a_mebibyte_is_kept(self, storage: Storage) -> None:
        large = signal(payload={"text": "🦑" * 260_000})
        storage.append(THREAD, [large])
        assert facts_of(storage.read(THREAD)) == [large]
        put(storage, scheduled(input={"text": "x" * 1_040_000}), planned())
        (_, large_input) = facts_of(storage.read_run(RUN))[:2]
        assert len(large_input.input["text"]) == 1_040_000
