"""The invariants of every journal, by name, and a violation of one."""

from enum import StrEnum
from typing import NamedTuple

from squid_dagster.protocol.entries import Entry, run_of


class Rule(StrEnum):
    """An invariant of every journal."""

    CONTIGUOUS_SEQUENCES = "contiguous_sequences"  # a thread counts 1, 2, 3
    GROWING_POSITIONS = "growing_positions"  # over the whole journal
    SAME_READING = "same_reading"  # by position, by thread and by run
    ONE_HOLDER = "one_holder"  # no claim takes a visit that another claim holds, whichever attempt it is
    ONLY_THE_HOLDER_ACTS = "only_the_holder_acts"  # beats, releases or settles, within its lease
    SETTLED_STAYS = "settled_stays"  # a settled attempt never changes
    TOKENS_GROW = "tokens_grow"  # fencing tokens, over all claims of one idempotency key
    SCHEDULED_WAS_PLANNED = "scheduled_was_planned"  # by its run, and just so
    APPLIED_WAS_SETTLED = "applied_was_settled"  # with that very outcome
    APPLIED_ONCE = "applied_once"  # of all attempts of a visit, one
    NOTHING_AFTER_THE_END = "nothing_after_the_end"  # happens to a run
    NOTHING_CLAIMABLE_AFTER_THE_END = "nothing_claimable_after_the_end"
    LISTED_WAS_STARTED = "listed_was_started"  # what index and catalog name is a run of that workflow
    NO_ANOMALY = "no_anomaly"


class Violation(NamedTuple):
    """An invariant that does not hold, and the entry that shows it."""

    rule: Rule
    text: str
    run_id: str | None
    thread: str
    seq: int
    position: int

    def __str__(self) -> str:
        """Return the violation as one line."""
        run = f" (run {self.run_id!r})" if self.run_id is not None else ""
        return f"{self.rule.value}: entry {self.seq} of {self.thread!r}{run} {self.text}"


def violation(rule: Rule, entry: Entry, text: str) -> Violation:
    """Build the violation that an entry shows."""
    return Violation(rule, f"{entry.fact.type} {text}", run_of(entry.fact), entry.thread, entry.seq, entry.position)
