"""The rules of the fold as a table: these facts, then these rows. Each host of the fold is held to the same table.

A rule that is broken in the protocol makes rows come out differently, in memory as in every other host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from squid_dagster.protocol import Fact
from tests.facts import (
    RUN,
    applied,
    cataloged,
    child,
    claimed,
    completed,
    dead_lettered,
    failed,
    failed_with_retry,
    fence,
    fenced,
    heartbeat,
    indexed,
    key,
    planned,
    quarantined,
    queue_paused,
    queue_resumed,
    queued,
    released,
    runnable,
    scheduled,
    signal,
    started,
    step_paused,
    step_resolved,
    t,
    terminal,
    wakeup,
)

Columns = dict[str, Any]
FIRST, SECOND = key(), key(attempt=2)


@dataclass(frozen=True)
class Rule:
    """Facts about run-1, and what is to be seen afterwards; an attempt that maps to None has no row."""

    name: str
    facts: Sequence[Fact]
    attempts: dict[str, Columns | None] = field(default_factory=dict)
    run: Columns = field(default_factory=dict)
    anomalies: Sequence[str] = ()
    queues: dict[str, bool] = field(default_factory=dict)

    def assert_holds(
        self,
        attempts: Sequence[Columns],
        runs: Sequence[Columns],
        anomalies: Sequence[Columns],
        queues: Sequence[Columns],
    ) -> None:
        """These rows say what the rule says, in each column that it names."""
        by_key = {row["runnable_key"]: row for row in attempts}
        for attempt, columns in self.attempts.items():
            if columns is None:
                assert attempt not in by_key
            else:
                assert {name: by_key[attempt][name] for name in columns} == columns
        by_id = {row["run_id"]: row for row in runs}
        assert {name: by_id[RUN][name] for name in self.run} == self.run
        assert [row["reason"] for row in anomalies] == list(self.anomalies)
        assert {row["queue"]: row["paused"] for row in queues} == self.queues


def at(seconds: float) -> str:
    """Spell a time as rows do."""
    return t(seconds).isoformat()


def _attempt(**columns: Any) -> dict[str, Columns | None]:
    return {FIRST: columns}


AVAILABLE = {"status": "available", "claim_id": None, "due_at": at(0)}
HELD_BY_A = {"status": "claimed", "claim_id": "a", "lease_until": at(70), "due_at": at(70), "fencing_token": 1}

DISPATCH = [
    Rule("a scheduled attempt is available", [scheduled()], _attempt(**AVAILABLE, deliveries=0, input={"amount": 5})),
    Rule("priority and visibility are kept", [scheduled(priority=3, visible_at=t(9))], _attempt(rank=-3, due_at=at(9))),
    Rule("the same intent again is nothing", [scheduled(), scheduled(at=3)], _attempt(**AVAILABLE, last_at=at(0))),
    Rule(
        "another intent under the same key is refused",
        [scheduled(), scheduled(input={"amount": 6})],
        _attempt(**AVAILABLE, input={"amount": 5}),
        anomalies=["conflicting_runnable_intent"],
    ),
    Rule(
        "a claim holds the attempt", [scheduled(), claimed()], _attempt(**HELD_BY_A, deliveries=1, owner_id="worker-a")
    ),
    Rule("a claim of nothing is refused", [claimed()], {FIRST: None}, anomalies=["unknown_runnable_intent"]),
    Rule(
        "a held attempt is not taken over",
        [scheduled(), claimed(), claimed(at=69.9, claim="b")],
        _attempt(**HELD_BY_A),
        anomalies=["active_claim"],
    ),
    Rule(
        "an attempt is taken over at the instant its lease ends",
        [scheduled(), claimed(), claimed(at=70, claim="b")],
        _attempt(status="claimed", claim_id="b", deliveries=2, fencing_token=2, due_at=at(130)),
    ),
    Rule(
        "nothing is claimed before it is visible",
        [scheduled(visible_at=t(11)), claimed()],
        _attempt(status="available", due_at=at(11)),
        anomalies=["attempt_not_visible"],
    ),
    Rule("a claim at the instant of visibility holds", [scheduled(visible_at=t(10)), claimed()], _attempt(**HELD_BY_A)),
    Rule(
        "a finished attempt is not claimed",
        [scheduled(), claimed(), completed(), claimed(at=100, claim="b")],
        _attempt(status="completed", claim_id="a", due_at=None),
        anomalies=["terminal_attempt"],
    ),
    Rule(
        "a claim must carry the next fencing token",
        [scheduled(), claimed(fencing_token=2)],
        _attempt(**AVAILABLE, fencing_token=0),
        anomalies=["wrong_fencing_token"],
    ),
    Rule(
        "the fencing token goes on counting over retries",
        [
            scheduled(),
            claimed(fencing_token=1),
            failed_with_retry(),
            claimed(attempt=2, at=40, claim="b", fencing_token=2),
        ],
        {SECOND: {"status": "claimed", "fencing_token": 2}},
    ),
    Rule(
        "the fencing token goes on counting after a release",
        [scheduled(), claimed(), released(), claimed(at=40, claim="b", fencing_token=2)],
        _attempt(status="claimed", claim_id="b", fencing_token=2, deliveries=1),
    ),
    Rule(
        "a heartbeat extends the lease",
        [scheduled(), claimed(), heartbeat()],
        _attempt(lease_until=at(80), due_at=at(80)),
    ),
    Rule(
        "a heartbeat never shortens the lease",
        [scheduled(), claimed(), heartbeat(lease=5)],
        _attempt(lease_until=at(70), last_at=at(20)),
    ),
    Rule(
        "a heartbeat with another claim is stale",
        [scheduled(), claimed(), heartbeat(claim="b")],
        _attempt(**HELD_BY_A),
        anomalies=["stale_claim"],
    ),
    Rule(
        "a heartbeat with the right claim and a wrong token is stale",
        [scheduled(), claimed(), heartbeat(claim_token_hash="0" * 64)],
        _attempt(**HELD_BY_A),
        anomalies=["stale_claim"],
    ),
    Rule(
        "a heartbeat at the end of the lease is too late",
        [scheduled(), claimed(), heartbeat(at=70)],
        _attempt(**HELD_BY_A),
        anomalies=["expired_claim"],
    ),
    Rule(
        "a release gives the attempt back and counts as no delivery",
        [scheduled(), claimed(), released()],
        _attempt(**AVAILABLE, deliveries=0, lease_until=None, owner_id=None),
    ),
    Rule(
        "a deferral gives the attempt back and hides it until its time",
        [scheduled(), claimed(), released(visible_at=t(90)), claimed(at=89, claim="b")],
        _attempt(status="available", visible_at=at(90), due_at=at(90), deliveries=0),
        anomalies=["attempt_not_visible"],
    ),
    Rule(
        "an interruption gives the attempt back and stays counted as a delivery",
        [scheduled(), claimed(), released(counted=True, visible_at=t(90))],
        _attempt(status="available", visible_at=at(90), due_at=at(90), deliveries=1, lease_until=None, owner_id=None),
    ),
    Rule(
        "a release with another claim is stale",
        [scheduled(), claimed(), released(claim="b")],
        _attempt(**HELD_BY_A, deliveries=1),
        anomalies=["stale_claim"],
    ),
    Rule(
        "a completion settles the attempt",
        [scheduled(), claimed(), completed()],
        _attempt(status="completed", due_at=None, settled_at=at(30), input=None),
    ),
    Rule(
        "the same completion again is nothing",
        [scheduled(), claimed(), completed(), completed(at=35)],
        _attempt(status="completed", settled_at=at(30)),
    ),
    Rule(
        "another result from the same claim is refused",
        [scheduled(), claimed(), completed(), completed(at=35, result={"ok": False})],
        _attempt(status="completed", settled_at=at(30)),
        anomalies=["conflicting_completion"],
    ),
    Rule(
        "a late completion is refused although nobody took over",
        [scheduled(), claimed(), completed(at=70)],
        _attempt(**HELD_BY_A),
        anomalies=["expired_claim"],
    ),
    Rule(
        "a zombie cannot complete after takeover",
        [scheduled(), claimed(), claimed(at=70, claim="b"), completed(at=75)],
        _attempt(status="claimed", claim_id="b"),
        anomalies=["stale_claim"],
    ),
    Rule(
        "a zombie cannot repeat its completion on a completed attempt",
        [scheduled(), claimed(), claimed(at=70, claim="b"), completed(at=75, claim="b"), completed(at=76)],
        _attempt(status="completed", claim_id="b", settled_at=at(75)),
        anomalies=["stale_claim"],
    ),
    Rule(
        "a completion without a claim is stale",
        [scheduled(), completed()],
        _attempt(**AVAILABLE),
        anomalies=["stale_claim"],
    ),
    Rule(
        "a failure settles the attempt",
        [scheduled(), claimed(), failed()],
        {FIRST: {"status": "failed", "due_at": None}, SECOND: None},
    ),
    Rule(
        "a failure creates its retry",
        [scheduled(), claimed(), failed_with_retry()],
        {
            FIRST: {"status": "failed"},
            SECOND: {
                "status": "retry_scheduled",
                "attempt_number": 2,
                "due_at": at(40),
                "deliveries": 0,
                "claim_id": None,
                "lease_until": None,
                "input": {"amount": 5},
                "idempotency_key": "run-1:charge:1",
            },
        },
    ),
    Rule(
        "the same failure again is nothing",
        [scheduled(), claimed(), failed_with_retry(), failed_with_retry(at=35)],
        {FIRST: {"status": "failed", "settled_at": at(30)}, SECOND: {"due_at": at(40)}},
    ),
    Rule(
        "another error from the same claim is refused",
        [scheduled(), claimed(), failed(), failed(at=35, error={"message": "other"})],
        _attempt(status="failed", settled_at=at(30)),
        anomalies=["conflicting_failure"],
    ),
    Rule(
        "a late failure is refused",
        [scheduled(), claimed(), failed_with_retry(at=70)],
        {FIRST: HELD_BY_A, SECOND: None},
        anomalies=["expired_claim"],
    ),
    Rule(
        "a retry does not replace another intent",
        [scheduled(), scheduled(attempt=2, input={"amount": 9}), claimed(), failed_with_retry()],
        {FIRST: {"status": "failed"}, SECOND: {"status": "available", "input": {"amount": 9}}},
        anomalies=["conflicting_runnable_intent"],
    ),
    Rule(
        "a spent attempt is not claimed again",
        [scheduled(max_deliveries=1), claimed(), claimed(at=70, claim="b")],
        _attempt(**HELD_BY_A),
        anomalies=["deliveries_exhausted"],
    ),
    Rule(
        "a spent attempt becomes a dead letter",
        [scheduled(max_deliveries=1), claimed(), dead_lettered(at=70)],
        _attempt(status="dead_lettered", due_at=None, settled_at=at(70)),
    ),
    Rule(
        "a dead letter again is nothing",
        [scheduled(max_deliveries=1), claimed(), dead_lettered(at=70), dead_lettered(at=71)],
        _attempt(status="dead_lettered", settled_at=at(70)),
    ),
    Rule(
        "an attempt with deliveries left is no dead letter",
        [scheduled(max_deliveries=2), claimed(), dead_lettered(at=70)],
        _attempt(**HELD_BY_A),
        anomalies=["premature_dead_letter"],
    ),
    Rule(
        "its holder may give up a spent attempt while the lease lasts",
        [scheduled(max_deliveries=1), claimed(), dead_lettered(at=20, **fence("a"))],
        _attempt(status="dead_lettered", due_at=None, settled_at=at(20)),
    ),
    Rule(
        "an attempt with deliveries left is not given up by its holder",
        [scheduled(max_deliveries=2), claimed(), dead_lettered(at=20, **fence("a"))],
        _attempt(**HELD_BY_A),
        anomalies=["premature_dead_letter"],
    ),
    Rule(
        "another claim than its holder's does not give up a spent attempt",
        [scheduled(max_deliveries=1), claimed(), dead_lettered(at=20, **fence("b"))],
        _attempt(**HELD_BY_A),
        anomalies=["premature_dead_letter"],
    ),
    Rule(
        "an attempt that is still held is no dead letter",
        [scheduled(max_deliveries=1), claimed(), dead_lettered(at=69)],
        _attempt(**HELD_BY_A),
        anomalies=["premature_dead_letter"],
    ),
    Rule("a wakeup is noted on an open attempt", [scheduled(), wakeup()], _attempt(**AVAILABLE, wakeup_emitted=True)),
    Rule(
        "a wakeup for a finished attempt is dropped",
        [scheduled(), claimed(), completed(), wakeup(at=40)],
        _attempt(status="completed", wakeup_emitted=False),
    ),
    Rule(
        "time does not go backwards for an attempt",
        [scheduled(at=5), claimed(at=4)],
        _attempt(status="available"),
        anomalies=["out_of_order"],
    ),
    Rule(
        "a run lives on one queue",
        [scheduled(), scheduled(step="ship", queue="slow")],
        {FIRST: {"queue": "default"}, key(step="ship"): None},
        {"queue": "default"},
        ["wrong_queue"],
    ),
    Rule("a queued run knows its queue", [queued(queue="slow")], run={"queue": "slow", "status": "new"}),
    Rule(
        "a fenced run refuses everything",
        [scheduled(), claimed(), fenced(at=20), completed(), heartbeat(at=31), scheduled(step="ship", at=32)],
        {FIRST: {"status": "claimed", "due_at": None}, key(step="ship"): None},
        {"fenced": True, "terminal_status": None},
        ["terminal_run", "terminal_run", "terminal_run"],
    ),
    Rule(
        "an end while attempts are open wants a fence",
        [started(), scheduled(), terminal(at=20)],
        run={"terminal_status": "completed", "fenced": True, "unfenced": True},
    ),
    Rule(
        "a fence that comes after the end is seen",
        [started(), scheduled(), terminal(at=20), fenced(at=21)],
        run={"fenced": True, "unfenced": False},
    ),
    Rule(
        "an end after its fence wants no other",
        [started(), scheduled(), fenced(at=19), terminal(at=20), terminal(at=21)],
        run={"fenced": True, "unfenced": False},
    ),
    Rule(
        "an end without open attempts wants no fence",
        [started(), scheduled(), claimed(), completed(), terminal(at=40)],
        run={"fenced": True, "unfenced": False},
    ),
    Rule(
        "the run's own end fences the queue too",
        [started(), scheduled(), claimed(), terminal(at=20, status="cancelled"), completed()],
        {FIRST: None},
        {"fenced": True, "status": "cancelled", "ended_at": at(20)},
        ["terminal_run"],
    ),
    Rule(
        "a quarantined run gives no claims",
        [started(), scheduled(), quarantined(at=5), claimed()],
        _attempt(status="available", due_at=None),
        {"status": "quarantined", "quarantined": True, "quarantine": ["squid:dispatch:default", 1, "unreadable"]},
        ["quarantined_run"],
    ),
    Rule(
        "the first quarantine says why a run stopped",
        [started(), quarantined(at=5, reason="bad"), quarantined(at=6, reason="worse")],
        run={"quarantine": ["squid:dispatch:default", 1, "bad"]},
    ),
    Rule("a paused queue is paused", [queue_paused()], queues={"default": True}),
    Rule("a resumed queue is not", [queue_paused(), queue_resumed()], queues={"default": False}),
]

RUN_THREAD = [
    Rule("a signal alone starts nothing", [signal()], run={"status": "new", "workflow": None}),
    Rule("a start says what runs", [started()], run={"status": "started", "workflow": "billing", "started_at": at(0)}),
    Rule("the same start again is nothing", [started(), started(at=9)], run={"started_at": at(0)}),
    Rule(
        "another start is refused",
        [started(), started(workflow="other")],
        run={"workflow": "billing"},
        anomalies=["conflicting_run_start"],
    ),
    Rule(
        "planned work makes the run go",
        [started(), planned()],
        _attempt(status=None),
        {"status": "running", "planned_visits": 1},
    ),
    Rule("the same plan again is nothing", [planned(), planned(at=3)], run={"planned_visits": 1}),
    Rule(
        "another plan under the same key is refused",
        [planned(), planned(runnable(input={"amount": 7}))],
        run={"planned_visits": 1},
        anomalies=["conflicting_runnable_intent"],
    ),
    Rule(
        "a planned retry is another attempt at the same visit",
        [planned(), planned(runnable(attempt=2)), applied(attempt=2)],
        run={"planned_visits": 1, "applied_visits": 1, "status": "idle"},
    ),
    Rule("applied work makes the run idle", [planned(), applied()], run={"status": "idle", "applied_visits": 1}),
    Rule("the same application again is nothing", [planned(), applied(), applied(at=45)], run={"applied_visits": 1}),
    Rule(
        "another result under the same key is refused",
        [planned(), applied(), applied(result={"ok": False})],
        run={"applied_visits": 1},
        anomalies=["conflicting_result"],
    ),
    Rule(
        "nothing is applied that was not planned",
        [started(), applied()],
        run={"applied_visits": 0},
        anomalies=["unknown_runnable_intent"],
    ),
    Rule(
        "a child is linked once",
        [child(), child(at=25), child(child_key="refund-2")],
        anomalies=["conflicting_child_run"],
    ),
    Rule("a manual step pauses the run", [started(), step_paused()], run={"status": "paused"}),
    Rule("the same pause again is nothing", [step_paused(), step_paused()], run={"status": "paused"}),
    Rule(
        "a second manual step is refused",
        [step_paused(), step_paused(step="other")],
        run={"manual_state": ["review", "approval", at(20), {}]},
        anomalies=["active_manual_step"],
    ),
    Rule("a resolution lets the run go on", [started(), step_paused(), step_resolved()], run={"status": "started"}),
    Rule(
        "a resolution of another step is stale",
        [step_paused(), step_resolved(step="other")],
        run={"status": "paused"},
        anomalies=["stale_manual_resolution"],
    ),
    Rule(
        "an approval is not resumed",
        [step_paused(), step_resolved(action="resumed")],
        run={"status": "paused"},
        anomalies=["stale_manual_resolution"],
    ),
    Rule(
        "a run ends once",
        [started(), terminal(), terminal(at=60), terminal(at=61, status="failed")],
        run={"status": "completed", "ended_at": at(50), "manual_state": None},
        anomalies=["terminal_run"],
    ),
    Rule(
        "nothing is planned, applied, linked or paused after the end",
        [planned(), terminal(), planned(runnable(step="ship")), applied(at=60), child(at=61), step_paused(at=62)],
        {FIRST: None, key(step="ship"): None},
        {"status": "completed", "planned_visits": 1, "applied_visits": 0},
        ["terminal_run"] * 4,
    ),
    Rule("an indexed run is found", [indexed()], run={"indexed": ["billing", "default", at(0)], "cataloged": None}),
    Rule("indexing again is nothing", [indexed(), indexed(at=9)], run={"indexed": ["billing", "default", at(0)]}),
    Rule(
        "a run is indexed in one place",
        [indexed(), indexed(queue="slow")],
        run={"indexed": ["billing", "default", at(0)]},
        anomalies=["conflicting_run_index"],
    ),
    Rule("a cataloged run is found", [cataloged()], run={"cataloged": ["billing", "default", at(0)], "indexed": None}),
    Rule(
        "a run is cataloged in one place",
        [cataloged(), cataloged(workflow="other")],
        run={"cataloged": ["billing", "default", at(0)]},
        anomalies=["conflicting_run_catalog"],
    ),
]

RULES = [*DISPATCH, *RUN_THREAD]
