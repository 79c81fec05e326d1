"""What of the steps reaches Dagster: bounded, redacted, and as the policy says."""

import logging
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.journal.contract.dispatch_store import Completed, Deferred, Failed, NextAttempt, Outcome
from squid_dagster.plugin.dispatch.step_events import (
    LINES_BETWEEN_SUMMARIES,
    TABLE_ROWS,
    LineBuffer,
    Outcomes,
    Policy,
    step_logs,
)
from squid_dagster.protocol.errors import SquidError, StaleClaim
from squid_dagster.runtime.worker.report import SettledAttempt
from tests.facts import scheduled
from tests.protocol.fold_assertions import fold, the_attempt

Line = tuple[int, str]
BROKEN = Failed({"type": "ValueError", "message": "broken", "password": "hidden", "traceback": "long"})
AGAIN = Failed(BROKEN.error, NextAttempt("run-1:charge:1:2", timedelta(seconds=3)))


def settled(outcome: Outcome, seconds: float = 0.1, refused: SquidError | None = None) -> SettledAttempt:
    """Return a worker's report of the attempt at `charge`."""
    return SettledAttempt(the_attempt(fold(scheduled())), outcome, refused, seconds)


def lines(buffer: LineBuffer) -> list[Line]:
    """Flush a buffer; return its lines."""
    written: list[Line] = []
    buffer.flush(lambda level, text: written.append((level, text)))
    return written


# --- the buffer -----------------------------------------------------------------------------------------------------


def test_a_buffer_that_no_thread_empties_drops_lines_and_counts_them() -> None:
    buffer = LineBuffer(patience_seconds=0.01, size=2)
    for number in range(5):
        buffer.put(logging.INFO, str(number))
    assert buffer.dropped == 3
    assert [text for _, text in lines(buffer)] == ["0", "1"]
    assert lines(buffer) == []


def test_a_flush_writes_what_came_while_it_waits() -> None:
    buffer = LineBuffer()
    buffer.put(logging.INFO, "first")
    written: list[str] = []

    def write(_: int, text: str) -> None:
        written.append(text)
        if text == "first":
            buffer.put(logging.INFO, "second")

    buffer.flush(write, 1.0)
    assert written == ["first", "second"]


# --- logs of steps --------------------------------------------------------------------------------------------------


def test_what_steps_log_is_taken_from_the_level_on_and_only_for_the_time_of_the_block() -> None:
    buffer, steps = LineBuffer(), logging.getLogger("squid_dagster.step")
    about = {"run_id": "run-1", "step": "charge", "attempt": 2}
    log = logging.LoggerAdapter(steps, about)
    before = (steps.level, list(logging.getLogger("squid_dagster").handlers))
    with step_logs(buffer, logging.INFO):
        log.debug("not this")
        log.info("this %d", 1)
        try:
            raise ValueError("boom")
        except ValueError:
            log.exception("and this")
        logging.getLogger("squid_dagster.runtime.worker.worker").info("not this")
        logging.getLogger("squid_dagster.runtime.worker.worker").warning("the database is gone")
        steps.info("without a context")
    log.warning("not this")
    written = lines(buffer)
    assert written[0] == (logging.INFO, "[charge, attempt 2, run run-1] this 1")
    assert written[1][1].startswith("[charge, attempt 2, run run-1] and this\nTraceback")
    assert written[1][1].endswith("ValueError: boom")
    assert written[2:] == [(logging.WARNING, "the database is gone"), (logging.INFO, "without a context")]
    assert (steps.level, logging.getLogger("squid_dagster").handlers) == before


def test_debug_lines_are_taken_when_asked_for() -> None:
    buffer = LineBuffer()
    with step_logs(buffer, logging.DEBUG):
        logging.getLogger("squid_dagster.step").debug("small")
    assert lines(buffer) == [(logging.DEBUG, "small")]


def test_a_record_that_cannot_be_formatted_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    buffer = LineBuffer()
    with step_logs(buffer):
        logging.getLogger("squid_dagster.step").info("%d", "no number")
        logging.getLogger("squid_dagster.step").info("fine")
    assert lines(buffer) == [(logging.INFO, "fine")]


# --- outcomes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "level", "words"),
    [
        (settled(BROKEN), logging.ERROR, "failed for good: ValueError: broken (run run-1, attempt 1, 0.100 s)"),
        (settled(AGAIN), logging.WARNING, "failed and is tried again: ValueError: broken; tried again in 3 s"),
        (settled(Completed(1), seconds=31), logging.INFO, "completed (run run-1, attempt 1, 31.000 s)"),
        (settled(Completed(1), refused=StaleClaim("late")), logging.WARNING, "its result was dropped: late"),
    ],
)
def test_what_is_notable_is_said(attempt: SettledAttempt, level: int, words: str) -> None:
    buffer = LineBuffer()
    Outcomes(buffer, "notable", slow_seconds=30).settled([attempt])
    ((written, text),) = lines(buffer)
    assert written == level
    assert words in text
    assert "hidden" not in text
    assert "\n" not in text


@pytest.mark.parametrize("outcome", [Completed(1), Deferred("not yet", timedelta(seconds=1))])
@pytest.mark.parametrize(("policy", "expected"), [("notable", 0), ("all", 1), ("none", 0)])
def test_what_is_usual_is_said_only_on_request(outcome: Any, policy: Policy, expected: int) -> None:
    buffer = LineBuffer()
    Outcomes(buffer, policy, slow_seconds=30).settled([settled(outcome)])
    assert len(lines(buffer)) == expected


def test_many_failures_are_counted_instead_of_said_until_the_next_summary() -> None:
    buffer = LineBuffer()
    outcomes = Outcomes(buffer, "notable", slow_seconds=30)
    outcomes.settled([settled(BROKEN)] * (LINES_BETWEEN_SUMMARIES + 7))
    assert len(lines(buffer)) == LINES_BETWEEN_SUMMARIES
    outcomes.summarize()
    assert lines(buffer) == [(logging.INFO, "so far: failed 107; 7 notable ones were not shown one by one")]
    # nothing new, nothing said; and afterwards failures are said again
    outcomes.summarize()
    outcomes.settled([settled(BROKEN)])
    assert [level for level, _ in lines(buffer)] == [logging.ERROR]


def test_no_summary_comes_where_nothing_is_to_be_said() -> None:
    buffer = LineBuffer()
    outcomes = Outcomes(buffer, "none", slow_seconds=30)
    outcomes.settled([settled(BROKEN), settled(Completed(1))])
    outcomes.summarize()
    assert lines(buffer) == []
    assert outcomes.counts == {"failed": 1, "completed": 1}


# --- the table ------------------------------------------------------------------------------------------------------


def test_the_table_is_bounded_and_keeps_what_is_notable() -> None:
    outcomes = Outcomes(LineBuffer(), "none", slow_seconds=30)
    outcomes.settled([settled(BROKEN)])
    outcomes.settled([settled(Completed(1))] * 5000)
    text = outcomes.markdown().splitlines()
    assert text[0] == f"5001 attempts, the latest {TABLE_ROWS + 1} are shown"
    assert text[2] == "| run | step | attempt | outcome | seconds | note |"
    assert text[4].startswith("| run-1 | ")
    assert "| failed | 0.100 | ValueError" in text[4]
    assert len(text) == 4 + TABLE_ROWS + 1


def test_no_text_of_a_step_becomes_a_link_a_cell_or_a_line_of_the_table() -> None:
    outcomes = Outcomes(LineBuffer(), "none", slow_seconds=30)
    outcomes.settled([settled(Failed({"type": "E", "message": "a | b\n[x](http://evil) <img>"}))])
    row = outcomes.markdown().splitlines()[4]
    assert row.replace(r"\|", "").count("|") == 7
    assert "](http" not in row


def test_a_run_that_did_nothing_says_so() -> None:
    assert Outcomes(LineBuffer(), "notable", slow_seconds=1).markdown() == "No attempt was executed."
