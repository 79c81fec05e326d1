"""Refreshing the warehouse: the stage up to a cut of the journal, then the tables that are cut from it.

Whatever goes wrong on the way, each table is what it was or what it is to be, and can be read all the time.
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
from squid_dagster.spark.tables.lock import Check, alone
from squid_dagster.spark.tables.manifest import ALL, UNKNOWN, Manifest, empty_manifest, is_day
from squid_dagster.spark.tables.stage import Journal, stage_days, stage_everything, stage_touched
from squid_dagster.spark.tables.table_refresh import (
    after_cut,
    after_tally,
    columns_of,
    cut_tables,
    fitting,
    stale_parts,
    telling_parts,
)
from squid_dagster.spark.tables.warehouse import QUEUE_HEALTH, STAGE, TABLES, Warehouse, settings

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TableRefreshed:
    """What a refresh did to one table."""

    table: str
    manifest: Manifest  # as it is now
    covered_before: int
    written: tuple[str, ...]  # the parts that were written anew: days, and those that are none
    full: bool  # everything was made anew

    @property
    def days(self) -> tuple[str, ...]:
        """The days that were written anew."""
        return tuple(name for name in self.written if is_day(name))


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh did."""

    cut: int
    covered_before: int
    full: bool
    rows: dict[str, int]  # of each table, as it is now
    days: tuple[str, ...]  # that were written anew in the stage
    tables: dict[str, TableRefreshed] = field(repr=False)


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
) -> Refreshed:
    """Bring the stage and all tables up to a cut; `full`, from the whole journal instead of what was touched since.

    Both ways give the same tables. `location` is what `credentials.handed_over` gives, `upto` a cut of the storage
    (else a new one), `wait` the time to wait for another refresh. The session must know the journal's data source.

    Raises:
        InvalidArgument: `upto` is no cut of this journal, or lies before what the tables cover.
        WarehouseUnavailable, WarehouseTooNew, ForeignWarehouse: the directory cannot be used; nothing was changed.
        WarehouseBusy: somebody else refreshes it.
        StorageUnavailable, SchemaOutdated, SchemaTooNew, ForeignSchema: the journal cannot be read.
        RefreshFailed: Spark failed on the way; each table is as it was, or as it is to be.
    """
    with Refresher(cast("SparkSession", spark), storage, location, warehouse, progress).begun(wait) as work:
        stage = work.stage(full=full, upto=upto)
        done = work.tables(TABLES, full=full)
    return Refreshed(
        cut=stage.manifest.covered,
        covered_before=stage.covered_before,
        full=stage.full,
        rows={name: each.manifest.rows for name, each in done.items()},
        days=stage.days,
        tables={STAGE: stage, **done},
    )


@dataclass(frozen=True, slots=True)
class Refresher:
    """The steps of a refresh, for those who take them one by one, as the assets of a Dagster location do."""

    spark: SparkSession
    storage: PostgresStorage
    location: Mapping[str, str]
    warehouse: Warehouse
    progress: Progress | None = None

    @contextmanager
    def begun(self, wait: timedelta = timedelta(0)) -> Iterator["Work"]:
        """Check everything that can be checked, then hold the warehouse's lock. Raises as `refresh`."""
        self.storage.check()
        self.warehouse.check()
        with alone(self.storage, self.warehouse, wait) as check, settings(self.spark):
            yield Work(Journal(self.spark, self.storage, self.location), self.warehouse, check, self.progress)


@dataclass(frozen=True, slots=True)
class Work:
    """A refresh under way: nobody else writes to the warehouse meanwhile."""

    journal: Journal
    warehouse: Warehouse
    check: Check
    progress: Progress | None

    def stage(self, *, full: bool = False, upto: int | None = None, days: Sequence[date] = ()) -> TableRefreshed:
        """Bring the folded runs up to a cut; or, with `days`, fold those of these days anew, and leave the cut.

        Raises:
            InvalidArgument: `upto` is no cut of this journal, or lies before what is covered.
            ForeignWarehouse: they are those of another journal.
            RefreshFailed: Spark failed.
        """
        before = self._manifest(STAGE, replace=full and not days)
        if not full:
            self._require_same_journal(before)
        self.warehouse.tidy(before)
        if days and before.covered:
            self._tell(f"folding the runs of {len(days)} days")
            with _explained(STAGE):
                after = stage_days(self.journal, self.warehouse, before, days, self._generation(before.covered))
            return self._published(before, after, full=False)
        everything = full or not before.covered
        cut = self._cut(before, upto, everything)
        if cut == before.covered and not everything:
            return TableRefreshed(STAGE, before, before.covered, (), full=False)
        self._tell(f"folding {'everything' if everything else 'runs touched'} between {before.covered} and {cut}")
        stage = stage_everything if everything else stage_touched
        with _explained(STAGE):
            after = stage(self.journal, self.warehouse, before, cut, self._generation(cut))
        return self._published(before, after, full=everything)

    def table(self, table: str, *, full: bool = False, days: Sequence[date] = ()) -> TableRefreshed:
        """Bring one table to where the stage is, as `tables` does."""
        return self.tables([table], full=full, days=days)[table]

    def tables(
        self, tables: Sequence[str], *, full: bool = False, days: Sequence[date] = ()
    ) -> dict[str, TableRefreshed]:
        """Bring tables to where the stage is: the parts that differ; `full`, all of them; `days`, these and no others.

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
            self._tell(f"writing {', '.join(behind)}")
        with _explained(*behind):
            made = cut_tables(self.journal.spark, self.warehouse, stage, behind, generation)
        done = {}
        for table, manifest in before.items():
            if table not in behind:
                done[table] = TableRefreshed(table, manifest, manifest.covered, (), full=False)
            elif table == QUEUE_HEALTH:
                after = after_tally(self.warehouse, stage, manifest, made, generation)
                done[table] = self._published(manifest, after, full=full)
            else:
                after = after_cut(stage, manifest, behind[table], made, generation)
                done[table] = self._published(manifest, after, full=full and not days)
        return done

    def _manifest(self, table: str, *, replace: bool) -> Manifest:
        """Give the manifest to go on from; one that cannot be read may be replaced, a newer one never."""
        try:
            return fitting(self.warehouse.manifest(table), table)
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
            # A cut that is taken later may be lower, and of the same journal no table is to go back.
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

    def _published(self, before: Manifest, after: Manifest, *, full: bool) -> TableRefreshed:
        self.check()
        self.warehouse.publish(after)
        written = tuple(
            name for name, part in after.parts.items() if _held(before, name) != (part.source, part.directory)
        )
        return TableRefreshed(after.table, after, before.covered, written, full)

    def _tell(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what)


def _held(manifest: Manifest, name: str) -> tuple[str, str | None] | None:
    """Give what tells one writing of a part from another; its marks may change without any."""
    part = manifest.parts.get(name)
    return None if part is None else (part.source, part.directory)


def _wanted(stage: Manifest, table: Manifest, full: bool, days: Sequence[date]) -> set[str] | None:
    """Tell which parts of the stage a table is to be cut from; None if it is up to date. Pure."""
    if table.table == QUEUE_HEALTH:
        current = ALL in table.parts and table.parts[ALL].source == stage.generation
        return None if current and not full else telling_parts(stage)
    parts = stale_parts(stage, table)
    if days:
        # A run that has just got its start is in one of these days now, and not there any more.
        parts = {day.isoformat() for day in days} & stage.parts.keys() | parts & {UNKNOWN}
    elif full:
        parts = set(stage.parts)
    gone = table.parts.keys() - stage.parts.keys()
    current = bool(table.generation) and table.covered == stage.covered
    return None if current and not parts and not gone else parts


@contextmanager
def _explained(*tables: str) -> Iterator[None]:
    """Say what Spark failed of in one line."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        named = ", ".join(repr(table) for table in tables)
        raise RefreshFailed(
            f"Spark could not write table {named} ({reason(error)}): what was there before is still there, "
            "refresh again when this is put right"
        ) from error
