"""The refresh of the warehouse: the stage up to a cut of the journal, then the tables that are projected from it.

Whatever fails, each table is as it was or completely refreshed, and readable all the time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import cast
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.errors import ForeignWarehouse, RefreshFailed, WarehouseTooNew, WarehouseUnavailable
from squid_dagster.spark.fold.worker_journal import reason
from squid_dagster.spark.session.any_session import AnySession
from squid_dagster.spark.tables.manifest import ALL, UNKNOWN, Manifest, empty_manifest, is_day
from squid_dagster.spark.tables.stage import Journal, stage_changed_runs, stage_days, stage_everything
from squid_dagster.spark.tables.table_refresh import (
    columns_of,
    current_manifest,
    manifest_after_projection,
    manifest_after_tally,
    project_tables,
    queue_parts,
    stale_parts,
)
from squid_dagster.spark.tables.warehouse import (
    QUEUE_HEALTH,
    STAGE,
    TABLES,
    LockCheck,
    Warehouse,
    warehouse_lock,
    write_settings,
)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TableResult:
    """What a refresh did to one table."""

    table: str
    manifest: Manifest  # as it is now
    covered_before: int
    written: tuple[str, ...]  # the parts that were written: days and others
    full: bool  # all parts were written

    @property
    def days(self) -> tuple[str, ...]:
        """The days that were written."""
        return tuple(name for name in self.written if is_day(name))


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What a refresh did to all tables."""

    cut: int
    covered_before: int
    full: bool
    rows: dict[str, int]  # of each table, as it is now
    days: tuple[str, ...]  # that were written in the stage
    tables: dict[str, TableResult] = field(repr=False)


@checked
def refresh(
    spark: AnySession,
    storage: PostgresStorage,
    location: Mapping[str, str],
    warehouse: Warehouse,
    *,
    full: bool = False,
    upto: int | None = None,
    progress: Progress | None = None,
    wait: timedelta = timedelta(0),
) -> RefreshResult:
    """Refresh the stage and all tables up to a cut; with `full`, from the whole journal instead of the changed runs.

    Both give the same tables. `location` is what `handed_over` yields, `upto` a cut of the storage (else a new one),
    `wait` how long to wait for another refresh. The session must have the data source registered.

    Raises:
        InvalidArgument: `upto` is no cut of this journal, or lies before the position of the tables.
        WarehouseUnavailable, WarehouseTooNew, ForeignWarehouse: the directory cannot be used; nothing was changed.
        WarehouseBusy: another process refreshes it.
        StorageUnavailable, SchemaOutdated, SchemaTooNew, ForeignSchema: the journal cannot be read.
        RefreshFailed: Spark failed; each table is as it was, or completely refreshed.
    """
    with WarehouseRefresh(cast("SparkSession", spark), storage, location, warehouse, progress).begun(wait) as work:
        stage = work.stage(full=full, upto=upto)
        done = work.tables(TABLES, full=full)
    return RefreshResult(
        cut=stage.manifest.covered,
        covered_before=stage.covered_before,
        full=stage.full,
        rows={name: table.manifest.rows for name, table in done.items()},
        days=stage.days,
        tables={STAGE: stage, **done},
    )


@dataclass(frozen=True, slots=True)
class WarehouseRefresh:
    """The steps of a refresh, for callers that run them one by one, such as Dagster assets."""

    spark: SparkSession
    storage: PostgresStorage
    location: Mapping[str, str]
    warehouse: Warehouse
    progress: Progress | None = None

    @contextmanager
    def begun(self, wait: timedelta = timedelta(0)) -> Iterator["Work"]:
        """Check storage and warehouse, then hold the warehouse's lock. Raises as `refresh`."""
        self.storage.check()
        self.warehouse.check()
        with warehouse_lock(self.storage, self.warehouse, wait) as check, write_settings(self.spark):
            yield Work(Journal(self.spark, self.storage, self.location), self.warehouse, check, self.progress)


@dataclass(frozen=True, slots=True)
class Work:
    """A refresh that holds the lock: no other process writes to the warehouse meanwhile."""

    journal: Journal
    warehouse: Warehouse
    check: LockCheck
    progress: Progress | None

    def stage(self, *, full: bool = False, upto: int | None = None, days: Sequence[date] = ()) -> TableResult:
        """Refresh the folded runs up to a cut; or, with `days`, fold the runs of these days again up to the old cut.

        Raises:
            InvalidArgument: `upto` is no cut of this journal, or lies before the position of the stage.
            ForeignWarehouse: the stage is that of another journal.
            RefreshFailed: Spark failed.
        """
        before = self._manifest(STAGE, replace=full and not days)
        if not full:
            self._require_same_journal(before)
        self.warehouse.tidy(before)
        if days and before.covered:
            self._report(f"folding the runs of {len(days)} days")
            with _explained(STAGE):
                after = stage_days(self.journal, self.warehouse, before, days, self._generation(before.covered))
            return self._published(before, after, full=False)
        everything = full or not before.covered
        cut = self._cut(before, upto, everything)
        if cut == before.covered and not everything:
            return TableResult(STAGE, before, before.covered, (), full=False)
        self._report(f"folding {'everything' if everything else 'runs touched'} between {before.covered} and {cut}")
        stage = stage_everything if everything else stage_changed_runs
        with _explained(STAGE):
            after = stage(self.journal, self.warehouse, before, cut, self._generation(cut))
        return self._published(before, after, full=everything)

    def table(self, table: str, *, full: bool = False, days: Sequence[date] = ()) -> TableResult:
        """Refresh one table from the stage, as `tables` does."""
        return self.tables([table], full=full, days=days)[table]

    def tables(self, tables: Sequence[str], *, full: bool = False, days: Sequence[date] = ()) -> dict[str, TableResult]:
        """Refresh tables from the stage: the parts that are older; with `full`, all parts; with `days`, these only.

        Raises:
            InvalidArgument: there is no such table.
            WarehouseUnavailable: there is no stage yet.
            RefreshFailed: Spark failed.
        """
        stage = self.warehouse.manifest(STAGE)
        if stage is None:
            raise WarehouseUnavailable(
                f"the warehouse {self.warehouse.path!r} holds no folded runs yet: materialize squid/folded_runs first"
            )
        before = {table: self._manifest(table, replace=full) for table in tables}
        for manifest in before.values():
            self.warehouse.tidy(manifest)
        wanted = {table: _wanted(stage, before[table], full, days) for table in tables}
        behind = {table: parts for table, parts in wanted.items() if parts is not None}
        generation = self._generation(stage.covered)
        if behind:
            self._report(f"writing {', '.join(behind)}")
        with _explained(*behind):
            result = project_tables(self.journal.spark, self.warehouse, stage, behind, generation)
        done = {}
        for table, manifest in before.items():
            if table not in behind:
                done[table] = TableResult(table, manifest, manifest.covered, (), full=False)
            elif table == QUEUE_HEALTH:
                after = manifest_after_tally(self.warehouse, stage, manifest, result, generation)
                done[table] = self._published(manifest, after, full=full)
            else:
                after = manifest_after_projection(stage, manifest, behind[table], result, generation)
                done[table] = self._published(manifest, after, full=full and not days)
        return done

    def _manifest(self, table: str, *, replace: bool) -> Manifest:
        """Return the manifest to start from; an unreadable one may be replaced, one of a newer version never."""
        try:
            return current_manifest(self.warehouse.manifest(table), table)
        except WarehouseTooNew:
            raise
        except WarehouseUnavailable:
            if not replace:
                raise
            return empty_manifest(table, columns_of(table))

    def _require_same_journal(self, stage: Manifest) -> None:
        origin = self.journal.origin()
        if stage.origin is not None and stage.origin != origin:
            raise ForeignWarehouse(
                f"the warehouse {self.warehouse.path!r} holds the tables of another journal than the one in schema "
                f"{self.journal.storage.schema!r}: choose another directory, or refresh with full=True to replace them"
            )

    def _cut(self, before: Manifest, upto: int | None, everything: bool) -> int:
        if upto is None:
            # A later cut may be lower, but the tables of one journal must not go back.
            known = before.covered if before.origin == self.journal.origin() else 0
            return self.journal.storage.cut(known)
        after = 0 if everything else before.covered
        if upto < after:
            raise InvalidArgument(
                f"upto {upto} lies before {after}, which the tables cover: only full=True makes them older"
            )
        if upto > (reached := self.journal.storage.cut(after)):
            raise InvalidArgument(f"upto {upto} is no cut: the journal is settled up to {reached} only")
        return upto

    def _generation(self, cut: int) -> str:
        return f"{cut}-{uuid4().hex[:8]}"

    def _published(self, before: Manifest, after: Manifest, *, full: bool) -> TableResult:
        self.check()
        self.warehouse.publish(after)
        written = tuple(
            name for name, part in after.parts.items() if _version(before, name) != (part.source, part.directory)
        )
        return TableResult(after.table, after, before.covered, written, full)

    def _report(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what)


def _version(manifest: Manifest, name: str) -> tuple[str, str | None] | None:
    """Return the generation and directory of a part; `sealed` may change without a new one."""
    part = manifest.parts.get(name)
    return None if part is None else (part.source, part.directory)


def _wanted(stage: Manifest, table: Manifest, full: bool, days: Sequence[date]) -> set[str] | None:
    """Return the parts of the stage to project a table from; None if it is up to date. Pure."""
    if table.table == QUEUE_HEALTH:
        current = ALL in table.parts and table.parts[ALL].source == stage.generation
        return None if current and not full else queue_parts(stage)
    parts = stale_parts(stage, table)
    if days:
        # A run that got its start is now in one of these days, and no longer in "unknown".
        parts = {day.isoformat() for day in days} & stage.parts.keys() | parts & {UNKNOWN}
    elif full:
        parts = set(stage.parts)
    gone = table.parts.keys() - stage.parts.keys()
    current = bool(table.generation) and table.covered == stage.covered
    return None if current and not parts and not gone else parts


@contextmanager
def _explained(*tables: str) -> Iterator[None]:
    """Return what Spark failed of in one line."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        named = ", ".join(repr(table) for table in tables)
        raise RefreshFailed(
            f"Spark could not write table {named} ({reason(error)}): what was there before is still there, "
            "refresh again when this is put right"
        ) from error
