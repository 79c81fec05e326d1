"""Metadata of a materialized table: its size, the position it covers, what was done, and plots.

Bounded, because Dagster stores it for ever.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from squid_dagster.inspection.display import when
from squid_dagster.plugin.markdown import picture, table
from squid_dagster.plugin.projections.plots import Series, bars, lines, ranks

if TYPE_CHECKING:
    # Types only: a location is loaded without Spark.
    from squid_dagster.spark.tables.figures import AttemptFigures, RunFigures, StepFigures
    from squid_dagster.spark.tables.refresh import TableResult

MAX_PARTS = 31
MAX_ROWS = 20


def table_metadata(done: "TableResult", location: str, seconds: float) -> dict[str, dg.MetadataValue]:
    """Describe what a refresh did to a table, and the table itself. Pure."""
    manifest = done.manifest
    return {
        "dagster/row_count": dg.MetadataValue.int(manifest.rows),
        "dagster/uri": dg.MetadataValue.text(location),
        "dagster/column_schema": dg.MetadataValue.table_schema(_columns(manifest.columns)),
        "squid/covered_position": dg.MetadataValue.int(manifest.covered),
        "squid/covered_before": dg.MetadataValue.int(done.covered_before),
        "squid/as_of": dg.MetadataValue.text(when(manifest.as_of) if manifest.as_of else "no fact yet"),
        "squid/kind": dg.MetadataValue.text(kind_of(done)),
        "squid/days_written": dg.MetadataValue.int(len(done.days)),
        "squid/days_open": dg.MetadataValue.int(len(manifest.open_days)),
        "squid/days_sealed": dg.MetadataValue.int(len(manifest.sealed_days)),
        "squid/seconds": dg.MetadataValue.float(round(seconds, 3)),
        "squid/parts": dg.MetadataValue.md(parts_markdown(done)),
    }


def part_metadata(done: "TableResult", name: str) -> dict[str, dg.MetadataValue]:
    """Describe one day of a table. Pure."""
    part = done.manifest.parts.get(name)
    return {
        "dagster/row_count": dg.MetadataValue.int(part.rows if part else 0),
        "squid/covered_position": dg.MetadataValue.int(part.covered if part else done.manifest.covered),
        "squid/open_runs": dg.MetadataValue.int(part.open_runs if part else 0),
        "squid/state": dg.MetadataValue.text("sealed" if part and part.sealed else "open"),
        "squid/kind": dg.MetadataValue.text(kind_of(done)),
    }


def kind_of(done: "TableResult") -> str:
    """Return how a table was refreshed."""
    if done.full:
        return "full"
    return "incremental" if done.written else "unchanged"


def parts_markdown(done: "TableResult") -> str:
    """Render the latest days, and parts that are no days. Pure."""
    manifest, written = done.manifest, set(done.written)
    latest = sorted(manifest.parts)[-MAX_PARTS:]
    rows = [
        (
            name,
            f"{part.rows:,}",
            part.open_runs or "",
            "sealed" if part.sealed else "",
            part.covered,
            "yes" if name in written else "",
        )
        for name in reversed(latest)
        for part in (manifest.parts[name],)
    ]
    shown = table(("day of start", "rows", "open runs", "sealed", "covered position", "written now"), rows)
    left = len(manifest.parts) - len(latest)
    return shown if not left else f"{shown}\n\n{left} earlier days are left out."


def rows_markdown(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> str:
    """Render rows of a small table. Pure."""
    names = list(columns)
    return table(names, [[row[name] for name in names] for row in rows[:MAX_ROWS]])


def run_plots(figures: Sequence["RunFigures"]) -> dict[str, dg.MetadataValue]:
    """Draw throughput and durations of runs. Pure."""
    labels = _labels([row.start for row in figures])
    throughput = bars(
        f"Runs started {_window(figures)}",
        labels,
        [
            Series("completed", [row.completed for row in figures]),
            Series("ended otherwise", [row.ended - row.completed for row in figures]),
            Series("open", [row.runs - row.ended for row in figures]),
        ],
    )
    latency = lines(
        f"From start to end {_window(figures)}",
        labels,
        [Series("p50", [row.seconds_p50 for row in figures]), Series("p95", [row.seconds_p95 for row in figures])],
        " s",
    )
    return {
        "squid/throughput": _drawn("runs by time of start", throughput),
        "squid/latency": _drawn("duration of runs", latency),
    }


def attempt_plots(figures: Sequence["AttemptFigures"], steps: Sequence["StepFigures"]) -> dict[str, dg.MetadataValue]:
    """Draw how long attempts waited and worked, and which steps were retried. Pure."""
    labels = _labels([row.start for row in figures])
    throughput = bars(
        f"Attempts scheduled {_window(figures)}", labels, [Series("attempts", [row.attempts for row in figures])]
    )
    latency = lines(
        f"Scheduled to claimed, claimed to settled {_window(figures)}",
        labels,
        [
            Series("waiting p50", [row.waiting_p50 for row in figures]),
            Series("waiting p95", [row.waiting_p95 for row in figures]),
            Series("working p50", [row.working_p50 for row in figures]),
            Series("working p95", [row.working_p95 for row in figures]),
        ],
        " s",
    )
    retries = ranks(
        "Retries and takeovers by step",
        [f"{step.workflow}: {step.step}" for step in steps],
        [
            Series("retries", [step.retries for step in steps]),
            Series("taken over after a lost lease", [step.expiries for step in steps]),
        ],
    )
    return {
        "squid/throughput": _drawn("attempts by time of scheduling", throughput),
        "squid/latency": _drawn("waiting and working times", latency),
        "squid/retries_by_step": _drawn("retries by step", retries),
    }


def _drawn(alt: str, svg: str) -> dg.MetadataValue:
    return dg.MetadataValue.md(picture(alt, svg))


def _window(figures: Sequence[Any]) -> str:
    if not figures:
        return ""
    return f"{figures[0].start:%Y-%m-%d} to {figures[-1].start:%Y-%m-%d}"


def _labels(starts: Sequence[Any]) -> list[str]:
    by_day = all(start.hour == 0 for start in starts)
    return [start.strftime("%m-%d" if by_day else "%d. %H:00") for start in starts]


def _columns(schema: str) -> dg.TableSchema:
    fields = json.loads(schema)["fields"]
    return dg.TableSchema(
        [dg.TableColumn(field["name"], _type(field["type"])) for field in fields]  # types as Spark names them
    )


def _type(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
