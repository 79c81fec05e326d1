"""Dispatch, in every version on every storage: outcomes are recorded once, each member by itself."""

from dataclasses import replace
from datetime import datetime

import pytest

from squid_dagster.journal.contract.dispatch_store import (
    Completed,
    Deferred,
    Failed,
    Interrupted,
    NextAttempt,
    Settlement,
)
from squid_dagster.protocol import to_json
from squid_dagster.protocol.errors import ConflictingCompletion, InvalidArgument, InvalidFact, StaleClaim, TerminalRun
from tests.facts import QUEUE, T0, fenced, key, scheduled, t, terminal
from tests.journal.access import all_entries, facts_of
from tests.journal.dispatch_fixture import (
    DispatchFixture,
    Planner,
    broke,
    claim,
    done,
    one,
    other_claim,
    other_token,
    refused,
    seconds,
    start,
    statuses,
    work,
)


def test_a_completion_is_recorded_with_its_result(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    held = one(dispatch)
    dispatch.wait(5)
    settled = dispatch.store.settle([done(held, {"big": 10**30, "text": "ü🦑"})])[0].unwrap()
    assert (settled.status, settled.settled_at) == ("completed", t(5))
    assert facts_of(all_entries(dispatch.storage))[-1].result == {"big": 10**30, "text": "ü🦑"}
    dispatch.wait(9999)
    assert claim(dispatch) == []
    assert dispatch.store.visible(QUEUE) == dispatch.store.expired(QUEUE) == []


def test_a_failure_with_a_retry_makes_the_next_attempt(dispatch: DispatchFixture) -> None:
    # given a step that failed
    dispatch.put(scheduled(input={"n": 1}, priority=3, max_deliveries=2, definition_fingerprint="f1"))
    held = one(dispatch)
    dispatch.wait(5)
    # when its worker asks for a retry ten seconds later
    retry = NextAttempt(key(attempt=2), seconds(10))
    assert dispatch.store.settle([broke(held, retry)])[0].unwrap().status == "failed"
    assert statuses(dispatch) == {key(): "failed", key(attempt=2): "retry_scheduled"}
    # then the next attempt is due by then, as the first was but for its number
    dispatch.wait(9)
    assert claim(dispatch) == []
    dispatch.wait(1)
    again = one(dispatch).attempt
    assert (again.runnable_key, again.attempt_number, again.idempotency_key) == (
        key(attempt=2),
        2,
        held.attempt.idempotency_key,
    )
    assert (again.input, again.priority, again.max_deliveries, again.step) == ({"n": 1}, 3, 2, "charge")
    assert (again.deliveries, again.fencing_token, again.definition_fingerprint) == (1, 2, "f1")


def test_repeating_an_outcome_is_no_error_and_writes_nothing(dispatch: DispatchFixture) -> None:
    dispatch.put(work("run-1"), work("run-2"))
    first, second = claim(dispatch, limit=2)
    group = [done(first), broke(second, NextAttempt(key("run-2", attempt=2), seconds(5)))]
    dispatch.store.settle(group)
    before = dispatch.entries()
    dispatch.wait(500)
    again = [answer.unwrap() for answer in dispatch.store.settle(group)]
    assert [(a.status, a.settled_at) for a in again] == [("completed", T0), ("failed", T0)]
    assert dispatch.entries() == before


@pytest.mark.parametrize("ended_by", ["itself", "another"])
def test_repeating_an_outcome_is_no_error_after_the_run_has_ended(dispatch: DispatchFixture, ended_by: str) -> None:
    # given a completion and a failure on record, of runs that have ended
    start(dispatch, "run-1", "run-2")
    first, second = claim(dispatch, limit=2)
    group = [done(first, {"n": 1}), broke(second)]
    if ended_by == "itself":
        answers = dispatch.store.settle(group, Planner(last_visit=1))
    else:
        answers = dispatch.store.settle(group)
        dispatch.put(*(fact for run in ("run-1", "run-2") for fact in (terminal(run), fenced(run))))
    assert [answer.unwrap().status for answer in answers] == ["completed", "failed"]
    before = dispatch.entries()
    dispatch.wait(500)
    # when they are told again, then each hears what it was told first
    for plan in (None, Planner()):
        again = [answer.unwrap() for answer in dispatch.store.settle(group, plan)]
        assert [(a.status, a.settled_at, a.claim_id) for a in again] == [
            ("completed", T0, first.ref.claim_id),
            ("failed", T0, second.ref.claim_id),
        ]
    assert again[0].result == {"n": 1}
    # and another outcome, or another claim, is refused
    refused(dispatch.store.settle([done(first, {"n": 2})])[0], ConflictingCompletion)
    refused(dispatch.store.settle([Settlement(second.ref, Failed({"message": "timeout"}))])[0], ConflictingCompletion)
    refused(dispatch.store.settle([broke(first)])[0], TerminalRun)
    for other in (other_token(first.ref), other_claim(first.ref), replace(first.ref, queue="slow")):
        refused(dispatch.store.settle([Settlement(other, Completed({"n": 1}))])[0], TerminalRun)
    assert dispatch.entries() == before


def test_an_outcome_that_was_never_recorded_is_refused_after_the_run_has_ended(dispatch: DispatchFixture) -> None:
    dispatch.put(work("run-1"))
    held = one(dispatch)
    dispatch.put(terminal("run-1"), fenced("run-1"))
    for late in (done(held), broke(held), Settlement(held.ref, Deferred("later", seconds(5)))):
        refused(dispatch.store.settle([late])[0], TerminalRun)


@pytest.mark.parametrize("meanwhile", ["nothing", "a claim", "the end"])
@pytest.mark.parametrize("outcome", [Deferred("not yet", seconds(5)), Interrupted("stopped")], ids=lambda o: o.reason)
def test_repeating_what_gave_an_attempt_back_is_no_error_and_writes_nothing(
    dispatch: DispatchFixture, outcome: Deferred | Interrupted, meanwhile: str
) -> None:
    dispatch.put(work("run-1"))
    held = one(dispatch)
    later = Settlement(held.ref, outcome)
    assert dispatch.store.settle([later])[0].unwrap().status == "available"
    dispatch.wait(5)
    if meanwhile == "a claim":
        one(dispatch)
    elif meanwhile == "the end":
        dispatch.put(terminal("run-1"), fenced("run-1"))
    before = dispatch.entries()
    status = "claimed" if meanwhile == "a claim" else "available"
    assert dispatch.store.settle([later])[0].unwrap().status == status
    assert isinstance(dispatch.store.settle([done(held)])[0].error, StaleClaim | TerminalRun)
    other = Settlement(other_token(held.ref), later.outcome)
    assert isinstance(dispatch.store.settle([other])[0].error, StaleClaim | TerminalRun)
    assert dispatch.entries() == before


def test_another_outcome_by_the_same_claim_is_a_conflict_and_the_first_one_stands(dispatch: DispatchFixture) -> None:
    dispatch.put(work("run-1"), work("run-2"))
    first, second = claim(dispatch, limit=2)
    dispatch.store.settle([done(first, {"n": 1}), broke(second)])
    before = dispatch.entries()
    refused(dispatch.store.settle([done(first, {"n": 2})])[0], ConflictingCompletion)
    refused(dispatch.store.settle([Settlement(second.ref, Failed({"message": "timeout"}))])[0], ConflictingCompletion)
    # what is settled one way cannot be settled the other way
    assert isinstance(dispatch.store.settle([broke(first)])[0].error, ConflictingCompletion | StaleClaim)
    assert isinstance(dispatch.store.settle([done(second)])[0].error, ConflictingCompletion | StaleClaim)
    assert dispatch.entries() == before


def test_a_secret_in_an_error_is_redacted_and_its_repeat_is_still_a_repeat(dispatch: DispatchFixture) -> None:
    dispatch.put(scheduled())
    held = one(dispatch)
    outcome = Settlement(held.ref, Failed({"message": "401", "api_key": "hunter2"}))
    dispatch.store.settle([outcome])
    assert "hunter2" not in "".join(to_json(fact) for fact in facts_of(all_entries(dispatch.storage)))
    before = dispatch.entries()
    assert dispatch.store.settle([outcome])[0].unwrap().status == "failed"
    assert dispatch.entries() == before


def test_a_stale_member_does_not_fail_its_group(dispatch: DispatchFixture) -> None:
    # given four claims, one of which was lost and one of which belongs to a run that ended
    dispatch.put(*(work(f"run-{n}") for n in range(4)))
    good, lost, ended, late = claim(dispatch, limit=4)
    dispatch.store.release([lost.ref])
    dispatch.put(terminal("run-2"), fenced("run-2"))
    # when all four are settled together
    answers = dispatch.store.settle([done(good), done(lost), done(ended), broke(late)])
    # then each gets its own answer
    assert [answer.ref for answer in answers] == [c.ref for c in (good, lost, ended, late)]
    assert answers[0].unwrap().status == "completed"
    refused(answers[1], StaleClaim)
    refused(answers[2], TerminalRun)
    assert answers[3].unwrap().status == "failed"
    assert statuses(dispatch, "run-1") == {key("run-1"): "available"}


def test_members_of_several_queues_are_settled_in_one_call(dispatch: DispatchFixture) -> None:
    dispatch.put(work("run-1"), work("run-2", queue="slow"))
    (first,) = claim(dispatch)
    (second,) = dispatch.store.claim("slow", "worker-1")
    answers = dispatch.store.settle([done(second), done(first)])
    assert [a.unwrap().run_id for a in answers] == ["run-2", "run-1"]
    assert [a.unwrap().status for a in answers] == ["completed"] * 2


_UNRECORDABLE: dict[str, Completed | Failed] = {
    "no JSON": Completed(object()),
    "NaN": Completed(float("nan")),
    "NUL": Completed({"text": "\0"}),
    "too large": Completed("x" * 17_000_000),
    "error too large": Failed({"message": "x" * 17_000_000}),
    "error no JSON": Failed({"when": datetime(2026, 1, 1)}),  # noqa: DTZ001
    "retry without a key": Failed({"message": "no"}, NextAttempt("", seconds(1))),
    "retry with the key of the attempt": Failed({"message": "no"}, NextAttempt(key("bad"), seconds(1))),
}


def test_an_outcome_that_cannot_be_recorded_is_refused_and_does_not_fail_its_group(dispatch: DispatchFixture) -> None:
    # given a claim with a result that the journal cannot hold, and others beside it
    dispatch.put(work("bad", priority=1), *(work(f"run-{n}") for n in range(len(_UNRECORDABLE))))
    bad, *good = claim(dispatch, limit=9)
    wrong: dict[str, str] = {}
    for (name, outcome), other in zip(_UNRECORDABLE.items(), good, strict=True):
        # when both are settled together
        try:
            answers = dispatch.store.settle([Settlement(bad.ref, outcome), done(other)])
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            wrong[name] = f"the whole group failed with {type(error).__name__}"
            continue
        # then that one is told so, and the other is settled
        if not isinstance(answers[0].error, InvalidFact | InvalidArgument) or answers[1].error is not None:
            wrong[name] = f"{answers[0].error!r}, {answers[1].error!r}"
    assert wrong == {}
    # and it may still be settled with something better
    assert dispatch.store.settle([done(bad)])[0].unwrap().status == "completed"
