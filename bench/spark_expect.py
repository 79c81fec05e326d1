"""Estimates for larger journals by measured slopes: the table of docs/spark.md. Pure arithmetic, no measurement."""

from dataclasses import dataclass

from squid_dagster.spark.source.ranges import usual_fold_partitions

SIZES = (10_000_000, 1_000_000_000, 100_000_000_000)
CORES = {10_000_000: 2, 1_000_000_000: 32, 100_000_000_000: 256}  # of Spark's executors, for each size
DATABASE_CORES = {10_000_000: 2, 1_000_000_000: 16, 100_000_000_000: 64}  # that send facts at the same time
CORE_HOUR = 0.05  # US dollars: what a core with its memory costs on demand, about


@dataclass(frozen=True, slots=True)
class Slopes:
    """The measured costs of a fact, and the fixed cost."""

    fixed_seconds: float  # a rebuild of nothing
    core_seconds_per_fact: float  # of a rebuild, all processes together, Postgres among them
    facts_per_second: float  # that one connection reads
    journal_bytes_per_fact: float
    table_bytes_per_fact: float


def rebuild_seconds(facts: int, cores: int, database_cores: int, slopes: Slopes) -> float:
    """Estimate a rebuild: the work divided by the cores, but at least as long as the database needs to send."""
    worked = slopes.fixed_seconds + facts * slopes.core_seconds_per_fact / cores
    return max(worked, facts / (slopes.facts_per_second * database_cores))


def markdown(slopes: Slopes) -> str:
    """Return the table, a row for each size."""
    lines = [
        "| facts | journal | tables | tasks | executor cores | core hours | rebuild | at $0.05 a core hour |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for facts in SIZES:
        cores = CORES[facts]
        hours = facts * slopes.core_seconds_per_fact / 3600
        seconds = rebuild_seconds(facts, cores, DATABASE_CORES[facts], slopes)
        shown = [
            f"{facts:,}",
            _bytes(facts * slopes.journal_bytes_per_fact),
            _bytes(facts * slopes.table_bytes_per_fact),
            f"{usual_fold_partitions(facts):,}",
            f"{cores} (database: {DATABASE_CORES[facts]})",
            f"{hours:,.1f}",
            _time(seconds),
            f"${hours * CORE_HOUR:,.2f}",
        ]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def _bytes(size: float) -> str:
    for unit in ("MB", "GB"):
        size /= 1000 if unit == "GB" else 1_000_000
        if size < 1000:
            return f"{size:,.0f} {unit}"
    return f"{size / 1000:,.1f} TB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
