"""Which database is used, and how it is named."""

import os
import traceback
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sqlalchemy import make_url

from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.tiers import (
    ROOT_DATA_DIR,
    EmbeddedTier,
    ServerTier,
    default_data_dir,
    describe,
    display_url,
    is_answering,
    open_tier,
    resolve_tier,
)
from squid_dagster.protocol.errors import EmbeddedUnavailable, InvalidArgument

secrets = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12).map(
    lambda s: f"Q7x{s}x7Q"
)
tails = st.sampled_from(
    ["@db.example.com:5432/app", "@db.example.com", "@/app?host=/run", "", "/app", ":5432/app?sslmode=x"]
)


@pytest.mark.parametrize("scheme", ["mysql", "postgresql+asyncpg", "postgresql+psycopg2", "sqlite"])
def test_another_scheme_is_refused_by_name_and_without_the_password(scheme: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve_tier(environ={"DATABASE_URL": f"{scheme}://u:hunter2@h/d"})
    assert f"DATABASE_URL has the scheme {scheme!r}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "host=h password=hunter2", "u:hunter2@h/d", "postgresql:/u:hunter2@h"])
def test_what_is_no_url_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a URL") as caught:
        resolve_tier(text, environ={})
    assert "hunter2" not in str(caught.value)


def test_a_password_that_is_not_quoted_is_refused_before_half_of_it_becomes_a_host() -> None:
    with pytest.raises(InvalidArgument, match="quote special signs") as caught:
        resolve_tier("postgresql://u:hun@ter2@h/d", environ={})
    assert "ter2" not in str(caught.value)


def test_embedded_is_refused_inside_kubernetes_unless_the_directory_is_named() -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOME": "/home/alice"}
    with pytest.raises(EmbeddedUnavailable, match="set SQUID_DATABASE_URL, or set SQUID_DATA_DIR"):
        resolve_tier(environ=inside)
    assert resolve_tier(environ={**inside, "SQUID_DATA_DIR": "/data"}) == EmbeddedTier(Path("/data"), "SQUID_DATA_DIR")
    assert isinstance(resolve_tier(environ={**inside, "DATABASE_URL": "postgres://h/d"}), ServerTier)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg", "POSTGRES"])
def test_all_forms_of_a_postgres_url_mean_the_same(scheme: str) -> None:
    tier = resolve_tier(f"{scheme}://u:p%40w@h:1/d?sslmode=require", environ={})
    assert tier == ServerTier("postgresql+psycopg://u:p%40w@h:1/d?sslmode=require", "argument")


def test_the_first_that_is_set_decides() -> None:
    environ = {"SQUID_DATABASE_URL": "postgres://a/x", "DATABASE_URL": "postgres://b/x", "SQUID_DATA_DIR": "/data"}
    sources = [resolve_tier("postgres://c/x", environ).source]
    for name in list(environ):
        sources.append(resolve_tier(environ=environ).source)
        environ[name] = ""  # empty counts as unset
    environ["HOME"] = "/home/alice"
    sources.append(resolve_tier(environ=environ).source)
    assert sources == ["argument", "SQUID_DATABASE_URL", "DATABASE_URL", "SQUID_DATA_DIR", "default"]


def test_the_newline_of_a_secret_that_came_from_a_file_is_dropped() -> None:
    assert resolve_tier("postgres://h/d\n", environ={}) == ServerTier("postgresql+psycopg://h/d", "argument")


def test_a_relative_directory_is_taken_from_here() -> None:
    assert resolve_tier(environ={"SQUID_DATA_DIR": "x/../data"}) == EmbeddedTier(Path.cwd() / "data", "SQUID_DATA_DIR")


def test_a_directory_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="unknown user"):
        resolve_tier(environ={"SQUID_DATA_DIR": "~no-such-user/data"})


def test_the_default_directory_is_the_users_own() -> None:
    expected = ROOT_DATA_DIR if os.geteuid() == 0 else Path("/home/alice/.local/share/squid_dagster")
    assert default_data_dir({"HOME": "/home/alice"}) == expected
    assert default_data_dir({"HOME": "/home/alice", "XDG_DATA_HOME": "relative"}) == expected
    assert default_data_dir({"HOME": "/h", "XDG_DATA_HOME": "/xdg"}) == Path("/xdg/squid_dagster")


@given(secrets, tails)
def test_no_message_and_no_representation_ever_shows_a_password(password: str, tail: str) -> None:
    assume("@" in tail or "@" not in password)  # else half of it cannot be told from a host
    url = f"postgresql://alice:{password}{tail}"
    shown = [display_url(url), repr(ServerTier(url, "argument")), describe(ServerTier(url, "argument"))]
    try:
        resolve_tier(url, environ={})
    except InvalidArgument:
        shown.append(traceback.format_exc().split("Traceback", 1)[1].rpartition("InvalidArgument: ")[2])
    for text in shown:
        assert "Q7x" not in text
        assert "x7Q" not in text


@given(secrets, st.sampled_from(["password", "sslpassword", "options", "sslkey", "passfile", "whatever"]))
def test_no_query_value_is_shown_that_might_be_a_secret(secret: str, name: str) -> None:
    shown = display_url(f"postgresql://alice@h/d?application_name=squid&{name}={secret}")
    assert "Q7x" not in shown
    assert "x7Q" not in shown or "&" in secret


@given(st.text(min_size=1))
def test_a_quoted_password_reaches_the_database_as_it_is(password: str) -> None:
    url = make_url("postgresql://alice@h/d").set(password=password).render_as_string(hide_password=False)
    assert make_url(open_tier(resolve_tier(url, environ={}))).password == password


@given(st.text())
def test_display_never_raises(text: str) -> None:
    assert isinstance(display_url(text), str)


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("postgresql://u:p@db.example.com:5432/app", "Postgres at db.example.com:5432/app (SQUID_DATABASE_URL)"),
        ("postgresql://u@[::1]:5432/app?sslmode=require", "Postgres at [::1]:5432/app (SQUID_DATABASE_URL)"),
        ("postgresql://u@/app?host=%2Frun%2Fpg", "Postgres at /run/pg/app (SQUID_DATABASE_URL)"),
        ("postgresql:///app", "Postgres at localhost/app (SQUID_DATABASE_URL)"),
    ],
)
def test_a_tier_is_described_in_one_line(url: str, line: str) -> None:
    assert describe(resolve_tier(environ={"SQUID_DATABASE_URL": url})) == line


def test_an_embedded_tier_is_described_by_its_directory() -> None:
    assert describe(EmbeddedTier(Path("/data"), "SQUID_DATA_DIR")) == "embedded Postgres in /data (SQUID_DATA_DIR)"


def test_opening_an_embedded_tier_starts_its_server(stopped_server: EmbeddedPostgres) -> None:
    tier = resolve_tier(open_tier(EmbeddedTier(stopped_server.data_dir, "argument")), environ={})
    assert isinstance(tier, ServerTier)
    assert is_answering(tier)
    assert not is_answering(ServerTier("postgresql+psycopg://u:p@127.0.0.1:1/d", "argument"))
