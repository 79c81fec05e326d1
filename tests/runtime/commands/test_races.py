"""Commands that meet each other: many threads at once, on every storage; one of them wins, and all get its receipt."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

from pydantic import BaseModel

from squid_dagster.agents import ClaimResult
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import InvalidTransition, SquidError, TerminalRun
from squid_dagster.workflow import Cron, Workflow
from tests.runtime.runs import MakeSquid, drain, facts, finish, seconds, unit

THREADS = 6


def at_once(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run these calls at the same time, each in a thread of its own; return results and errors in order."""
    together = Barrier(len(acts))

    def do(act: Callable[[], Any]) -> Any:
        together.wait(30)
        try:
            return act()
        except SquidError as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return [future.result(60) for future in [pool.submit(do, act) for act in acts]]


def assert_sound(squid: Squid, run_id: str) -> None:
    """Check the rules of every journal. Without atomic commits, work may be scheduled for a run that ends meanwhile."""
    allowed = set() if squid.journal.atomic_across_threads else {"terminal_run"}
    assert {anomaly.reason.value for anomaly in unit(squid, run_id).anomalies} <= allowed


class Order(BaseModel):
    n: int = 0


def review() -> Workflow:
    wf = Workflow("review", payload=Order, triggers=[Cron("0 * * * *", catch_up="all")])
    wf.approval("ask")
    wf.step(name="act", max_deliveries=1)(lambda: None)
    wf.route("ask", to="act")
    wf.route("ask", on="error", to="fail")
    wf.route("act", to="complete")
    return wf


def claimed(squid: Squid) -> ClaimResult:
    """Return the claim on the step of a new run."""
    squid.approve(squid.start("review").run_id, actor="ada")
    claim = squid.dispatch_agent().claim_next("w")
    assert claim is not None
    return claim


def test_of_many_decisions_at_once_one_counts_and_the_others_are_refused(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(review())
    for _ in range(3):
        run_id = squid.start("review").run_id
        commands = [squid.approve if n % 2 else squid.reject for n in range(THREADS)]
        said = at_once([partial(command, run_id, actor="ada") for command in commands])
        assert sum(not isinstance(answer, Exception) for answer in said) == 1
        assert all(isinstance(answer, InvalidTransition) for answer in said if isinstance(answer, Exception))
        assert len(facts(squid, run_id, "manual_step_resolved")) == 1
        assert len(facts(squid, run_id, "run_signal_received")) == 2
        assert_sound(squid, run_id)


def test_a_decision_and_a_cancel_never_both_have_the_last_word(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(review())
    for _ in range(5):
        run_id = squid.start("review").run_id
        approved, cancelled = at_once([partial(squid.approve, run_id, actor="ada"), partial(squid.cancel, run_id)])
        assert not isinstance(cancelled, Exception)
        assert isinstance(approved, InvalidTransition) or not isinstance(approved, Exception)
        assert squid.inspect_run(run_id).status == "cancelled"
        assert squid.execute_next() is None
        assert_sound(squid, run_id)


def test_a_completion_and_a_cancel_end_the_run_once(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("work")
    wf.step(name="go")(lambda: None)
    squid = make_squid(wf)
    for _ in range(5):
        run_id = squid.start("work").run_id
        agent = squid.dispatch_agent()
        claim = agent.claim_next("w")
        assert claim is not None
        completed, cancelled = at_once([partial(agent.complete, claim), partial(squid.cancel, run_id)])
        winners = [not isinstance(completed, Exception), not isinstance(cancelled, Exception)]
        assert sorted(winners) == [False, True] or not squid.journal.atomic_across_threads
        assert isinstance(completed, TerminalRun) or not isinstance(completed, Exception)
        assert isinstance(cancelled, InvalidTransition) or not isinstance(cancelled, Exception)
        assert len(facts(squid, run_id, "run_terminal")) == 1
        assert_sound(squid, run_id)


def test_overlapping_batches_start_every_key_once(make_squid: MakeSquid) -> None:
    squid = make_squid(review())
    payloads = [{"n": n} for n in range(12)]

    def batch(first: int) -> list[Any]:
        chosen = payloads[first : first + 8]
        return squid.start_many("review", chosen, idempotency_keys=[str(payload["n"]) for payload in chosen])

    said = at_once([partial(batch, first) for first in (0, 4, 0, 4)])
    receipts = [receipt for batch_receipts in said for receipt in batch_receipts]
    assert len({receipt.run_id for receipt in receipts}) == 12
    fresh = Counter(receipt.idempotency_key for receipt in receipts if not receipt.repeated)
    assert fresh == {str(n): 1 for n in range(12)}


def test_many_readers_of_the_clock_start_each_window_once(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(review())
    at_once([squid.start_due_crons] * THREADS)
    clock.advance(seconds(3 * 3600))
    at_once([squid.start_due_crons] * THREADS)
    runs = squid.list_runs(trigger="cron", limit=100).runs
    assert len(runs) == 4
    windows = {
        facts(squid, r.run_id, "run_started")[0].context["schedule"]["intended_window"]["start_at"] for r in runs
    }
    assert len(windows) == 4


def test_a_child_asked_for_by_many_is_one(make_squid: MakeSquid) -> None:
    squid = make_squid(review())
    claim = claimed(squid)
    run_id = claim.attempt.run_id
    said = at_once([partial(squid.start_child_run, claim, "review", {"n": 1}, child_key="a")] * THREADS)
    assert len({receipt.run_id for receipt in said}) == 1
    assert sum(not receipt.repeated for receipt in said) == 1
    assert len(facts(squid, run_id, "child_run_started")) == 1
    assert len(facts(squid, said[0].run_id, "run_started")) == 1
    assert_sound(squid, run_id)


def test_a_dead_letter_is_put_back_by_one_of_many(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(review())
    run_id = squid.start("review").run_id
    squid.approve(run_id, actor="ada")
    squid.dispatch_agent().claim_next("doomed", lease=seconds(1))
    clock.advance(seconds(1))
    assert squid.execute_next() is None
    said = at_once([partial(squid.retry_attempt, run_id)] * THREADS)
    assert sum(not isinstance(answer, Exception) for answer in said) == 1
    assert drain(squid) == 1
    assert finish(squid, clock, run_id).status == "completed"


def test_a_cascade_and_new_children_at_once_leave_nobody_behind(make_squid: MakeSquid) -> None:
    squid = make_squid(review())
    for _ in range(3):
        claim = claimed(squid)
        run_id = claim.attempt.run_id
        start = partial(squid.start_child_run, claim, "review")
        acts = [partial(start, {"n": n}, child_key=f"c{n}") for n in range(4)]
        *children, cancelled = at_once([*acts, partial(squid.cancel, run_id, cascade=True)])
        assert not isinstance(cancelled, Exception)
        squid.recover()  # where a commit cannot span threads, a link may have been written before its child
        for child in children:
            if isinstance(child, Exception):
                assert isinstance(child, TerminalRun)
            else:
                assert squid.inspect_run(child.run_id).status == "cancelled"
        assert_sound(squid, run_id)
