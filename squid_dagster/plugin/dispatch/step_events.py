"""Logs and outcomes of steps in Dagster: lines of the run's log, and a table at the end.

Writing to Dagster's event log costs more than dispatching, so a policy chooses events, and they are bounded. The
threads of the worker put lines into a `LineBuffer`; the op's main thread, which only waits, writes them.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, Full, Queue
from typing import Any, Literal, NamedTuple

from squid_dagster.inspection.display import brief
from squid_dagster.journal.contract.dispatch_store import Completed, Deferred, Interrupted
from squid_dagster.plugin.markdown import table
from squid_dagster.redaction import redacted
from squid_dagster.runtime.worker.report import SettledAttempt

Policy = Literal["notable", "all", "none"]
Write = Callable[[int, str], None]  # level and text, as `context.log.log` takes them

TABLE_ROWS = 100  # of each kind, notable and other
LINES_BETWEEN_SUMMARIES = 100  # notable lines; further ones are counted

_LOGGER = "squid_dagster"
_STEP_LOGGER = "squid_dagster.step"
_MAX_LINES = 2000
_PATIENCE_SECONDS = 10.0  # for which a step waits until the buffer has room


class LineBuffer:
    """Lines on their way to Dagster. A thread that writes faster than Dagster waits, for a bounded time."""

    def __init__(self, patience_seconds: float = _PATIENCE_SECONDS, size: int = _MAX_LINES) -> None:
        """Create an empty buffer."""
        self._lines: Queue[tuple[int, str]] = Queue(size)
        self._patience = patience_seconds
        self.dropped = 0

    def put(self, level: int, text: str) -> None:
        """Append a line, from any thread. It is dropped, and counted, if the buffer stays full."""
        try:
            self._lines.put((level, text), timeout=self._patience)
        except Full:
            self.dropped += 1

    def flush(self, write: Write, seconds: float = 0.0) -> None:
        """Write all lines, after waiting up to so long for the first one."""
        try:
            write(*(self._lines.get(timeout=seconds) if seconds > 0 else self._lines.get_nowait()))
            while True:
                write(*self._lines.get_nowait())
        except Empty:
            return


class StepLogs(logging.Handler):
    """Handler of what steps log with `ctx.log`, and of warnings of the worker itself."""

    def __init__(self, buffer: LineBuffer, step_level: int) -> None:
        """Store the buffer for lines."""
        super().__init__()
        self._buffer, self._step_level = buffer, step_level

    def emit(self, record: logging.LogRecord) -> None:
        """Format one record, and put it into the buffer."""
        own = record.name == _STEP_LOGGER
        if record.levelno < (self._step_level if own else logging.WARNING):
            return
        try:
            text = record.getMessage()
            if record.exc_info:
                text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
            elif record.exc_text:  # of a redacted record
                text = f"{text}\n{record.exc_text}"
        except Exception:  # noqa: BLE001  a record of the user's may be anything
            self.handleError(record)
            return
        self._buffer.put(record.levelno, f"{_source(record)}{text}" if own else text)


def _source(record: logging.LogRecord) -> str:
    step, run_id = getattr(record, "step", None), getattr(record, "run_id", None)
    return f"[{step}, attempt {getattr(record, 'attempt', '?')}, run {run_id}] " if step is not None else ""


@contextmanager
def step_logs(buffer: LineBuffer, step_level: int = logging.INFO) -> Iterator[None]:
    """Install a `StepLogs` handler for the time of a `with` block."""
    handler = StepLogs(buffer, step_level)
    logger, steps = logging.getLogger(_LOGGER), logging.getLogger(_STEP_LOGGER)
    before = steps.level
    if not steps.isEnabledFor(step_level):
        steps.setLevel(step_level)  # else records below the root's level are never made
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        steps.setLevel(before)


class Row(NamedTuple):
    """One attempt, as the table shows it."""

    run_id: str
    step: str
    attempt: int
    outcome: str
    seconds: float
    note: str


class Outcomes:
    """Outcomes of attempts: counted, kept for the table, and logged as the policy says. Thread-safe."""

    def __init__(self, buffer: LineBuffer, policy: Policy, slow_seconds: float) -> None:
        """Store the buffer for lines. A step that takes `slow_seconds` or more is slow."""
        self._buffer, self._policy, self._slow_seconds = buffer, policy, slow_seconds
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._notable: deque[Row] = deque(maxlen=TABLE_ROWS)
        self._others: deque[Row] = deque(maxlen=TABLE_ROWS)
        self._lines = self._unreported = self._reported = 0

    @property
    def counts(self) -> Counter[str]:
        """How many attempts there were of each outcome."""
        with self._lock:
            return Counter(self._counts)

    def settled(self, group: Sequence[SettledAttempt]) -> None:
        """Add a group of attempts, as the callback of `Worker(on_settled=...)`."""
        for attempt in group:
            row = _row(attempt)
            self.add(row, _level(row, self._slow_seconds))

    def add(self, row: Row, level: int | None) -> None:
        """Add one attempt. With a level it is notable."""
        with self._lock:
            self._counts[row.outcome] += 1
            (self._others if level is None else self._notable).append(row)
            if self._policy == "none" or (self._policy == "notable" and level is None):
                return
            if self._policy == "notable" and self._lines >= LINES_BETWEEN_SUMMARIES:
                self._unreported += 1
                return
            self._lines += 1
        self._buffer.put(level or logging.INFO, _line(row))

    def summarize(self) -> None:
        """Log the counts in one line, if they have changed and the policy allows it."""
        with self._lock:
            total, unreported = self._counts.total(), self._unreported
            if total == self._reported or self._policy == "none":
                return
            self._reported, self._lines, self._unreported = total, 0, 0
            counts = ", ".join(f"{name} {count}" for name, count in sorted(self._counts.items()))
        rest = f"; {unreported} notable ones were not shown one by one" if unreported else ""
        self._buffer.put(logging.INFO, f"so far: {counts}{rest}")

    def markdown(self) -> str:
        """Render the table: the latest notable attempts, then the latest others, and the total."""
        with self._lock:
            rows = [*reversed(self._notable), *reversed(self._others)]
            total = self._counts.total()
        shown = table(
            ("run", "step", "attempt", "outcome", "seconds", "note"),
            [(r.run_id, r.step, r.attempt, r.outcome, f"{r.seconds:.3f}", r.note) for r in rows],
        )
        head = f"{total} attempts, the latest {len(rows)} are shown" if total > len(rows) else f"{total} attempts"
        return f"{head}\n\n{shown}" if rows else "No attempt was executed."


def _row(settled: SettledAttempt) -> Row:
    attempt, outcome = settled.attempt, settled.outcome
    name, note = "failed", ""
    if settled.refused is not None:
        name, note = "refused", str(settled.refused)
    elif isinstance(outcome, Completed):
        name = "completed"
    elif isinstance(outcome, Deferred):
        name, note = "deferred", outcome.reason or ""
    elif isinstance(outcome, Interrupted):
        name, note = "interrupted", outcome.reason
    else:
        name = "failed" if outcome.retry is None else "retried"
        note = _error_text(outcome.error)
        if outcome.retry is not None:
            note = f"{note}; tried again in {outcome.retry.after.total_seconds():g} s"
    step = f"{attempt.workflow}.{attempt.step}"
    return Row(attempt.run_id, step, attempt.attempt_number, name, settled.seconds, brief(note, 300))


def _error_text(error: dict[str, Any]) -> str:
    safe = redacted(error)
    kind = safe.get("type") or safe.get("code") or "error"
    return f"{kind}: {safe.get('message', '')}"


def _level(row: Row, slow_seconds: float) -> int | None:
    match row.outcome:
        case "failed":
            return logging.ERROR
        case "retried" | "refused":
            return logging.WARNING
        case _:
            return logging.INFO if row.seconds >= slow_seconds else None


def _line(row: Row) -> str:
    outcome = {
        "failed": "failed for good",
        "retried": "failed and is tried again",
        "refused": "came too late, its result was dropped",
        "dead_lettered": "was given up and waits for a person",
    }.get(row.outcome, row.outcome)
    note = f": {row.note}" if row.note else ""
    return f"{row.step} {outcome}{note} (run {row.run_id}, attempt {row.attempt}, {row.seconds:.3f} s)"
