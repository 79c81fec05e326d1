"""What belongs to a storage and lives in memory: one of each kind per storage object, for all who use that object."""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_lock = Lock()
_kept: WeakKeyDictionary[object, dict[type, object]] = WeakKeyDictionary()


def shared(owner: object, kind: type[T], make: Callable[[], T] | None = None) -> T:
    """Give the one object of that kind that belongs to `owner`, made on first use; it goes when `owner` goes."""
    with _lock:
        mine = _kept.setdefault(owner, {})
        if kind not in mine:
            mine[kind] = (make or kind)()
        found = mine[kind]
    assert isinstance(found, kind)  # noqa: S101  it was made as one
    return found
