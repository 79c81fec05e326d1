"""Spark sessions: the settings that this room needs, and the checks that come before any of Spark's own work."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext, __version__
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from squid_dagster.protocol.argument_checks import checked
from squid_dagster.spark.errors import SparkUnavailable
from squid_dagster.spark.session.any_session import AnySession
from squid_dagster.spark.session.java import use_java
from squid_dagster.spark.session.master import Kind, Master, check_connect, check_reachable, check_version, parse_master
from squid_dagster.spark.source.data_source import JournalSource

DEFAULT_MASTER = "local[*]"
_LOOPBACK = "127.0.0.1"
_SAID_CHARACTERS = 300  # of what Spark says when it refuses: a trace of hundreds of lines follows


@checked
def spark_config(spark_master: str = DEFAULT_MASTER, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give the configuration of a session, as a builder or dagster-pyspark's resource takes it; `settings` win.

    Raises:
        InvalidArgument: a master of no known kind.
    """
    master = parse_master(spark_master)
    needed = {
        "spark.app.name": "squid_dagster",
        "spark.sql.session.timeZone": "UTC",
        # Readers that take filters are refused by Spark unless this is on.
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if master.kind is Kind.CONNECT:
        return {"spark.remote": master.text, **needed, **(settings or {})}
    needed |= {
        "spark.master": master.text,
        # A module called pyspark_connect somewhere on the path would switch pyspark over.
        "spark.api.mode": "classic",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A refresh needs more than the usual hundred pieces of compiled code, and would make each of them anew.
        "spark.sql.codegen.cache.maxEntries": "1000",
    }
    if master.on_this_machine:
        needed |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
    return {**needed, **(settings or {})}


@checked
def prepare(spark_master: str = DEFAULT_MASTER) -> Master:
    """Check that Spark can run where it is told to, and set this process's environment for it.

    That is JAVA_HOME, the Python that plans queries here, and, where all of Spark is on this machine, that of its
    workers and the address they bind to. What is set stays as it is, but for a JAVA_HOME of no use. Starts nothing.

    Raises:
        InvalidArgument: a master of no known kind.
        SparkUnavailable: nobody answers there, or does not speak Spark Connect where it should.
        JavaMissing: Java is needed here, and there is none.
    """
    master = parse_master(spark_master)
    check_reachable(master)
    if master.kind is Kind.CONNECT:
        check_connect(master)
    else:
        use_java()
        # Read from the environment of the JVM alone: as settings they come too late for the planning of queries.
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master.on_this_machine:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    return master


@checked
def open_session(spark_master: str = DEFAULT_MASTER, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session there, or give the one that this process has, with the journal's data source registered.

    Raises:
        InvalidArgument, SparkUnavailable, JavaMissing: as `prepare`.
        SparkUnavailable: this process has a session on another master: stop it first; or the master refuses us.
    """
    there = _refuse_other_master(parse_master(spark_master))
    master = prepare(spark_master)
    builder = SparkSession.builder
    for name, value in spark_config(spark_master, settings).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
        check_version(session.version, master)
        register(session)
    except (PySparkException, Py4JError, SparkUnavailable) as error:
        if there is None:
            _forget(master)
        if isinstance(error, SparkUnavailable):
            raise
        raise SparkUnavailable(_refusal(master, error)) from error
    return session


@checked
def register(session: AnySession) -> None:
    """Make `squid_journal` known to a session, whoever started it; once more does no harm."""
    session.dataSource.register(JournalSource)


def _refuse_other_master(master: Master) -> str | None:
    """Give the master of the session that this process has, if any; raises `SparkUnavailable` for another one."""
    there = _current_master()
    if there is not None and there != (master.shown if master.kind is Kind.CONNECT else master.text):
        raise SparkUnavailable(
            f"this process has a Spark session on {there}, and one process has one master: "
            f"stop it before a session on {master.shown}"
        )
    return there


def _current_master() -> str | None:
    """Give the master of the session that this process has, if any; of a Connect server, its host and port."""
    try:
        there = SparkSession.active()
    except PySparkRuntimeError:  # there is none
        return None
    if isinstance(there, SparkSession):
        return there.conf.get("spark.master", None)
    endpoint: str = there.client._builder.endpoint
    return endpoint


def _forget(master: Master) -> None:
    """Take away what is left of a session that did not come to be; it would be given to whoever asks for the next."""
    with suppress(PySparkException, Py4JError):
        if master.kind is Kind.CONNECT:
            SparkSession.active().stop()
        elif (context := SparkContext._active_spark_context) is not None:
            context.stop()


def _refusal(master: Master, error: Exception) -> str:
    why = " ".join(str(error).split())[:_SAID_CHARACTERS] or type(error).__name__
    if master.kind is not Kind.STANDALONE:
        return f"Spark at {master.shown} does not give us a session: {why}"
    # It says no more than that it has stopped: a master of another version answers nothing that can be understood.
    return (
        f"the master at {master.shown} did not take us in: it must be a standalone master of Spark {__version__}, "
        f"as pyspark is here, and be able to reach this machine. Its log says more; Spark said: {why}"
    )
