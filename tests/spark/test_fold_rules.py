"""The folds in Spark are held to the table of rules, as every host of the fold is.

Each rule gets a run of its own, so that one query folds nearly all of them; those about queues, which belong to no run,
have one each.
"""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from squid_dagster.protocol.codec import encode
from squid_dagster.spark.fold.folds import COLUMNS
from tests.facts import RUN, entries
from tests.rules.rule import Rule
from tests.rules.table import RULES
from tests.spark.view_rows import fold_runs_with_views

Views = dict[str, list[dict[str, Any]]]

_TYPES = [
    pa.string(),
    pa.int64(),
    pa.int64(),
    pa.string(),
    pa.string(),
    pa.timestamp("us", "UTC"),
    pa.string(),
    pa.bool_(),
]
_SCHEMA = pa.schema(list(zip(COLUMNS, _TYPES, strict=True)))
_ABOUT_QUEUES = [rule for rule in RULES if any("run_id" not in type(fact).model_fields for fact in rule.facts)]


def stored(rule: Rule, run: str) -> list[dict[str, Any]]:
    """Return the rule's facts as the journal stores them, for another run."""
    rows = []
    for entry in entries(rule.facts):
        fact = encode(entry.fact)  # type: ignore[arg-type]  # rules hold no damaged facts
        values = (
            entry.thread.replace(RUN, run),
            entry.seq,
            entry.position,
            fact.type,
            run if fact.run_id is not None else None,
            fact.occurred_at,
            fact.data.replace(RUN, run),
            True,
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def fold(spark: SparkSession, rules: Sequence[Rule]) -> list[Views]:
    """Fold all rules in one query; give the rows of the views for each of them, told of the first run again."""
    runs = [f"case-{number}x" for number in range(len(rules))]
    rows = [row for rule, run in zip(rules, runs, strict=True) for row in stored(rule, run)]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=_SCHEMA))
    folded = fold_runs_with_views(frame, 2).select("run_id", "views.*").collect()
    by_run: dict[str, Views] = {run: {name: [] for name in ("runs", "attempts", "anomalies", "queues")} for run in runs}
    for row in folded:
        run = row.run_id or runs[0]  # what belongs to no run is of the only rule
        for name, rows_ in by_run[run].items():
            rows_ += json.loads(row[name].replace(run, RUN))
    return [by_run[run] for run in runs]


@pytest.fixture(scope="module")
def folded(spark: SparkSession) -> dict[str, Views]:
    """All rules about runs, by name."""
    rules = [rule for rule in RULES if rule not in _ABOUT_QUEUES]
    return dict(zip([rule.name for rule in rules], fold(spark, rules), strict=True))


def check(rule: Rule, views: Views) -> None:
    """Assert that the rows are those of the rule."""
    rule.assert_holds(views["attempts"], views["runs"], views["anomalies"], views["queues"])


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in _ABOUT_QUEUES], ids=lambda rule: rule.name)
def test_the_fold_follows(folded: dict[str, Views], rule: Rule) -> None:
    check(rule, folded[rule.name])


@pytest.mark.parametrize("rule", _ABOUT_QUEUES, ids=lambda rule: rule.name)
def test_the_fold_follows_for_queues(spark: SparkSession, rule: Rule) -> None:
    check(rule, fold(spark, [rule])[0])
