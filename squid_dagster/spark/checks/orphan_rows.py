"""Rows of the live views whose run has no facts, and rows without a run id."""

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
from squid_dagster.spark.checks.run_comparison import RUNS_AT_ONCE, RunComparison, anomaly_key, is_unreadable
from squid_dagster.spark.checks.tallies import OUTCOMES, Kind, Tally
from squid_dagster.spark.fold.worker_journal import journal_of

# The view's primary key or anomalies_run, journal_entries_run: one index lookup per run. Each run is found once.
_ORPHAN_RUNS: tuple[LiteralString, ...] = (
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
ORPHAN_TASKS = len(_ORPHAN_RUNS) + 1
"""The number of tasks: one for each view with rows of runs, and one for rows without a run."""


@dataclass(frozen=True, slots=True)
class OrphanRowCheck:
    """The check for rows without facts; each task gets a number below `ORPHAN_TASKS`."""

    comparison: RunComparison

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check the share of one task. Raises as `PostgresStorage.connection`."""
        tally, anomalies = Tally(), list[Row]()
        with journal_of(self.comparison.location, self.comparison.schema) as storage:
            for number in (number for batch in batches for number in batch.column("id").to_pylist()):
                if number == len(_ORPHAN_RUNS):
                    anomalies += self._loose(storage, tally)
                elif self.comparison.compared:
                    self._strays(storage, _ORPHAN_RUNS[number], tally)
        yield pa.RecordBatch.from_pylist([*anomalies, *tally.rows()], schema=to_arrow_schema(OUTCOMES))

    def _strays(self, storage: PostgresStorage, text: LiteralString, tally: Tally) -> None:
        last = ""
        while page := [row[0] for row in storage.rows(text, last, RUNS_AT_ONCE)]:
            last = page[-1]
            compared = self.comparison.compare(storage, ViewRows(), page)
            threads = {run_id: compared.threads(run_id) for run_id in page}
            damaged = self.comparison.damaged_of(storage, [of_run.own for of_run in threads.values()])
            for run_id, of_run in threads.items():
                if run_id in compared.differences:  # else it has facts by now
                    unreadable = run_id in compared.unreadable
                    differences_of_run = compared.differences[run_id]
                    self.comparison.report_differences(run_id, differences_of_run, of_run, damaged, unreadable, tally)

    def _loose(self, storage: PostgresStorage, tally: Tally) -> list[Row]:
        schema, damaged, alone = self.comparison.schema, self.comparison.damaged, not self.comparison.compared
        with storage.connection() as connection, instant(connection, schema, facts_only=alone) as snapshot:
            expected = snapshot.expected_loose()
            actual = expected if alone else snapshot.actual_loose()
        unreadable = {row["thread"] for row in expected.anomalies if is_unreadable(row)}
        for difference in differences(expected, actual):
            key = difference.key[0]
            thread = dispatch_thread(key) if difference.table == "queues" else key
            kind = Kind.AFFECTED if thread in damaged else Kind.DIFFERS
            tally.add(
                kind, None, difference.detail, excused=kind is Kind.AFFECTED or thread in unreadable, thread=thread
            )
        live = set() if alone else {anomaly_key(row) for row in actual.anomalies}
        return [
            tally.anomaly(row, excused=row["thread"] in damaged and anomaly_key(row) not in live)
            for row in expected.anomalies
        ]
