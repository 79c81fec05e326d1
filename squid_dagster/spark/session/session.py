"""Spark sessions: their settings, and the checks before Spark itself starts. Reads no journal."""

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
_SHOWN_CHARACTERS = 300  # of an error of Spark: a trace of hundreds of lines follows


@checked
def spark_config(spark_master: str = DEFAULT_MASTER, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the configuration of a session, for a builder or the resource of dagster-pyspark; `settings` win.

    Raises:
        InvalidArgument: the master is of no known kind.
    """
    master = parse_master(spark_master)
    needed = {
        "spark.app.name": "squid_dagster",
        "spark.sql.session.timeZone": "UTC",
        # Without it, Spark refuses readers that take filters.
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if master.kind is Kind.CONNECT:
        return {"spark.remote": master.text, **needed, **(settings or {})}
    needed |= {
        "spark.master": master.text,
        # Otherwise a module called pyspark_connect anywhere on the path switches pyspark to Connect.
        "spark.api.mode": "classic",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A refresh needs more than the default of 100 compiled classes, and would compile each of them again.
        "spark.sql.codegen.cache.maxEntries": "1000",
    }
    if master.on_this_machine:
        needed |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
    return {**needed, **(settings or {})}


@checked
def prepare(spark_master: str = DEFAULT_MASTER) -> Master:
    """Check that Spark can run on this master, and set the environment of this process for it.

    Sets JAVA_HOME and the Python that plans queries; if all of Spark is on this machine, also the Python of its workers
    and the address they bind to. Variables that are set stay, an unusable JAVA_HOME excepted. Starts nothing.

    Raises:
        InvalidArgument: the master is of no known kind.
        SparkUnavailable: no server answers there, or it does not speak Spark Connect where it must.
        JavaMissing: Java is needed on this machine, and there is none.
    """
    master = parse_master(spark_master)
    check_reachable(master)
    if master.kind is Kind.CONNECT:
        check_connect(master)
    else:
        use_java()
        # The JVM reads these from its environment: settings come too late for the planning of queries.
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master.on_this_machine:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    return master


@checked
def open_session(spark_master: str = DEFAULT_MASTER, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session there, or return the one of this process, with the journal's data source registered.

    Raises:
        InvalidArgument, SparkUnavailable, JavaMissing: as `prepare`.
        SparkUnavailable: this process has a session on another master (stop it first), or the master refuses.
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
            _stop_failed_session(master)
        if isinstance(error, SparkUnavailable):
            raise
        raise SparkUnavailable(_refusal(master, error)) from error
    return session


@checked
def register(session: AnySession) -> None:
    """Register the data source `squid_journal` with any session; a repeat changes nothing."""
    session.dataSource.register(JournalSource)


def _refuse_other_master(master: Master) -> str | None:
    """Return the master of this process's session, if any; raise `SparkUnavailable` if it is another than this one."""
    there = _current_master()
    if there is not None and there != (master.shown if master.kind is Kind.CONNECT else master.text):
        raise SparkUnavailable(
            f"this process has a Spark session on {there}, and one process has one master: "
            f"stop it before a session on {master.shown}"
        )
    return there


def _current_master() -> str | None:
    """Return the master of this process's session, if any; of a Connect server, its host and port."""
    try:
        there = SparkSession.active()
    except PySparkRuntimeError:  # there is none
        return None
    if isinstance(there, SparkSession):
        return there.conf.get("spark.master", None)
    endpoint: str = there.client._builder.endpoint
    return endpoint


def _stop_failed_session(master: Master) -> None:
    """Stop what is left of a session that failed to start; pyspark would return it to the next caller."""
    with suppress(PySparkException, Py4JError):
        if master.kind is Kind.CONNECT:
            SparkSession.active().stop()
        elif (context := SparkContext._active_spark_context) is not None:
            context.stop()


def _refusal(master: Master, error: Exception) -> str:
    why = " ".join(str(error).split())[:_SHOWN_CHARACTERS] or type(error).__name__
    if master.kind is not Kind.STANDALONE:
        return f"Spark at {master.shown} does not give us a session: {why}"
    # Spark says only that it has stopped: a master of another version answers nothing that can be read.
    return (
        f"the master at {master.shown} did not take us in: it must be a standalone master of Spark {__version__}, "
        f"as pyspark is here, and be able to reach this machine. Its log says more; Spark said: {why}"
    )
