"""Ids that are derived from a key: the same key leads to the same run. Pure."""

import base64
import hashlib
import uuid


def derived_run_id(*parts: str) -> str:
    """Return the run id of these parts, such as workflow, trigger and idempotency key: always the same."""
    raw = bytearray(hashlib.sha256(_framed(parts)).digest()[:16])
    raw[6] = (raw[6] & 0x0F) | 0x50
    raw[8] = (raw[8] & 0x3F) | 0x80
    return str(uuid.UUID(bytes=bytes(raw)))


def window_identity(workflow: str, trigger: str, start_at: str, end_at: str) -> str:
    """Return the identity of a cron start from its window, for schedulers that have none of their own."""
    raw = hashlib.sha256(_framed((workflow, trigger, start_at, end_at))).digest()
    return "sha256:" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _framed(parts: tuple[str, ...]) -> bytes:
    # Prefixed by lengths, so that no two lists of parts have the same text.
    return "|".join(f"{len(part.encode())}:{part}" for part in parts).encode()
