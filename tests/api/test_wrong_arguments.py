"""Every argument of every public call is tried with every kind of wrong value.

It works, or is refused by an error of ours that says what is wrong, and then nothing was written. A public callable
without a call in the table fails the first test, so that a new one cannot be forgotten.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import squid_dagster
from squid_dagster import SignalType, agents, backlog, inspection, journal, protocol, redaction, testing, workflow
from squid_dagster.journal import PostgresStorage, open_journal, rebuild_views, verify
from squid_dagster.journal.transfer.transfer import export_journal, import_journal
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from tests.api.calls.agents import other_calls
from tests.api.calls.journal import dispatch_calls, query_calls, storage_calls
from tests.api.calls.signals import signal_calls
from tests.api.calls.table import table
from tests.api.fixture import ApiFixture
from tests.api.wrong_values import Call, Make, complaints

MODULES = (squid_dagster, journal, workflow, backlog, agents, inspection, testing)

# What is returned, not called: results, rows, enumerations, and contracts whose adapters are tried.
_VALUES = """
    AttentionItem Delivery HostQueue Intent Lease LeaseBackend LeaseReport NextAttempt Receipt RecoveryReport Signal
    WorkerReport
    Scenario SimulationReport Action AnomalyView Answer Append AttemptResult AttemptView Boundary Card CardRebuild
    Checkpoint ChildView Claim ClaimRef ClaimResult CommandView Completed Condition DeadlineView Definition
    Discrepancy Evidence Explanation Failed Finding GraphEdge GraphNode HeartbeatResult ManualView NetworkBounds
    Plan PlanRequest Problem QueueRow QueueState RebuildReport Route RunGraph RunPage RunFilters RunRow RunSnapshot
    RunSummary RunnableView Settlement Stats StepContext StepDefinition TimelineEvent Violation WorkerRow Clock
    DispatchStore JournalQueries Listener Notifier SquidFactory WorkerLiveness Storage""".split()  # noqa: SIM905
_ELSEWHERE = {
    "InjectedStorage": "hands everything on to the storage that it wraps",
    "VirtualSquid": "a Squid",
    "Squid.connect": "open_journal and Squid",
    "assert_golden": "golden, and a file",
    "exit_process": "ends the process",
    "bind": "what the planner calls, with a definition's own steps",
    "bind_compensation": "as bind",
    "call_arguments": "as bind",
    "compensation_arguments": "as bind",
    "Cancellation": "takes nothing",
    "Cron.fields": "takes nothing",
    "Cron.zone": "takes nothing",
    "Deadline.problems": "takes nothing",
    "PostgresNotifier.covers": "takes anything",
    "Retry.problems": "takes nothing",
}
_OWN = {  # of PostgresStorage: for the library itself, and for statements that their caller answers for
    "change", "check", "close", "connection", "estimate_db_now", "join_transaction", "observe_db_time",
    "observe_earlier_db_time",
    "publish_cut", "rows", "sql", "transaction", "upgrade", "version",
}  # fmt: skip


def public() -> Iterator[str]:
    """Yield the name of every public callable: functions, constructors and methods."""
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if str(getattr(value, "__module__", "")).startswith("squid_dagster.plugin"):
                continue  # tests/plugin/test_wrong_arguments.py tries these
            if inspect.isclass(value) and not issubclass(value, BaseException):
                methods = (method for method, member in inspect.getmembers(value) if _is_public(method, member))
                yield from (name, *(f"{name}.{method}" for method in methods))
            elif inspect.isfunction(value):
                yield name


def _is_public(name: str, value: object) -> bool:
    plain = inspect.isfunction(value) or inspect.ismethod(value)
    return plain and not name.startswith("_") and str(getattr(value, "__module__", "")).startswith("squid_dagster")


def _is_exempt(name: str) -> bool:
    owner, _, method = name.partition(".")
    enumeration = any(hasattr(getattr(module, owner, None), "__members__") for module in MODULES)
    return (
        name in _ELSEWHERE
        or owner in _ELSEWHERE
        or (owner in _VALUES and name not in table())
        or enumeration
        or (owner == "PostgresStorage" and method in _OWN)
    )


def test_every_public_callable_is_tried() -> None:
    known = {*table(), *postgres_table(), *TAKING_STORAGE}
    functions = {name for name in protocol.__all__ if inspect.isfunction(getattr(protocol, name))}
    assert functions <= known  # its classes are models, which pydantic checks, and folds of stored entries
    assert sorted({name for name in public() if name not in known and not _is_exempt(name)}) == []


@pytest.fixture(autouse=True)
def _same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_rules", redaction.redaction_rules())


@pytest.mark.parametrize("name", table())
def test_a_wrong_argument_is_refused_and_nothing_is_written(name: str) -> None:
    assert list(complaints(name, table()[name], ApiFixture, ApiFixture.facts)) == []


@pytest.mark.parametrize("name", signal_calls())
def test_a_wrong_value_in_a_signal_is_refused_and_nothing_is_written(name: str) -> None:
    assert list(complaints(name, signal_calls()[name], ApiFixture, ApiFixture.facts)) == []


def test_every_command_that_can_be_asked_for_as_data_is_tried() -> None:
    tried = {name.partition(":")[0] for name in signal_calls()}
    assert tried == {*SignalType} - {SignalType.START_CHILD_RUN}


def postgres_table() -> dict[str, Make]:
    """Return the calls of the adapters on Postgres."""
    others = {
        name.replace("Memory", "Postgres").replace("Local", "Postgres"): make
        for name, make in other_calls().items()
        if name.startswith(("MemoryLiveness.", "LocalNotifier."))
    }
    made: dict[str, Make] = {
        "PostgresDispatchStore": lambda w: Call(journal.PostgresDispatchStore, {"storage": w.storage}),
        "PostgresQueries": lambda w: Call(journal.PostgresQueries, {"storage": w.storage}),
        "PostgresLiveness": lambda w: Call(journal.PostgresLiveness, {"storage": w.storage}),
        "PostgresNotifier": lambda w: Call(journal.PostgresNotifier, {"storage": w.storage}, close=True),
    }
    return {
        **storage_calls("PostgresStorage"),
        **dispatch_calls("PostgresDispatchStore"),
        **query_calls("PostgresQueries"),
        **others,
        **made,
    }


TAKING_STORAGE = {
    "PostgresStorage": "below", "PostgresDispatchStore.settle_within": "needs a transaction of the storage's own",
    "open_journal": "below", "rebuild_views": "below", "verify": "below",
}  # fmt: skip


def test_a_wrong_argument_is_refused_by_postgres_as_well(postgres: PostgresStorage) -> None:
    actual = [
        complaint
        for name, make in postgres_table().items()
        for complaint in complaints(name, make, lambda: ApiFixture(postgres), ApiFixture.facts)
    ]
    assert actual == []


def test_a_wrong_place_is_refused(postgres: PostgresStorage, postgres_url: str) -> None:
    calls: dict[str, Make] = {
        "open_journal": lambda w: Call(
            open_journal,
            {"url": postgres_url, "schema": postgres.schema, "environ": {"SQUID_DATABASE_URL": postgres_url}},
            {"environ": "a mapping that is asked for what it has", "wait": "waits"},
            close=True,
        ),
        "PostgresStorage": lambda w: Call(
            PostgresStorage,
            {"engine": postgres_url, "schema": postgres.schema},
            {"engine": "SQLAlchemy's, or a URL"},
            close=True,
        ),
        "verify": lambda w: Call(verify, {"storage": postgres}),
        "rebuild_views": lambda w: Call(rebuild_views, {"storage": postgres}, {"fill": "a part of ours"}),
    }
    actual = [text for name, make in calls.items() for text in complaints(name, make, lambda: None, lambda _: 0)]
    assert actual == []


def test_a_wrong_stream_is_refused(postgres: PostgresStorage, postgres_url: str, schema_names: Iterator[str]) -> None:
    lines: list[bytes] = []
    ApiFixture(postgres)
    export_journal(postgres, lines.append)
    opened: list[PostgresStorage] = []

    def empty() -> PostgresStorage:
        opened.append(PostgresStorage(postgres_url, next(schema_names)))
        opened[-1].upgrade()
        return opened[-1]

    calls: dict[str, Make] = {
        "export_journal": lambda storage: Call(
            export_journal,
            {"storage": postgres, "write": lambda _: None},
            called_back=frozenset({"write", "progress", "begin"}),
        ),
        "import_journal": lambda storage: Call(
            import_journal,
            {"storage": storage, "lines": lines},
            called_back=frozenset({"progress", "begin", "also"}),
        ),
    }
    actual = [text for name, make in calls.items() for text in complaints(name, make, empty, PostgresStorage.cut)]
    for storage in opened:
        storage.close()
    assert actual == []


def test_a_check_is_made_of_the_annotation_each_time_and_names_what_it_takes() -> None:
    @checked
    def call(number: int, *, names: list[str] | None = None, **options: Any) -> int:
        return number

    assert call(5, names=["a"], whatever=object()) == 5
    with pytest.raises(InvalidArgument, match=r"^number must be a whole number, not True \(bool\)$"):
        call(True)
    with pytest.raises(
        InvalidArgument, match=r"^names must be a list whose items are a text or None, not \[5\] \(list\)$"
    ):
        call(5, names=[5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        call()  # type: ignore[call-arg]
