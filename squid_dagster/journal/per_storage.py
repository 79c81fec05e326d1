"""In-memory objects that belong to a storage object: one of each class, shared by all users of the storage."""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_lock = Lock()
_objects: WeakKeyDictionary[object, dict[type, object]] = WeakKeyDictionary()


def shared(owner: object, kind: type[T], make: Callable[[], T] | None = None) -> T:
    """Return the object of that class that belongs to `owner`, created on first use and dropped with `owner`."""
    with _lock:
        owned = _objects.setdefault(owner, {})
        if kind not in owned:
            owned[kind] = (make or kind)()
        value = owned[kind]
    assert isinstance(value, kind)  # noqa: S101  `make` returns one
    return value
