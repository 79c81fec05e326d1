"""Payloads: how large one may be."""

import pytest
from pydantic import BaseModel

from squid_dagster.protocol.errors import InvalidPayload
from squid_dagster.workflow.payload import MAX_PAYLOAD_BYTES, accept_payload


class Text(BaseModel):
    """Some text."""

    text: str


def test_a_payload_may_have_a_mebibyte_and_no_more() -> None:
    frame = len('{"text":""}')
    most = "x" * (MAX_PAYLOAD_BYTES - frame)
    assert accept_payload("w", Text, {"text": most}) == {"text": most}
    with pytest.raises(InvalidPayload, match="1,048,577 bytes, more than 1 MiB: store it and pass a reference"):
        accept_payload("w", Text, {"text": most + "x"})
