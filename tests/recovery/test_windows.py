"""Every boundary between two appends, of every command and of execution, is a place where a process has ended.

The places are listed by playing each scenario once on a storage that notes its appends, not by hand. For each of them a
child process plays the scenario again and ends there by `os._exit`; then others, who do not know where, go on.
"""

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from squid_dagster import SignalType
from squid_dagster.api import Squid
from squid_dagster.journal.contract.dispatch_store import DispatchStore
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import InvalidTransition
from squid_dagster.protocol.facts import FACT_TYPES
from squid_dagster.runtime.recovery.recovery import list_started
from squid_dagster.testing import Crashed, InjectedStorage, Plan
from tests.facts import CARD_EXAMPLES
from tests.recovery.append_sites import WRITES, sites, sites_in
from tests.recovery.crash_processes import ScenarioPlayer, split
from tests.recovery.enumeration import Enumeration, enumerate_all
from tests.recovery.scenario import LATER, RECOVER, Scenario, clock_at, ends_of, play
from tests.recovery.scenarios import SCENARIOS

pytestmark = pytest.mark.timeout(900)  # hundreds of processes, on a machine that may be busy

# Calls that no scenario can interrupt between two appends, and why.
WITHOUT_A_WINDOW = {
    "journal/fold_store/commits.py commit_group: storage.commit": "one append, where commits span threads",
    "journal/fold_store/commits.py commit_in_order: storage.commit": "one append, where commits span threads",
    "runtime/execution/transactional_steps.py run_transactional: store.settle_within": "one transaction with the step",
    "runtime/worker/committer.py release: self._runtime.dispatch.release": "one append",
    "runtime/leases/lease_backend.py claim: runtime.dispatch.claim": "one append",
    "runtime/leases/lease_backend.py extended: runtime.dispatch.heartbeat": "one append",
    "runtime/leases/claim_by_key.py claim_item: runtime.command": "one append",
    "runtime/leases/host_queue.py claim: runtime.dispatch.dead_letter_expired": "one append",
    "runtime/leases/host_queue.py _claim_into: self._queue.claim": "a host's queue",
    "runtime/leases/host_queue.py heartbeat: self._queue.heartbeat": "a host's queue",
    "runtime/leases/lease_work.py work_one_lease: backend.claim": "one append",
    "runtime/leases/lease_work.py _beat: backend.heartbeat": "one append",
}
# What `Squid` offers without writing anything.
READS = {
    "attention", "attention_items", "close", "connect", "dead_letters", "dispatch_agent", "explain_run",
    "inspect_queue", "inspect_run", "inspect_run_graph", "inspect_run_timeline", "journal", "list_runs",
    "live_workers", "new_worker", "queues", "workflow_agent",
}  # fmt: skip
STORAGE_READS = {
    "atomic_across_threads", "max_fact_bytes", "now", "find_commit", "read", "revision", "cut", "read_between",
    "read_run", "get_checkpoint", "visible", "expired",
}  # fmt: skip
# Caches, hints and tools: no fact is written by these.
STORAGE_UPKEEP = {"put_checkpoint", "delete_checkpoint", "delete_thread", "announce"}


@pytest.fixture(scope="module")
def enumeration(postgres_url: str, schema_names: Iterator[str]) -> Enumeration:
    """The result of all plays. Commits must outlive the process, not the machine: they do not wait for the disk."""
    joint = "&" if "?" in postgres_url else "?"
    return enumerate_all(f"{postgres_url}{joint}options=-csynchronous_commit%3Doff", next(schema_names))


def test_recovery_brings_every_interrupted_run_to_its_end(
    enumeration: Enumeration, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nwindows={len(enumeration.wrong)} covered={len(enumeration.covered)}")
    failures = [f"{window}\n    " + "\n    ".join(wrong) for window, wrong in enumeration.wrong.items() if wrong]
    assert not failures, "\n".join(failures)
    assert len(enumeration.covered) == len(enumeration.wrong) >= 150


def test_one_recovery_closes_everything_and_refuses_nothing(enumeration: Enumeration) -> None:
    assert enumeration.left_by_recovery == []


def test_the_end_is_the_same_where_commits_span_threads(enumeration: Enumeration) -> None:
    for (name, on), end in enumeration.ends_of_whole.items():
        assert end == enumeration.undisturbed[name].end, f"{name}, whole on {on}"
    assert len(enumeration.ends_of_whole) == 2 * len(SCENARIOS)


@pytest.mark.parametrize(
    ("scenario", "asked"),
    [
        # Of each window, what had to be asked for again: recovery alone completes what is on record.
        ("start", [set()] * 9),
        ("start cron", [set()] * 2),
        ("start due crons", [set()] * 2),
        ("start by signal", [set()] * 2),
        ("start child", [{"start child"}, *[set()] * 4]),  # the first window is that of the claim
        ("replay", [set()] * 2),
        ("reject", [set()] * 5),
        ("start many", [*[{"start many"}] * 4, set(), set()]),  # the third run is on record with its first append
        ("cancel", [{"cancel"}, {"cancel"}, set(), set()]),  # the first two windows are those of the start
        ("reject at once", [{"reject"}, {"reject"}, set()]),
    ],
)
def test_only_a_command_that_is_not_on_record_is_asked_for_again(
    enumeration: Enumeration, scenario: str, asked: list[set[str]]
) -> None:
    done = {"work", "one step", "recover", "time passes"}
    windows = [window for window in enumeration.asked_again if window.scenario == scenario]
    assert [enumeration.asked_again[window] - done for window in windows] == asked


def test_every_call_that_appends_has_a_case(enumeration: Enumeration) -> None:
    lines = {line for undisturbed in enumeration.undisturbed.values() for lines in undisturbed.lines for line in lines}
    uncovered = [site for site in sites() if not any(site.led_to(line) for line in lines)]
    new = [f"{site.name} (line {site.first})" for site in uncovered if site.name not in WITHOUT_A_WINDOW]
    assert not new, "calls that may append, in no scenario: add one to tests/recovery/scenarios.py\n" + "\n".join(new)
    assert {site.name for site in uncovered} == set(WITHOUT_A_WINDOW), "an exception that is none any more"


def test_a_new_call_that_appends_would_be_found() -> None:
    text = """
def new_command(runtime, facts):
    facts.append(1)
    return runtime.decide(["run"], lambda units, now: facts)

class Agent:
    def note(self):
        self._storage.append("thread", [])
        self._dispatch.settle([])
        quarantine(self._storage, [])
"""
    assert [site.name for site in sites_in("runtime/new.py", text)] == [
        "runtime/new.py new_command: runtime.decide",
        "runtime/new.py note: self._storage.append",
        "runtime/new.py note: self._dispatch.settle",
        "runtime/new.py note: quarantine",
    ]


def test_every_kind_of_fact_and_of_signal_is_written_somewhere(enumeration: Enumeration) -> None:
    labels = " ".join(label for undisturbed in enumeration.undisturbed.values() for label in undisturbed.appends)
    cards = {fact.type for fact in CARD_EXAMPLES}  # which no run writes
    assert {name for name in FACT_TYPES if name not in labels} == cards
    runs = [run for undisturbed in enumeration.undisturbed.values() for run in undisturbed.end["runs"].values()]
    assert {signal[0] for run in runs for signal in run["signals"]} == {str(kind) for kind in SignalType}


def test_every_command_of_squid_is_interrupted(enumeration: Enumeration) -> None:
    lines = {line for undisturbed in enumeration.undisturbed.values() for lines in undisturbed.lines for line in lines}
    played = {line.function for line in lines if line.file == "api.py"}
    offered = {name for name, _ in inspect.getmembers(Squid) if not name.startswith("_")}
    assert offered - played == READS


def test_all_that_storages_and_stores_can_do_is_known_to_write_or_not() -> None:
    methods = {name for kind in (Storage, DispatchStore) for name in vars(kind) if not name.startswith("_")}
    assert methods - STORAGE_READS - STORAGE_UPKEEP == WRITES - {"settle_within"}


# --- without recovery -----------------------------------------------------------------------------------------------

# Recovery is part of the play itself, or other threads than ours would have to crash.
NOT_IN_MEMORY = {scenario.name for scenario in SCENARIOS if RECOVER in scenario.moves} | {"worker"}


def test_without_recovery_many_windows_would_stay_open() -> None:
    # The same windows in memory, without recovery: the comparison of ends must fail.
    lost = {name: _lost_windows(scenario) for scenario in SCENARIOS if (name := scenario.name) not in NOT_IN_MEMORY}
    assert sum(lost.values()) >= 40
    # Each of these commands is one append: the next worker continues without recovery.
    assert {name for name, count in lost.items() if not count} == {"defer", "pause and resume a queue"}


def _lost_windows(scenario: Scenario) -> int:
    """Count the windows from which a scenario does not come to its end without recovery."""
    expected, windows = _play_in_memory(scenario, None)
    return sum(_play_in_memory(scenario, number)[0] != expected for number in range(1, windows + 1))


def _play_in_memory(scenario: Scenario, crash_after: int | None) -> tuple[Any, int]:
    """Run a scenario, interrupted or not, to its end without recovery; return the end and the number of its appends."""
    clock = clock_at()
    player, storage = ScenarioPlayer("", "", scenario), MemoryStorage(clock)
    case = player.next_case()
    play(player.client(split(storage), clock, case), scenario.before)
    ending = InjectedStorage(storage, Plan(crash_after=crash_after), atomic_across_threads=False)
    with suppress(Crashed):
        play(player.client(ending, clock, case), scenario.moves)
    clock.advance(LATER)
    others = player.client(split(storage), clock, case)
    with suppress(InvalidTransition):  # a person cannot decide what the run has not come to
        play(others, scenario.moves)
        play(others, scenario.after)
    list_started(others.squid.runtime)
    return ends_of(storage)[case.name], len(ending.boundaries)
