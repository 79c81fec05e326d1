"""Rounds: a group of independent members, written in parts so that no member fails another.

A round names each attempt once, and is bounded in members and bytes. A round that is refused as a whole is halved until
the refused member is alone; members whose run is locked by another session are found and left out. Only errors that
concern every member are raised, such as an unreachable database.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from squid_dagster.journal.contract.dispatch_store import Answer, ClaimRef, Completed, Failed, Outcome
from squid_dagster.limits import MAX_ROUND_BYTES, MAX_ROUND_MEMBERS
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import text_problem
from squid_dagster.protocol.errors import (
    EmbeddedUnavailable,
    ForeignSchema,
    NotFound,
    SchemaOutdated,
    SchemaTooNew,
    SquidError,
    StorageRefused,
    StorageUnavailable,
    ViewsMissing,
)
from squid_dagster.protocol.threads import is_part
from squid_dagster.redaction import named_error

logger = redacting_logger(__name__)

_OF_ALL = (StorageUnavailable, ViewsMissing, SchemaOutdated, SchemaTooNew, ForeignSchema, EmbeddedUnavailable)
_INTERNAL = "XX"  # the SQLSTATE class of internal errors, such as that of a value that is too large to be stored
_MOST_INTERNAL = 32  # refused members, without one that is written: the cause is the database, not a member
_LOCK_TIMEOUT = "55P03"
_PATIENCE_SECONDS = 5.0  # for a lock that concerns no single member
_PAUSE_SECONDS = 0.02

Write = Callable[[list[int]], Sequence[Answer]]
"""Writes the members at these places; returns an answer for each, or raises for all."""


class GroupTooLarge(SquidError):
    """The facts of a group, with its plans, are more than one commit may hold: it is written in parts."""


def answer_in_rounds(
    refs: Sequence[ClaimRef],
    write: Write,
    size_of: Callable[[int], int] = lambda _: 0,
    find_locked: Callable[[list[int]], Collection[int]] = lambda _: (),
) -> list[Answer]:
    """Return the answers to all members; `write` is called with the places of each round.

    When it raises for a lock, `find_locked` returns the members that the lock concerns.

    Raises:
        StorageUnavailable, ViewsMissing: nothing can be written now; members of earlier rounds may be on record, and it
            is safe to repeat them.
    """
    answers: dict[int, Answer] = {}
    for i, ref in enumerate(refs):
        if not _is_possible(ref):
            # Such a key cannot even be sent to the database.
            answers[i] = Answer(ref, error=NotFound(f"no attempt {ref.runnable_key!r:.80} of run {ref.run_id!r:.80}"))
    for places in _rounds(refs, [i for i in range(len(refs)) if i not in answers], size_of):
        answers.update(_Parts(refs, write, find_locked).answers(places))
    return [answers[i] for i in range(len(refs))]


def outcome_bytes(outcome: Outcome) -> int:
    """Return the size of an outcome as JSON; 0 for an invalid one, which is refused when it is judged."""
    value = outcome.result if isinstance(outcome, Completed) else outcome.error if isinstance(outcome, Failed) else None
    if value is None or isinstance(value, int | float):
        return 0
    try:
        return len(to_json(value))
    except (ValueError, TypeError, RecursionError):
        return 0


def concerns_all(error: Exception) -> bool:
    """Return whether an error is about the storage, and so concerns all members."""
    return isinstance(error, _OF_ALL)


def may_concern_one(error: Exception) -> bool:
    """Return whether a `StorageUnavailable` may concern one run alone: a lock timeout, or an internal error."""
    return _is_of(error, _LOCK_TIMEOUT) or _is_of(error, _INTERNAL)


def _is_possible(ref: ClaimRef) -> bool:
    return is_part(ref.run_id) and is_part(ref.queue) and _is_text(ref.runnable_key) and _is_text(ref.claim_id)


def _is_text(value: object) -> bool:
    return text_problem(value) is None and "\0" not in str(value)


def _rounds(refs: Sequence[ClaimRef], places: list[int], size_of: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield places in rounds: an attempt that is named again comes in a later one."""
    named: dict[tuple[str, str], int] = {}
    repeats: list[list[int]] = []
    for i in places:
        attempt = (refs[i].run_id, refs[i].runnable_key)
        nth = named[attempt] = named.get(attempt, -1) + 1
        if nth == len(repeats):
            repeats.append([])
        repeats[nth].append(i)
    for round_ in repeats:
        yield from _bounded(round_, size_of)


def _bounded(places: list[int], size_of: Callable[[int], int]) -> Iterator[list[int]]:
    if len(places) == 1:
        yield places
        return
    part: list[int] = []
    part_bytes = 0
    for i in places:
        size = size_of(i)
        if part and (part_bytes + size > MAX_ROUND_BYTES or len(part) == MAX_ROUND_MEMBERS):
            yield part
            part, part_bytes = [], 0
        part.append(i)
        part_bytes += size
    if part:
        yield part


@dataclass(slots=True)
class _Parts:
    """A round that is written in parts if it is refused as a whole."""

    refs: Sequence[ClaimRef]
    write: Write
    find_locked: Callable[[list[int]], Collection[int]]
    written: bool = False  # whether any part was
    internal: int = 0  # members that were refused alone for an internal error

    def answers(self, places: list[int]) -> dict[int, Answer]:
        """Write members and return their answers; leave out those whose run is locked, and write the rest."""
        answers: dict[int, Answer] = {}
        began = time.monotonic()
        while places:
            try:
                answers.update(zip(places, self.write(places), strict=True))
            except Exception as error:
                if not _is_of(error, _LOCK_TIMEOUT):
                    return answers | self._halves(places, error)
                locked = set(self.find_locked(places))
                if not locked:  # all of them wait for the lock, or it was released meanwhile
                    if time.monotonic() - began > _PATIENCE_SECONDS:
                        raise
                    time.sleep(_PAUSE_SECONDS)
                answers.update((i, Answer(self.refs[i], error=_locked(self.refs[i], error))) for i in locked)
                places = [i for i in places if i not in locked]
            else:
                self.written = True
                break
        return answers

    def _halves(self, places: list[int], error: Exception) -> dict[int, Answer]:
        """Write a refused part in halves, and return the answers; for a single member, the refusal."""
        internal = _is_of(error, _INTERNAL)
        if concerns_all(error) and not internal:
            raise error
        if len(places) == 1:
            (i,) = places
            self.internal += internal
            if self.internal > _MOST_INTERNAL and not self.written:
                raise error
            return {i: Answer(self.refs[i], error=_refusal(self.refs[i], error))}
        logger.info("a group of %d is written in parts: %s: %s", len(places), type(error).__name__, error)
        half = len(places) // 2
        return self.answers(places[:half]) | self.answers(places[half:])


def _is_of(error: Exception, state: str) -> bool:
    return isinstance(error, StorageUnavailable) and (error.sqlstate or "").startswith(state)


def _locked(ref: ClaimRef, error: Exception) -> StorageUnavailable:
    unavailable = StorageUnavailable(f"{ref.runnable_key!r} waits for a lock on run {ref.run_id!r}: {error}")
    unavailable.sqlstate = _LOCK_TIMEOUT
    return unavailable


def _refusal(ref: ClaimRef, error: Exception) -> SquidError:
    if isinstance(error, SquidError):
        return error
    logger.error("%s cannot be written", ref.runnable_key, exc_info=error)
    return StorageRefused(f"{ref.runnable_key!r} cannot be written: {named_error(error)}")
