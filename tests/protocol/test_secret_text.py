"""Secrets inside a text are hidden by their shape and by the name in front of them; nothing else is touched."""

import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.secret_text import HIDDEN, Redaction
from squid_dagster.redaction import rules_from
from tests.histories import json_objects

RULES = Redaction()
S = "hunter2x9"
_TOKENS = {
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "github": "ghp_" + "a1B2" * 9,
    "github fine-grained": "github_pat_" + "a1B2_" * 9,
    "gitlab": "glpat-" + "a1B2-" * 5,
    "slack": "xoxb-123456789012-abcdefghij",
    "slack hook": "https://hooks.slack.com/services/T000/B000/" + S,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "stripe": "sk_live_" + "a1B2" * 6,
    "openai": "sk-proj-" + "a1B2" * 6,
    "google": "AIza" + "a1B2-" * 7,
    "pem": f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{S}\nq83v{S}\n-----END RSA PRIVATE KEY-----",
    "pem that was cut off": f"-----BEGIN PRIVATE KEY-----\nMIIE{S}",
}


@pytest.mark.parametrize("token", _TOKENS.values(), ids=_TOKENS)
@pytest.mark.parametrize("around", ["{}", "failed with {}: try again", "({})", "'{}'", "x={}, y=1", "a\n{}\nb"])
def test_a_token_is_known_by_its_shape(token: str, around: str) -> None:
    text = RULES.text(around.format(token))

    assert HIDDEN in text
    assert token not in text
    assert S not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://bob:{S}@db:5432/app", "postgresql://bob:***@db:5432/app"),
        (f"postgresql+psycopg://bob:p@{S}@db/app", "postgresql+psycopg://bob:***@db/app"),
        (f"redis://:{S}@cache:6379/0", "redis://***@cache:6379/0"),
        (f"amqp://bob:a/{S}@mq/v", "amqp://bob:***@mq/v"),
        (f"https://bob:{S}@example.com/x", "https://***@example.com/x"),
        (f"https://{S}@example.com/x", "https://***@example.com/x"),
        (f"https://example.com/x?a=1&access_token={S}&b=2", "https://example.com/x?a=1&access_token=***&b=2"),
        (f"https://example.com/x?X-Amz-Signature={S}&b=2", "https://example.com/x?X-Amz-Signature=***&b=2"),
        (f"https://x.blob.core.windows.net/c?sv=1&sig={S}", "https://x.blob.core.windows.net/c?sv=1&sig=***"),
        (f"host=db user=bob password={S} dbname=app", "host=db user=bob password=*** dbname=app"),
        (f"host=db password = '{S} two' dbname=app", "host=db password = '***' dbname=app"),
        (f"PGPASSWORD={S} psql app", "PGPASSWORD=*** psql app"),
        (f"{{'password': '{S}', 'a': 1}}", "{'password': '***', 'a': 1}"),
        (f"{{'password': 'it\\'s {S}', 'a': 1}}", "{'password': '***', 'a': 1}"),
        (f'{{"clientSecret": "{S}", "a": 1}}', '{"clientSecret": "***", "a": 1}'),
        (f'"{{\\"token\\": \\"{S}\\", \\"a\\": 1}}"', '"{\\"token\\": \\"***\\", \\"a\\": 1}"'),
        (f'{{"token": "{S} and the rest was cut off', '{"token": "***'),
        (f"bob, password:{S} at db", "bob, password:*** at db"),
        (f'"token":"{S}", "a":1', '"token":"***", "a":1'),
        (f"message: password={S}", "message: password=***"),
        (f"Authorization: Bearer {S}", "Authorization: ***"),
        (f"authorization: Basic {S}==\nHost: x", "authorization: ***\nHost: x"),
        (f"got Bearer {S} from b", "got Bearer *** from b"),
        (f"Set-Cookie: id={S}; Path=/\nHost: x", "Set-Cookie: ***\nHost: x"),
        (f"mysql --password {S} --host db", "mysql --password *** --host db"),
        (f"['mysql', '--password', '{S}', 'app']", "['mysql', '--password', '***', 'app']"),
        (f"--api-key={S} -v", "--api-key=*** -v"),
    ],
)
def test_a_secret_is_known_by_what_stands_before_it(text: str, shown: str) -> None:
    assert RULES.text(text) == shown
    assert RULES.text(f"E: {text}") == f"E: {shown}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the invoice 17 was declined",
        'FATAL: password authentication failed for user "bob"',
        "fe_sendauth: no password supplied",
        "KeyError: 'password'",
        "postgresql://bob@db:5432/app?sslmode=require",
        "ssh://git@github.com/a/b.git",
        "http://localhost:3000/users/@me",
        "see https://example.com/tokens?page=2&sort=key",
        "Basic authentication required",
        "Bearer token is missing",
        "password=None, token: null, secret=***",
        "fencing_token=7 token_count: 12 idempotency_key='a' runnable_key=r:s:1:1",
        "dropped the outcome of auth-42:get_token:1:1: too late",
        "squid:run:secret:1 and run-1:password:1:2",
        "2026-01-31T12:00:00+00:00 key=value; 12:30",
        "C:\\Users\\bob\\file.txt",
        "dict(a=1, b='x')",
        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        "task-sk-learn and risk-1234567890123456",
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert RULES.text(text) == text


_WORDS = st.sampled_from(
    """a the run-1 invoice 17 3.5 failed: (x) [1, 2] {'b': 2} "quoted" it's x=1; https://example.com/a?b=c&d=1 a@b.c ->
    step:1:2 \\ \n % Ärger 漢字 key keyboard tokenizer tokens=12 max_tokens: 5""".split(" ")  # noqa: SIM905
)


@given(st.lists(_WORDS, max_size=40).map(" ".join))
def test_words_without_a_secret_stay_as_they_are(text: str) -> None:
    assert RULES.text(text) == text


_PIECES = st.one_of(
    st.text(max_size=8),
    st.text("ab1=:'\"\\@/? &;,-\n.*", max_size=8),
    st.sampled_from(
        """:// @ password password= token: "secret" 'api_key' \\" \\\\" --token --password= Authorization: Bearer Basic
        cookie= eyJ AKIA sk- xoxb- ghp_ -----BEGIN -----END PRIVATE KEY----- hooks.slack.com/services/ *** [REDACTED]
        None => SG. abcdefghijklmnop 0123456789abcdef http https hf_""".split()  # noqa: SIM905
    ),
    st.sampled_from(list(_TOKENS.values())),
)


@given(st.lists(_PIECES, max_size=12).map("".join))
@example("password='" + "\\" * 5)
def test_redacting_twice_is_redacting_once_and_a_text_grows_by_little(text: str) -> None:
    once = RULES.text(text)

    assert RULES.text(once) == once
    assert len(once) <= len(text) + 3 * (len(text) // 5 + 1)


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\"'&<>\\@*"), min_size=3), st.text(max_size=5))
def test_the_password_of_a_pair_is_never_left(secret: str, after: str) -> None:
    secret = "".join(secret.split())
    if len(secret) >= 3 and secret.rstrip(",;.)]}").lower() not in ("", "none", "null", "true", "false", "undefined"):
        assert RULES.text(f"password={secret} {after}").startswith("password=*** ")


@given(json_objects())
def test_the_values_of_json_are_redacted_once_and_keep_their_shape(value: Any) -> None:
    once = RULES.value(value)

    assert RULES.value(once) == once


def test_texts_are_redacted_wherever_they_stand_in_a_value() -> None:
    url = f"https://bob:{S}@example.com"

    shown = RULES.value({"a": [url, {"b": url}], url: 1, "password": 5, "n": None, "x": 1.5})

    assert shown == {
        "a": ["https://***@example.com", {"b": "https://***@example.com"}],
        "https://***@example.com": 1,
        "password": "[REDACTED]",
        "n": None,
        "x": 1.5,
    }


_ADVERSARIES = [
    "a", "://", "://a:", "://a:b@", "-eyJ", "eyJaaaaaaaaa", "eyJaaaaaaaaa.", "password=", 'a="', 'token="', "token='\\",
    "-----BEGIN PRIVATE KEY-----", "bearer ", "basic a", "--", "--a ", "--token ", 'token=\\"', "\\", "token: x\n",
    "sk-", "xoxa-", ".", "@", "a:", "cookie:", "hooks.slack.com/services/", "SG.", "SG.aaaaaaaaaaaaaaaa.", "a://b:c",
    "token ", "AKIA", "pypi-", "authorization: ", "Ä=", "://" + "a" * 99, "://a:" + "b" * 95,
]  # fmt: skip


def test_a_megabyte_of_anything_is_read_in_one_go() -> None:
    """Time grows with the length of a text and not with its square: a square would take minutes for each of these."""
    for piece in _ADVERSARIES:
        for text in (piece * (2**17 // len(piece)), "token=" + piece * (2**17 // len(piece))):
            began = time.process_time()
            RULES.text(text)
            assert time.process_time() - began < 10, piece


def test_a_megabyte_of_words_is_read_in_one_go() -> None:
    began = time.process_time()
    RULES.text("the token password=x of https://a:b@c was 'refused' " * 20_000)
    assert time.process_time() - began < 10


def test_users_add_keys_and_patterns_of_their_own() -> None:
    rules = Redaction(keys=("iban", "card_number"), patterns=(r"CUST-[0-9]{4,}",))

    assert rules.value({"IBAN": "x", "cardNumber": 1, "number": 2}) == {
        "IBAN": "[REDACTED]",
        "cardNumber": "[REDACTED]",
        "number": 2,
    }
    assert rules.text("iban=DE12 of CUST-12345, card-number: '4111'") == "iban=*** of ***, card-number: '***'"


def test_the_environment_says_what_else_is_secret() -> None:
    rules = rules_from({"SQUID_REDACT_KEYS": "iban, card_number,", "SQUID_REDACT_PATTERNS": "CUST-[0-9]+\n\nX{3}\n"})

    assert rules == Redaction(("iban", "card_number"), ("CUST-[0-9]+", "X{3}"))
    assert rules_from({}) == Redaction()


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"patterns": ("(",)}, re.escape("'(' is no pattern")),
        ({"patterns": ("a*",)}, "matches an empty text"),
        ({"patterns": (5,)}, "5 is no pattern"),
        ({"keys": ("--",)}, "text with letters"),
        ({"keys": (None,)}, "text with letters"),
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Redaction(**rules)
