"""`diagnose`: the rules in their order. The first one that fits gives the reason."""

from collections.abc import Callable

from squid_dagster.inspection.explain.case import Case
from squid_dagster.inspection.explain.reasons import Diagnosis
from squid_dagster.inspection.explain.rules.blocked_runs import (
    dead_letter,
    failure_pending_apply,
    held,
    manual,
    pending_schedule,
    result_pending_apply,
)
from squid_dagster.inspection.explain.rules.external_steps import waiting_external
from squid_dagster.inspection.explain.rules.queued_work import (
    attempt_claimed,
    attempt_visible,
    compensating,
    expired_claim,
    no_worker_for_definition,
    no_worker_for_queue,
    nothing_open,
    queue_paused,
    scheduled_for_later,
)
from squid_dagster.inspection.explain.rules.terminal_runs import not_started, quarantined, terminal, unreadable_entry

RULES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    terminal,
    quarantined,
    unreadable_entry,
    not_started,
    manual,
    held,
    dead_letter,
    result_pending_apply,
    failure_pending_apply,
    pending_schedule,
    queue_paused,
    no_worker_for_queue,
    no_worker_for_definition,
    expired_claim,
    compensating,
    attempt_visible,
    attempt_claimed,
    waiting_external,
    scheduled_for_later,
)


def diagnose(case: Case) -> Diagnosis:
    """Return why a run stands where it stands. Pure, and there is always an answer."""
    return next((diagnosis for rule in RULES if (diagnosis := rule(case)) is not None), None) or nothing_open(case)
