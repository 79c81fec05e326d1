"""What the looking half of the kit takes: a squid or a storage, whichever is at hand."""

from collections.abc import Iterator

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.entries import Entry

_PAGE = 5_000  # entries in one read


def storage_of(source: Squid | Storage) -> Storage:
    """Give the storage that holds all facts."""
    return source if isinstance(source, Storage) else source.journal


def read_all(storage: Storage) -> Iterator[Entry]:
    """Give everything up to a cut, by position."""
    after, upto = 0, storage.cut()
    while page := storage.read_between(after, upto, _PAGE):
        yield from page
        after = page[-1].position
