"""The database's URL reaches executors, and its password is seen nowhere on the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument, StorageUnavailable
from squid_dagster.spark.source.credentials import Location, configured_location, handed_over, locate
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.source.database import connected
from tests.facts import started

SECRET = "s3cret-of-the-journal"
URL = f"postgresql://squid:{SECRET}@127.0.0.1:1/squid"


def test_a_password_is_refused_as_an_option() -> None:
    with pytest.raises(InvalidArgument, match="would show a secret in plans and logs: write it into a file") as refused:
        locate({"url": URL})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("options", [{}, {"url": "postgresql://host/db", "url_env": "X"}])
def test_one_way_to_the_url_is_needed_and_enough(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="needs one of url, url_file and url_env"):
        locate(options)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text(URL)
    path.chmod(0o644)

    with pytest.raises(InvalidArgument, match="can be read by others: run chmod 600") as refused:
        Location("url_file", str(path)).read()
    assert SECRET not in str(refused.value)


def test_a_file_or_variable_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQUID_NO_SUCH_URL", raising=False)

    with pytest.raises(InvalidArgument, match="'SQUID_NO_SUCH_URL' holds no database URL on this machine"):
        Location("url_env", "SQUID_NO_SUCH_URL").read()
    with pytest.raises(InvalidArgument, match="cannot be read on this machine"):
        Location("url_file", str(tmp_path / "none")).read()


def test_the_file_is_the_owners_alone_and_gone_afterwards() -> None:
    with handed_over(URL) as options:
        path = Path(options["url_file"])
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o077 == 0
        assert locate(options).read().endswith(URL.partition("://")[2])
    assert not path.parent.exists()


def test_a_url_without_a_secret_needs_no_file() -> None:
    url = "postgresql+psycopg://squid@/squid?host=/run/postgres&port=5432"
    with handed_over(url) as options:
        assert options == {"url": url}


@pytest.mark.parametrize(
    "url",
    [URL, f"postgresql://squid:{SECRET}@127.0.0.1:1/squid?nonsense={SECRET}", f"postgresql:///?password={SECRET}"],
)
def test_an_error_about_the_database_shows_no_secret(url: str) -> None:
    at = pytest.raises(StorageUnavailable, match="cannot read from Postgres at")
    with handed_over(url) as options, at as refused, connected(locate(options), "squid"):
        pass
    assert SECRET not in str(refused.value)


def _processes() -> Iterator[str]:
    for directory in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                yield (directory / name).read_text(errors="replace")
            except OSError:  # gone meanwhile, or not ours
                continue


def test_a_password_is_in_no_plan_setting_event_or_process(
    spark: SparkSession, postgres: PostgresStorage, event_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.append(started().thread, [started()])
    # The server asks no client for a password, so any works.
    url = make_url(postgres.engine.url.render_as_string(hide_password=False)).set(password=SECRET)

    with handed_over(url.render_as_string(hide_password=False)) as location:
        frame = read_journal(spark, location, schema=postgres.schema, upto=postgres.cut())
        assert frame.count() == 1
        frame.explain("extended")
        frame.explain("formatted")
        shown = [
            capsys.readouterr().out,
            str(frame._jdf.queryExecution()),
            str(spark.sparkContext.getConf().getAll()),
            *(str(pair) for pair in spark.sql("SET -v").collect()),
            *_processes(),
        ]
    logged = [path.read_text(errors="replace") for path in event_log.rglob("*") if path.is_file()]

    assert "squid_journal" in shown[0]
    assert any("squid_journal" in text for text in logged)
    assert not [text for text in [*shown, *logged] if SECRET in text]


def test_the_configured_url_is_an_option_unless_it_holds_a_secret() -> None:
    open_url, secret_url = "postgresql://host/db", "postgresql://ada:secret@host/db"
    assert configured_location({"DATABASE_URL": open_url}) == {"url": "postgresql+psycopg://host/db"}
    assert configured_location({"SQUID_DATABASE_URL": secret_url}) == {"url_env": "SQUID_DATABASE_URL"}
    assert configured_location({"DATABASE_URL": secret_url}) == {"url_env": "DATABASE_URL"}
