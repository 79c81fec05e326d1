"""Invariants: a journal that real runs wrote keeps them all, and every rule is found broken where it was broken."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol import Entry, Fact, Reason, RunUnit
from squid_dagster.protocol.entries import by_run
from squid_dagster.testing import (
    InvariantViolated,
    Rule,
    SquidFactory,
    advance,
    assert_invariants,
    check_invariants,
    drain,
    execute_until_blocked,
    violations,
)
from tests.facts import (
    OnThread,
    applied,
    cataloged,
    claimed,
    completed,
    dead_lettered,
    entries,
    failed,
    failed_with_retry,
    fenced,
    heartbeat,
    indexed,
    malformed,
    planned,
    queue_paused,
    queued,
    released,
    runnable,
    scheduled,
    signal,
    started,
    t,
    terminal,
    unknown,
    wakeup,
)
from tests.histories import journals
from tests.journal.access import put
from tests.testing.flows import Script, circle, deferring, diamond, family, review, saga, scripted

HELD = (signal(), started(), planned(), queued(), scheduled(), claimed(fencing_token=1))
DONE = (*HELD, completed())
ENDED = (*DONE, applied(transition={"from": "charge", "on": "ok", "to": "complete"}), terminal())
LOST = {"from": "charge", "on": "error", "to": "fail"}
RETRIED = (*HELD, failed_with_retry(delay=0), planned(runnable(attempt=2, visible_at=t(30)), at=30))


def broken(facts: Sequence[Fact | OnThread]) -> set[Rule]:
    """Return the rules that these facts break."""
    return {violation.rule for violation in violations(entries(facts))}


# --- journals that are fine -----------------------------------------------------------------------------------------

FINE: dict[str, Sequence[Fact]] = {
    "nothing": (),
    "a run that ended, and is listed": (*ENDED, indexed(), cataloged(), fenced(at=60)),
    "a schedule before its plan, as one commit writes it": (queued(), scheduled(), signal(), started(), planned()),
    "a lease that was extended, and used to the last moment": (
        *HELD,
        wakeup(at=15),
        heartbeat(at=60),
        completed(at=119.9),
    ),
    "a claim after the lease": (*HELD, claimed(claim="b", at=70, fencing_token=2), completed(claim="b", at=80)),
    "a claim after a release": (*HELD, released(), claimed(claim="b", at=31, fencing_token=2)),
    "a retry": (
        *RETRIED,
        claimed(claim="b", at=31, attempt=2, fencing_token=2),
        completed(claim="b", attempt=2, at=32),
    ),
    "an outcome told twice": (*DONE, completed(at=31)),
    "a failure told twice": (*HELD, failed(), failed(at=31)),
    "an end told twice": (*ENDED, terminal(at=60)),
    "a failure that was applied": (*HELD, failed(), applied(result=None, transition=LOST), terminal(status="failed")),
    "a dead letter": (signal(), started(), planned(), scheduled(max_deliveries=1), claimed(), dead_lettered(at=71)),
    "an end with a fence": (*HELD, terminal(), fenced()),
    "a paused queue": (queue_paused(),),
}


@pytest.mark.parametrize("facts", FINE.values(), ids=FINE)
def test_a_journal_that_is_fine_breaks_no_rule(facts: Sequence[Fact]) -> None:
    assert violations(entries(facts)) == []


def test_what_real_runs_write_breaks_no_rule(squid: SquidFactory, storage: Storage, clock: VirtualClock) -> None:
    # given runs of every kind: retried, deferred, undone, approved, with children, cancelled, dead-lettered
    undone: list[str] = []
    script = Script(ValueError("no"), deferring(), *[ValueError("no")] * 9)
    flows = [review(), scripted(max_deliveries=1), diamond(), saga(undone), circle(3), *family()]
    app = squid(flows, storage=storage, clock=clock, resources={"script": script})
    runs = [app.start(flow.name).run_id for flow in flows]
    app.cancel(app.start("circle").run_id)
    app.dispatch_agent().claim_next("gone")
    for run_id in runs:
        execute_until_blocked(app, run_id)
    app.approve(runs[0], actor="ada")
    app.cancel(runs[0])
    app.pause_queue("default")
    app.resume_queue("default")
    app.replay(runs[-1])
    app.recover()
    advance(app, app.runtime.lease)
    drain(app)
    # then nothing is wrong, whichever way the journal is handed over
    assert check_invariants(storage) == check_invariants(app) == []
    assert_invariants(storage)
    # nor is there before everything is done
    everything = storage.read_between(0, storage.cut())
    assert violations(everything) == []
    assert not [
        violation
        for n in range(len(everything))
        for violation in violations(everything[:n])
        if violation.rule is Rule.ONE_HOLDER
    ]


# --- rules that were broken -----------------------------------------------------------------------------------------

SEEN_BY_BOTH = {
    Reason.ACTIVE_CLAIM: {Rule.ONE_HOLDER},
    Reason.STALE_CLAIM: {Rule.ONLY_THE_HOLDER_ACTS, Rule.SETTLED_STAYS},
    Reason.EXPIRED_CLAIM: {Rule.ONLY_THE_HOLDER_ACTS},
    Reason.TERMINAL_ATTEMPT: {Rule.SETTLED_STAYS},
    Reason.CONFLICTING_COMPLETION: {Rule.SETTLED_STAYS},
    Reason.CONFLICTING_FAILURE: {Rule.SETTLED_STAYS},
}


class Case(NamedTuple):
    """Facts of which one breaks a rule."""

    rule: Rule
    facts: Sequence[Fact | OnThread]


PLANTED: dict[str, Case] = {
    "a claim while another holds": Case(Rule.ONE_HOLDER, (*HELD, claimed(claim="b", at=20, fencing_token=2))),
    "a claim while a heartbeat lasts": Case(
        Rule.ONE_HOLDER, (*HELD, heartbeat(at=60), claimed(claim="b", at=100, fencing_token=2))
    ),
    "a claim of the retry while the first attempt is held": Case(
        Rule.ONE_HOLDER, (*HELD, scheduled(attempt=2), claimed(claim="b", at=20, attempt=2, fencing_token=2))
    ),
    "an outcome of somebody else": Case(Rule.ONLY_THE_HOLDER_ACTS, (*HELD, completed(claim="b"))),
    "an outcome with another token": Case(Rule.ONLY_THE_HOLDER_ACTS, (*HELD, completed(claim_token_hash="0" * 64))),
    "an outcome after the lease": Case(Rule.ONLY_THE_HOLDER_ACTS, (*HELD, failed(at=70))),
    "an outcome without any claim": Case(Rule.ONLY_THE_HOLDER_ACTS, (*HELD[:-1], completed())),
    "a heartbeat after the lease": Case(Rule.ONLY_THE_HOLDER_ACTS, (*HELD, heartbeat(at=71))),
    "a heartbeat of a zombie": Case(
        Rule.ONLY_THE_HOLDER_ACTS, (*HELD, claimed(claim="b", at=70, fencing_token=2), heartbeat(at=71))
    ),
    "a release of somebody else": Case(Rule.ONLY_THE_HOLDER_ACTS, (*HELD, released(claim="b"))),
    "a release after a release": Case(Rule.ONLY_THE_HOLDER_ACTS, (*HELD, released(), released(at=31))),
    "a dead letter while somebody holds it": Case(Rule.ONLY_THE_HOLDER_ACTS, (*HELD, dead_lettered(at=20))),
    "another result": Case(Rule.SETTLED_STAYS, (*DONE, completed(at=31, result={"ok": False}))),
    "a result of another claim": Case(Rule.SETTLED_STAYS, (*DONE, completed(at=31, claim="b"))),
    "a failure after a result": Case(Rule.SETTLED_STAYS, (*DONE, failed(at=31))),
    "another failure": Case(Rule.SETTLED_STAYS, (*HELD, failed(), failed(at=31, error={"message": "lost"}))),
    "a dead letter after a result": Case(Rule.SETTLED_STAYS, (*DONE, dead_lettered())),
    "a result after a dead letter": Case(
        Rule.SETTLED_STAYS, (planned(), scheduled(max_deliveries=1), claimed(), dead_lettered(), completed(at=101))
    ),
    "a claim after a result": Case(Rule.SETTLED_STAYS, (*DONE, claimed(claim="b", at=80, fencing_token=2))),
    "a heartbeat after a result": Case(Rule.SETTLED_STAYS, (*DONE, heartbeat(at=31))),
    "a release after a result": Case(Rule.SETTLED_STAYS, (*DONE, released(at=31))),
    "a token that falls": Case(Rule.TOKENS_GROW, (*HELD, claimed(claim="b", at=80, fencing_token=1))),
    "a token that falls over a retry": Case(
        Rule.TOKENS_GROW, (*RETRIED, claimed(claim="b", at=31, attempt=2, fencing_token=1))
    ),
    "a schedule without a plan": Case(Rule.SCHEDULED_WAS_PLANNED, (started(), scheduled())),
    "a schedule of a later attempt without a plan": Case(Rule.SCHEDULED_WAS_PLANNED, (*HELD, scheduled(attempt=2))),
    "a schedule of something else": Case(
        Rule.SCHEDULED_WAS_PLANNED, (started(), planned(), scheduled(input={"amount": 6}))
    ),
    "a schedule for another time": Case(Rule.SCHEDULED_WAS_PLANNED, (started(), planned(), scheduled(visible_at=t(9)))),
    "a result that nobody has given": Case(Rule.APPLIED_WAS_SETTLED, (*HELD, applied())),
    "a result that somebody gave later": Case(Rule.APPLIED_WAS_SETTLED, (*HELD, applied(at=20), completed())),
    "another result than the one given": Case(Rule.APPLIED_WAS_SETTLED, (*DONE, applied(result={"ok": False}))),
    "a result as a failure": Case(Rule.APPLIED_WAS_SETTLED, (*DONE, applied(transition=LOST))),
    "a failure as a result": Case(Rule.APPLIED_WAS_SETTLED, (*HELD, failed(), applied())),
    "a failure with a result": Case(Rule.APPLIED_WAS_SETTLED, (*HELD, failed(), applied(transition=LOST))),
    "a visit that is applied twice": Case(
        Rule.APPLIED_ONCE,
        (
            *RETRIED,
            claimed(claim="b", at=31, attempt=2, fencing_token=2),
            completed(claim="b", attempt=2, at=32),
            applied(result=None, transition=LOST),
            applied(attempt=2),
        ),
    ),
    "an attempt that is applied with two transitions": Case(
        Rule.APPLIED_ONCE, (*DONE, applied(), applied(transition={"from": "charge", "on": "ok", "to": "ship"}))
    ),
    "a plan after the end": Case(Rule.NOTHING_AFTER_THE_END, (*ENDED, planned(runnable(step="ship"), at=60))),
    "a schedule after the end": Case(Rule.NOTHING_AFTER_THE_END, (*ENDED, scheduled(step="ship", at=60))),
    "a claim after the end": Case(Rule.NOTHING_AFTER_THE_END, (*HELD[:-1], terminal(), claimed(at=60), fenced(at=61))),
    "a result after the end": Case(Rule.NOTHING_AFTER_THE_END, (*HELD, terminal(at=20), completed(), fenced())),
    "a command after the end": Case(Rule.NOTHING_AFTER_THE_END, (*ENDED, signal(at=60, signal_type="cancel_run"))),
    "another end": Case(Rule.NOTHING_AFTER_THE_END, (*ENDED, terminal(at=60, status="cancelled"))),
    "an end that leaves work on the queue": Case(Rule.NOTHING_CLAIMABLE_AFTER_THE_END, (*HELD, terminal())),
    "an end that leaves a retry on the queue": Case(Rule.NOTHING_CLAIMABLE_AFTER_THE_END, (*RETRIED, terminal())),
    "an index of a run that is not there": Case(Rule.LISTED_WAS_STARTED, (indexed(),)),
    "a catalog of a run that is not there": Case(Rule.LISTED_WAS_STARTED, (cataloged(),)),
    "an index under another workflow": Case(Rule.LISTED_WAS_STARTED, (started(), indexed(workflow="shipping"))),
    "a fact that the fold refuses": Case(Rule.NO_ANOMALY, (*HELD, applied(step="ship"))),
    "a fact that cannot be read": Case(Rule.NO_ANOMALY, (*HELD, malformed())),
    "a fact of no run that cannot be read": Case(Rule.NO_ANOMALY, (*HELD, malformed(run=None))),
    "a fact of a type that nobody knows": Case(Rule.NO_ANOMALY, (*HELD, unknown())),
}


@pytest.mark.parametrize("case", PLANTED.values(), ids=PLANTED)
def test_a_rule_that_was_broken_is_found_broken(case: Case) -> None:
    assert case.rule in broken(case.facts)


@pytest.mark.parametrize("case", PLANTED.values(), ids=PLANTED)
def test_a_rule_holds_without_the_fact_that_breaks_it(case: Case) -> None:
    harmless = [broken([*case.facts[:n], *case.facts[n + 1 :]]) for n in range(len(case.facts))]
    assert any(case.rule not in rules for rules in harmless)


def test_every_rule_can_be_broken() -> None:
    of_place = {Rule.CONTIGUOUS_SEQUENCES, Rule.GROWING_POSITIONS, Rule.SAME_READING}
    assert {case.rule for case in PLANTED.values()} | of_place == set(Rule)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda journal: journal[:1] + journal[2:], Rule.CONTIGUOUS_SEQUENCES),
        (lambda journal: journal[1:], Rule.CONTIGUOUS_SEQUENCES),
        (lambda journal: [*journal, journal[-1]._replace(position=99)], Rule.CONTIGUOUS_SEQUENCES),
        (lambda journal: [*journal[:-1], journal[-1]._replace(position=journal[0].position)], Rule.GROWING_POSITIONS),
        (lambda journal: [journal[1], journal[0], *journal[2:]], Rule.GROWING_POSITIONS),
    ],
    ids=["a gap", "a missing beginning", "a repeated number", "a repeated position", "another order"],
)
def test_an_entry_out_of_its_place_is_found(change: Callable[[list[Entry]], list[Entry]], rule: Rule) -> None:
    assert rule in {violation.rule for violation in violations(change(entries(DONE)))}


class ForgetfulStorage(MemoryStorage):
    """A storage of which one way of reading leaves the last entry out."""

    forgets = ""

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Read a thread, or most of it."""
        stored = super().read(thread, after, limit)
        return stored[:-1] if self.forgets == "read" else stored

    def revision(self, thread: str) -> int:
        """Return a revision, or the one before."""
        return super().revision(thread) - (self.forgets == "revision")

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        """Read a run, or most of it."""
        stored = super().read_run(run_id, before)
        return stored[:-1] if self.forgets == "read_run" else stored


@pytest.mark.parametrize("way", ["read", "revision", "read_run"])
def test_ways_of_reading_that_differ_are_found(way: str) -> None:
    storage = ForgetfulStorage()
    put(storage, *DONE)
    assert check_invariants(storage) == []
    storage.forgets = way
    assert {violation.rule for violation in check_invariants(storage)} == {Rule.SAME_READING}


# --- how it is told -------------------------------------------------------------------------------------------------


def test_a_violation_in_a_real_journal_is_told_with_its_entry(
    squid: SquidFactory, storage: Storage, clock: VirtualClock
) -> None:
    # given a run that ended, and a caller that appends to it directly
    app = squid(circle(1), storage=storage, clock=clock)
    app.start("circle")
    drain(app)
    put(storage, signal("run-1", at=5, signal_type="cancel_run"))
    revision = storage.revision("squid:run:run-1")
    # then all is told, and where to look
    with pytest.raises(InvariantViolated) as raised:
        assert_invariants(app)
    assert isinstance(raised.value, AssertionError)
    (violation,) = raised.value.violations
    assert (violation.rule, violation.run_id, violation.seq) == (Rule.NOTHING_AFTER_THE_END, "run-1", revision)
    assert str(raised.value) == (
        "the journal breaks 1 rule:\n"
        f"  nothing_after_the_end: entry {revision} of 'squid:run:run-1' (run 'run-1') run_signal_received comes after "
        f"the end, at {_position_of_the_end(storage)}"
    )


def _position_of_the_end(storage: Storage) -> int:
    return next(entry.position for entry in storage.read_run("run-1") if entry.fact.type == "run_terminal")


@given(journals())
def test_any_journal_at_all_is_judged_and_the_facts_alone_show_what_the_fold_shows(journal: list[Entry]) -> None:
    broken = violations(journal)
    assert broken == sorted(broken, key=lambda violation: (violation.position, violation.rule))
    for run_id, its in by_run(journal).items():
        refused = [] if run_id is None else RunUnit.fold(its).anomalies
        rules_broken = {(violation.rule, violation.position) for violation in broken if violation.run_id == run_id}
        # A run of which the fold has refused one kind of fact only, and followed all others, is seen alike by both.
        for reason, rules in SEEN_BY_BOTH.items():
            if refused and {anomaly.reason for anomaly in refused} == {reason}:
                assert all(any((rule, anomaly.position) in rules_broken for rule in rules) for anomaly in refused)
