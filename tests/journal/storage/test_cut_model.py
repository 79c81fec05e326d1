"""A model of numbers, announcements and cuts, with every interleaving of its writers and a reader.

It is what take_number.sql, cut.sql and publish_cut.sql do, one step per access to something shared: the sequence,
the locks, the WAL, and the facts that are visible. Each rule is also broken once, and then a bad state is found.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

_CUTS = 2  # that the reader takes, and one more when all writers have ended
_FACTS = 2  # of each commit
_PLACES = 4  # positions between two numbers


@dataclass(frozen=True)
class Rules:
    """The protocol, with ways to break it."""

    announced_first: bool = True  # the lock is taken before the number
    sequence_first: bool = True  # a cut reads the sequence before the locks
    window: bool = True  # a lock ahead of the sequence does not count
    one_number: bool = True  # a commit takes one number, and not one for each fact
    locked_until_visible: bool = True
    published_after: bool = True  # what a standby goes by is a cut, and not the sequence
    numbers_of_locks: int = 8  # 2**32 in the database

    @property
    def steps(self) -> tuple[str, ...]:
        takes = ("take",) if self.one_number else ("take",) * _FACTS
        ends = ("log", "show", "unlock") if self.locked_until_visible else ("unlock", "log", "show")
        return ("look", "lock", *takes, *ends) if self.announced_first else (*takes, "look", "lock", *ends)


@dataclass(frozen=True)
class Writer:
    """One commit: how far it has come, what it announces, the positions of its facts."""

    at: int = 0
    announced: int | None = None
    locked: bool = False
    positions: tuple[int, ...] = ()
    aborted: bool = False


@dataclass(frozen=True)
class Reader:
    """Takes cuts, and reads from each to the next."""

    at: int = 0
    last: int = 0
    locks: frozenset[int] = frozenset()
    cut: int = 0
    seen: frozenset[int] = frozenset()
    cuts: int = 0


@dataclass(frozen=True)
class State:
    """The shared state, and that of each writer and of the reader."""

    last: int
    writers: tuple[Writer, ...]
    reader: Reader = Reader()
    visible: frozenset[int] = frozenset()
    published: int = 0  # the highest cut in the WAL


class Violation(AssertionError):
    """A state that must not be."""


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def _position(rules: Rules, number: int, place: int) -> int:
    return number * _PLACES + place if rules.one_number else number


def _write(rules: Rules, state: State, i: int) -> Iterator[State]:
    """Yield the states after a writer's next step, or after it gives up, which is possible until it is logged."""
    writer = state.writers[i]
    step = rules.steps[writer.at]
    if step in ("look", "lock", "take") and writer.at > 0:
        yield _with(state, i, replace(writer, at=len(rules.steps), locked=False, aborted=True))
    moved = replace(writer, at=writer.at + 1)
    match step:
        case "look":
            yield _with(state, i, replace(moved, announced=state.last))
        case "lock":
            yield _with(state, i, replace(moved, locked=True))
        case "take":
            number = state.last + 1
            places = range(1, _FACTS + 1) if rules.one_number else [1]
            positions = (*writer.positions, *(_position(rules, number, place) for place in places))
            yield _with(replace(state, last=number), i, replace(moved, positions=positions))
        case "log":
            _require(all(p > state.published for p in writer.positions), "a standby has passed this commit already")
            yield _with(state, i, moved)
        case "show":
            _require(all(p > state.reader.cut for p in writer.positions), "a commit appears under an earlier cut")
            yield _with(replace(state, visible=state.visible | set(writer.positions)), i, moved)
        case "unlock":
            yield _with(state, i, replace(moved, locked=False))


def _with(state: State, i: int, writer: Writer) -> State:
    # Writers are all alike: in one order, there are fewer states.
    return replace(state, writers=tuple(sorted((*state.writers[:i], writer, *state.writers[i + 1 :]), key=_order)))


def _order(writer: Writer) -> tuple[int, int, int, tuple[int, ...]]:
    announced = -1 if writer.announced is None else writer.announced
    return writer.at, announced, writer.aborted, writer.positions


def _cut(rules: Rules, last: int, locks: frozenset[int], start: int) -> int:
    """Compute a cut as cut.sql does, without its check for existing facts."""
    size = rules.numbers_of_locks
    behind = [(last - number) % size for number in locks]
    if rules.window:
        behind = [distance for distance in behind if distance < size // 2]
    number = last - max(behind, default=0)
    _require(number >= start, "a cut lies before the journal's first commit")
    return _position(rules, number + 1, 0) - 1 if rules.one_number else number


def _read(rules: Rules, state: State, start: int) -> State:
    """Return the state after the reader's next step: the two reads of a cut, then the facts up to it."""
    reader = state.reader
    order = ("last", "locks") if rules.sequence_first else ("locks", "last")
    locks = frozenset(
        w.announced % rules.numbers_of_locks for w in state.writers if w.locked and w.announced is not None
    )
    match (*order, "facts")[reader.at]:
        case "last":
            read = replace(reader, at=reader.at + 1, last=state.last)
        case "locks":
            read = replace(reader, at=reader.at + 1, locks=locks)
        case _:
            cut = max(reader.cut, _cut(rules, reader.last, reader.locks, start))
            for writer in state.writers:
                under = {p for p in writer.positions if p <= cut}
                _require(not under or len(under) == _FACTS or writer.aborted, "a cut splits a commit")
                waiting = under - state.visible and not writer.aborted
                _require(not waiting, "a commit under the cut is not visible yet")
            published = cut if rules.published_after else reader.last * _PLACES + _PLACES - 1
            seen = reader.seen | {p for p in state.visible if reader.cut < p <= cut}
            read = Reader(cut=cut, seen=seen, cuts=reader.cuts + 1)
            return replace(state, reader=read, published=max(state.published, published))
    return replace(state, reader=read)


def _next(rules: Rules, state: State, start: int) -> Iterator[State]:
    ended = all(writer.at == len(rules.steps) for writer in state.writers)
    for i, writer in enumerate(state.writers):
        if writer.at < len(rules.steps):
            yield from _write(rules, state, i)
    if state.reader.cuts < _CUTS or (ended and state.reader.cuts == _CUTS):
        yield _read(rules, state, start)


def explore(rules: Rules, writers: int, start: int = 0) -> int:
    """Visit every state that can be reached; return how many there are. Raises `Violation` at the first bad one."""
    first = State(start, (Writer(),) * writers, Reader(cut=_cut(rules, start, frozenset(), start)))
    todo, known = [first], {first}
    while todo:
        state = todo.pop()
        following = list(_next(rules, state, start))
        if not following:
            # All writers have ended, and the last cut was taken after that.
            _require(state.reader.seen == state.visible, "a follower missed a commit, or read one twice")
            _require(state.reader.cut == _cut(rules, state.last, frozenset(), start), "a quiet cut lags behind")
        fresh = {one for one in following if one not in known}
        known |= fresh
        todo += fresh
    return len(known)


@pytest.mark.parametrize("start", range(0, 8, 3))  # wherever the numbers of locks begin again
def test_every_interleaving_of_two_writers_and_a_reader_is_good(start: int) -> None:
    assert explore(Rules(), 2, start) > 1_000


def test_every_interleaving_of_three_writers_and_a_reader_is_good() -> None:
    assert explore(Rules(), 3, 6) > 20_000


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (Rules(announced_first=False), "not visible yet|under an earlier cut|passed"),
        (Rules(sequence_first=False), "not visible yet|under an earlier cut|passed"),
        (Rules(window=False), "before the journal's first commit"),
        (Rules(one_number=False), "splits a commit"),
        (Rules(locked_until_visible=False), "not visible yet|under an earlier cut|passed"),
        (Rules(published_after=False), "passed this commit"),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_a_broken_rule_is_found(broken: Rules, what: str) -> None:
    with pytest.raises(Violation, match=what):
        explore(broken, 2)
