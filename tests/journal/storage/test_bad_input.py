"""What is wrong is refused with an error of its own, beyond what the storage contract says."""

from functools import partial

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol import AttemptClaimed, parse_fact
from squid_dagster.protocol.errors import InvalidArgument, InvalidFact
from squid_dagster.testing.storage_contract.invalid_arguments import NAIVE_TIME, ODD_PARTS, refusals
from tests.facts import RUN, T0, claimed, queue_paused, signal, t
from tests.journal.access import THREAD, Opener


def test_a_limit_of_one_s_own_on_the_size_of_facts_is_kept(open_storage: Opener) -> None:
    small = open_storage(max_fact_bytes=200)
    small.upgrade()
    for storage in (MemoryStorage(max_fact_bytes=200), small):
        refusals(storage, {"large": partial(storage.append, THREAD, [signal(payload={"x": "y" * 200})])}, InvalidFact)
        assert storage.append(THREAD, [signal(payload={"x": "y" * 50})]) == 1


def test_a_fact_that_is_read_from_outside_is_checked_before_it_is_one() -> None:
    for value in (
        {"type": "run_started"},
        {"type": "run_started", "run_id": RUN, "workflow": "billing", "occurred_at": NAIVE_TIME},
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


def test_a_run_or_queue_with_an_odd_name_cannot_even_be_made_into_a_fact() -> None:
    for part in ODD_PARTS:
        with pytest.raises(InvalidFact):
            parse_fact({**signal().model_dump(), "run_id": part})
        with pytest.raises(InvalidFact):
            parse_fact({**queue_paused().model_dump(), "queue": part})


def test_a_clock_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="zone"):
        VirtualClock(NAIVE_TIME)
