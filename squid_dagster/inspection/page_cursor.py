"""Cursors of listings: opaque texts that say where the next page begins, and for which filters."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from squid_dagster.protocol.entries import digest
from squid_dagster.protocol.errors import InvalidArgument

VERSION = 1
_PREFIX = f"r{VERSION}."
_CHECK = 6  # bytes that show a damaged cursor; it protects nothing, and there is nothing in it to protect
_LONGEST = 200
_REMEDY = "begin again without a cursor"


def write_cursor(position: int, filters: Mapping[str, Any]) -> str:
    """Return the cursor of the page that comes before this position, for these filters."""
    body = json.dumps([position, digest(dict(filters))], separators=(",", ":")).encode()
    return _PREFIX + base64.urlsafe_b64encode(_check(body) + body).decode().rstrip("=")


def read_cursor(cursor: str, filters: Mapping[str, Any]) -> int:
    """Return the position that a cursor stands for.

    Raises:
        InvalidArgument: it is damaged, not one of ours, of another version, or was given for other filters.
    """
    if not isinstance(cursor, str) or not cursor.startswith("r") or len(cursor) > _LONGEST:
        raise InvalidArgument(f"{cursor!r:.60} is not a cursor of a listing: {_REMEDY}")
    if not cursor.startswith(_PREFIX):
        raise InvalidArgument(f"the cursor {cursor!r:.60} is damaged or of another version: {_REMEDY}")
    position, made_for = _decoded(cursor)
    if made_for != digest(dict(filters)):
        raise InvalidArgument(
            f"the cursor {cursor!r:.60} was given for other filters: repeat those that it was given for, or {_REMEDY}"
        )
    return position


def _decoded(cursor: str) -> tuple[int, str]:
    text = cursor.removeprefix(_PREFIX)
    try:
        whole = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        check, body = whole[:_CHECK], whole[_CHECK:]
        position, made_for = json.loads(body)
        if check != _check(body) or not isinstance(position, int) or not isinstance(made_for, str):
            raise ValueError("damaged")
    except (ValueError, TypeError, binascii.Error):
        raise InvalidArgument(f"the cursor {cursor!r:.60} is damaged: {_REMEDY}") from None
    return position, made_for


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK, person=b"squid runs").digest()
