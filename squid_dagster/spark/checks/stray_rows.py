"""Rows of the live views that belong to no run of the journal, and those that belong to no run at all."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import LiteralString

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.comparison import differences, instant
from squid_dagster.journal.postgres.views.folded_rows import ViewRows
from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.protocol.threads import dispatch_thread
from squid_dagster.spark.checks.run_comparison import RUNS_AT_ONCE, Judge, anomaly_key, is_unreadable
from squid_dagster.spark.checks.tallies import OUTCOMES, Kind, Tally
from squid_dagster.spark.fold.worker_journal import journal_of

# The view's primary key or anomalies_run, journal_entries_run: a look for each run. Each run is found once.
_STRAY_RUNS: tuple[LiteralString, ...] = (
    """SELECT v.run_id FROM {schema}.runs v WHERE v.run_id > %s
        AND (SELECT e.position FROM {schema}.journal_entries e WHERE e.run_id = v.run_id LIMIT 1) IS NULL
        ORDER BY v.run_id LIMIT %s""",
    """SELECT DISTINCT v.run_id FROM {schema}.attempts v WHERE v.run_id > %s
        AND NOT EXISTS (SELECT FROM {schema}.runs r WHERE r.run_id = v.run_id)
        AND (SELECT e.position FROM {schema}.journal_entries e WHERE e.run_id = v.run_id LIMIT 1) IS NULL
        ORDER BY v.run_id LIMIT %s""",
    """SELECT DISTINCT v.run_id FROM {schema}.children v WHERE v.run_id > %s
        AND NOT EXISTS (SELECT FROM {schema}.runs r WHERE r.run_id = v.run_id)
        AND NOT EXISTS (SELECT FROM {schema}.attempts a WHERE a.run_id = v.run_id)
        AND (SELECT e.position FROM {schema}.journal_entries e WHERE e.run_id = v.run_id LIMIT 1) IS NULL
        ORDER BY v.run_id LIMIT %s""",
    """SELECT DISTINCT v.run_id FROM {schema}.anomalies v WHERE v.run_id > %s
        AND NOT EXISTS (SELECT FROM {schema}.runs r WHERE r.run_id = v.run_id)
        AND NOT EXISTS (SELECT FROM {schema}.attempts a WHERE a.run_id = v.run_id)
        AND NOT EXISTS (SELECT FROM {schema}.children c WHERE c.run_id = v.run_id)
        AND (SELECT e.position FROM {schema}.journal_entries e WHERE e.run_id = v.run_id LIMIT 1) IS NULL
        ORDER BY v.run_id LIMIT %s""",
)
STRAYS = len(_STRAY_RUNS) + 1
"""One for each view with rows of runs, and one for what belongs to no run."""


@dataclass(frozen=True, slots=True)
class Strays:
    """Looks for rows that runs do not explain; each task is told a number below `STRAYS`."""

    judge: Judge

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do a task's part. Raises as `PostgresStorage.connection`."""
        tally, anomalies = Tally(), list[Row]()
        with journal_of(self.judge.location, self.judge.schema) as storage:
            for number in (number for batch in batches for number in batch.column("id").to_pylist()):
                if number == len(_STRAY_RUNS):
                    anomalies += self._loose(storage, tally)
                elif self.judge.compared:
                    self._strays(storage, _STRAY_RUNS[number], tally)
        yield pa.RecordBatch.from_pylist([*anomalies, *tally.rows()], schema=to_arrow_schema(OUTCOMES))

    def _strays(self, storage: PostgresStorage, text: LiteralString, tally: Tally) -> None:
        last = ""
        while page := [row[0] for row in storage.rows(text, last, RUNS_AT_ONCE)]:
            last = page[-1]
            found = self.judge.compare(storage, ViewRows(), page)
            threads = {run_id: found.threads(run_id) for run_id in page}
            hurt = self.judge.hurt(storage, [each.own for each in threads.values()])
            for run_id, each in threads.items():
                if run_id in found.differences:  # else it has facts by now
                    unreadable = run_id in found.unreadable
                    self.judge.tell_differences(run_id, found.differences[run_id], each, hurt, unreadable, tally)

    def _loose(self, storage: PostgresStorage, tally: Tally) -> list[Row]:
        schema, damaged, alone = self.judge.schema, self.judge.damaged, not self.judge.compared
        with storage.connection() as connection, instant(connection, schema, facts_only=alone) as look:
            told = look.expected_loose()
            kept = told if alone else look.actual_loose()
        unreadable = {row["thread"] for row in told.anomalies if is_unreadable(row)}
        for one in differences(told, kept):
            thread = dispatch_thread(one.key[0]) if one.table == "queues" else one.key[0]
            kind = Kind.HURT if thread in damaged else Kind.DIFFERS
            tally.add(kind, None, one.detail, excused=kind is Kind.HURT or thread in unreadable, thread=thread)
        live = set() if alone else {anomaly_key(row) for row in kept.anomalies}
        return [
            tally.anomaly(row, excused=row["thread"] in damaged and anomaly_key(row) not in live)
            for row in told.anomalies
        ]
