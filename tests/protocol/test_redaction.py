"""Redaction by the parts of keys: what is hidden, what is not, and at which depth."""

from typing import Any

import pytest
from hypothesis import given

from squid_dagster.protocol import redact
from squid_dagster.protocol.redaction import REDACTED, is_secret_key
from tests.facts import (
    child,
    dead_lettered,
    failed,
    queue_paused,
    signal,
    started,
    step_paused,
    step_resolved,
    terminal,
)
from tests.histories import json_objects


@pytest.mark.parametrize(
    "key",
    [
        "access_token",
        "api_key",
        "authorization",
        "claim_token",
        "credential",
        "password",
        "private_key",
        "refresh_token",
        "secret",
        "token",
        "x-api-key",
        "client_secret",
        "session_token",
        "bearer",
        "Authorization",
        "X-API-KEY",
        "apiKey",
        "APIKey",
        "clientSecret",
        "db.password",
        "PASSWORD2",
        "aws secret access key",
        "jwt",
        "ssh_key",
        "set-cookie",
    ],
)
def test_a_key_that_names_a_secret_is_known_by_its_parts(key: str) -> None:
    assert is_secret_key(key)
    assert redact({key: "s3cret"}) == {key: REDACTED}


@pytest.mark.parametrize("key", ["api_keys", "access_tokens", "passwords", "cookies", "private_keys"])
def test_several_secrets_are_secret_too(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize("key", ["password_hash", "client_secret_hash"])
def test_a_hash_of_a_password_is_no_public_matter(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "_",
        "key",
        "keyboard",
        "author",
        "tokenizer",
        "secretary",
        "monkey",
        "token_count",
        "token_type",
        "max_token_limit",
        "runnable_key",
        "idempotency_key",
        "password_ttl",
        "message",
        "max_tokens",
    ],
)
def test_a_key_that_only_looks_like_a_secret_is_left_alone(key: str) -> None:
    assert not is_secret_key(key)
    assert redact({key: "open"}) == {key: "open"}


def test_secrets_are_hidden_at_any_depth_and_whatever_their_type() -> None:
    value: Any = {"a": [{"token": {"deep": 1}}, [[{"password": None}]], "token"], "b": {"c": {"secret": [1, 2]}}}

    assert redact(value) == {
        "a": [{"token": REDACTED}, [[{"password": REDACTED}]], "token"],
        "b": {"c": {"secret": REDACTED}},
    }


def test_redaction_gives_a_copy() -> None:
    value: Any = {"a": {"token": "s3cret"}, "b": [{"token": "s3cret"}]}

    redact(value)

    assert value == {"a": {"token": "s3cret"}, "b": [{"token": "s3cret"}]}


@given(json_objects())
def test_redacting_twice_is_redacting_once(value: Any) -> None:
    assert redact(redact(value)) == redact(value)


@pytest.mark.parametrize(
    ("fact", "name"),
    [
        (signal(metadata={"api_key": "s3cret"}), "metadata"),
        (signal(actor={"api_key": "s3cret"}), "actor"),
        (child(metadata={"api_key": "s3cret"}), "metadata"),
        (step_paused(metadata={"api_key": "s3cret"}), "metadata"),
        (step_resolved(metadata={"api_key": "s3cret"}), "metadata"),
        (terminal(error={"api_key": "s3cret"}), "error"),
        (failed(error={"api_key": "s3cret"}), "error"),
        (dead_lettered(error={"api_key": "s3cret"}), "error"),
        (queue_paused(actor={"api_key": "s3cret"}), "actor"),
    ],
)
def test_metadata_actors_and_errors_are_redacted_when_a_fact_is_made(fact: Any, name: str) -> None:
    assert getattr(fact, name) == {"api_key": REDACTED}


def test_payloads_inputs_and_results_are_stored_whole() -> None:
    assert signal(payload={"api_key": "s3cret"}).payload == {"api_key": "s3cret"}
    assert started(input={"api_key": "s3cret"}).input == {"api_key": "s3cret"}
    assert step_resolved(result={"api_key": "s3cret"}).result == {"api_key": "s3cret"}
