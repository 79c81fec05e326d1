"""Mutants of the fold: one rule of `protocol/` broken at a time. Every suite must catch every one of them."""

from tests.mutants.mutant import Mutant

SUITES: dict[str, tuple[str, ...]] = {
    "memory": (
        "tests/protocol/dispatch/test_scheduling.py",
        "tests/protocol/dispatch/test_claims.py",
        "tests/protocol/dispatch/test_settling.py",
        "tests/protocol/dispatch/test_fences.py",
        "tests/protocol/dispatch/test_projection.py",
        "tests/protocol/dispatch/test_properties.py",
        "tests/protocol/test_run.py",
        "tests/protocol/test_index.py",
        "tests/protocol/test_unit.py",
    ),
    "views": ("tests/journal/views/test_rules.py",),
    "spark": ("tests/spark/test_fold_rules.py",),
}

ATTEMPTS, DISPATCH, RUN = "protocol/folds/attempt.py", "protocol/folds/dispatch.py", "protocol/folds/run.py"
INDEX, UNIT = "protocol/folds/run_index.py", "protocol/folds/run_unit.py"

FOLD_MUTANTS = (
    Mutant("a lease lasts one instant longer", ATTEMPTS, "self.lease_until <= at", "self.lease_until < at"),
    Mutant(
        "the fence is the claim id alone",
        ATTEMPTS,
        "return self.claim_id == claim_id and self.claim_token_hash == claim_token_hash",
        "return self.claim_id == claim_id",
    ),
    Mutant(
        "the fence is not checked",
        ATTEMPTS,
        "if attempt.status is not AttemptStatus.CLAIMED or not attempt.held_by(claim_id, claim_token_hash):",
        "if attempt.status is not AttemptStatus.CLAIMED:",
    ),
    Mutant(
        "an expired claim may still act",
        ATTEMPTS,
        "return Reason.EXPIRED_CLAIM if attempt.expired(at) else None",
        "return None",
    ),
    Mutant(
        "the end of the run does not fence",
        DISPATCH,
        "run.fenced = True",
        'run.fenced = run.fenced or entry.fact.type == "run_fenced"',
    ),
    Mutant(
        "run_fenced does not fence",
        DISPATCH,
        "run.fenced = True",
        'run.fenced = run.fenced or entry.fact.type == "run_terminal"',
    ),
    Mutant(
        "a quarantined run gives claims",
        DISPATCH,
        "    if run.quarantined:\n        return Reason.QUARANTINED_RUN\n",
        "",
    ),
    Mutant("any queue will do", DISPATCH, "if run.queue is not None and run.queue != fact.queue:", "if False:"),
    Mutant("time may go back", DISPATCH, "if fact.occurred_at < attempt.last_at:", "if False:"),
    Mutant(
        "another intent passes for the same",
        DISPATCH,
        "return None if known.intent_digest == intent else Reason.CONFLICTING_RUNNABLE_INTENT",
        "return None",
    ),
    Mutant(
        "an active claim may be taken away",
        DISPATCH,
        "if attempt.status is AttemptStatus.CLAIMED and not attempt.expired(fact.occurred_at):",
        "if False:",
    ),
    Mutant(
        "a settled attempt may be claimed",
        DISPATCH,
        "        return Reason.TERMINAL_ATTEMPT\n    if run.quarantined:",
        "        pass\n    if run.quarantined:",
    ),
    Mutant("claims need not wait", DISPATCH, "if attempt.visible_at > fact.occurred_at:", "if False:"),
    Mutant(
        "one delivery too many",
        ATTEMPTS,
        "return attempt.deliveries >= attempt.max_deliveries",
        "return attempt.deliveries > attempt.max_deliveries",
    ),
    Mutant(
        "the fencing token falls with a retry",
        DISPATCH,
        "token = run.next_token(attempt.idempotency_key)",
        "token = attempt.deliveries + 1",
    ),
    Mutant(
        "any fencing token will do",
        DISPATCH,
        "if fact.fencing_token is not None and fact.fencing_token != token:",
        "if False:",
    ),
    Mutant(
        "claims are not counted",
        DISPATCH,
        "    run.tokens[attempt.idempotency_key] = token\n",
        "",
    ),
    Mutant(
        "a heartbeat may shorten the lease",
        DISPATCH,
        "lease_until=max(attempt.lease_until, fact.lease_until)",
        "lease_until=fact.lease_until",
    ),
    Mutant(
        "a release counts as a delivery",
        DISPATCH,
        "deliveries=attempt.deliveries - (0 if fact.counted else 1)",
        "deliveries=attempt.deliveries",
    ),
    Mutant(
        "an interruption does not count as a delivery",
        DISPATCH,
        "deliveries=attempt.deliveries - (0 if fact.counted else 1)",
        "deliveries=attempt.deliveries - 1",
    ),
    Mutant(
        "anybody gives up a spent attempt that is held",
        DISPATCH,
        "given_up = fact.claim_id is not None and not check_fence(",
        "given_up = fact.claim_id is not None or not check_fence(",
    ),
    Mutant(
        "nobody gives up a spent attempt while its lease lasts",
        DISPATCH,
        "if not (expired or given_up) or not out_of_deliveries(attempt):",
        "if not expired or not out_of_deliveries(attempt):",
    ),
    Mutant(
        "a deferral is forgotten",
        DISPATCH,
        "visible_at=fact.visible_at or attempt.visible_at,",
        "visible_at=attempt.visible_at,",
    ),
    Mutant(
        "an end without its fence goes unnoticed",
        DISPATCH,
        'run.unfenced = entry.fact.type == "run_terminal" and (run.unfenced or any(run.open_attempts()))',
        "run.unfenced = False",
    ),
    Mutant(
        "a fence that came later is not seen",
        DISPATCH,
        'run.unfenced = entry.fact.type == "run_terminal" and (run.unfenced or any(run.open_attempts()))',
        "run.unfenced = run.unfenced or any(run.open_attempts())",
    ),
    Mutant(
        "a repeated completion is a conflict",
        ATTEMPTS,
        "return False if attempt.outcome_digest == outcome else Reason.CONFLICTING_COMPLETION",
        "return Reason.CONFLICTING_COMPLETION",
    ),
    Mutant(
        "another result passes for a repeat",
        ATTEMPTS,
        "return False if attempt.outcome_digest == outcome else Reason.CONFLICTING_COMPLETION",
        "return False",
    ),
    Mutant(
        "a repeated failure is a conflict",
        ATTEMPTS,
        "return False if attempt.outcome_digest == outcome else Reason.CONFLICTING_FAILURE",
        "return Reason.CONFLICTING_FAILURE",
    ),
    Mutant(
        "a retry keeps the number",
        DISPATCH,
        "number = failed.attempt_number + 1",
        "number = failed.attempt_number",
    ),
    Mutant("a retry inherits the deliveries", DISPATCH, "deliveries=0,", "deliveries=failed.deliveries,"),
    Mutant(
        "a resumed queue stays paused",
        DISPATCH,
        'queues[fact.queue] = fact.type == "queue_paused"',
        "queues[fact.queue] = True",
    ),
    Mutant("the last start wins", RUN, "if run.start is not None or run.stored_start_digest is not None:", "if False:"),
    Mutant(
        "the last plan wins",
        RUN,
        "known = run.planned.get(runnable.runnable_key)",
        "known = None",
    ),
    Mutant(
        "another result passes for the applied one",
        RUN,
        "return None if same else Reason.CONFLICTING_RESULT",
        "return None",
    ),
    Mutant(
        "what was never planned is applied",
        RUN,
        "        return Reason.UNKNOWN_RUNNABLE_INTENT\n",
        "        run.planned[fact.runnable_key] = Planned('')\n",
    ),
    Mutant(
        "another link to a child passes for the same",
        RUN,
        "return None if known.digest == link else Reason.CONFLICTING_CHILD_RUN",
        "return None",
    ),
    Mutant(
        "a second manual step goes unnoticed",
        RUN,
        "return None if run.manual_state == state else Reason.ACTIVE_MANUAL_STEP",
        "return None",
    ),
    Mutant("any action resolves any step", RUN, " and fact.action in _RESOLVES[state.kind]", ""),
    Mutant("the last end wins", RUN, "if run.terminal_digest is not None:", "if False:"),
    Mutant("an ended run goes on", RUN, "    if run.terminal:\n        return Reason.TERMINAL_RUN\n", ""),
    Mutant("the last quarantine wins", RUN, "if run.quarantine is None:", "if True:"),
    Mutant(
        "another place passes for the same",
        INDEX,
        "return None if known.same_place(place) else conflict",
        "return None",
    ),
    Mutant(
        "a repair at another time is a conflict",
        INDEX,
        "return (self.workflow, self.queue) == (other.workflow, other.queue)",
        "return self == other",
    ),
    Mutant(
        "a conflicting listing takes the run off the index",
        UNIT,
        "unit.indexed = _listed(unit, entry, verdict) or unit.indexed",
        "unit.indexed = _listed(unit, entry, verdict)",
    ),
)
