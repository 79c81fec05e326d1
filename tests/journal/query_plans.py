"""What a statement reads, by EXPLAIN ANALYZE."""

from typing import Any, NamedTuple

import psycopg
from psycopg import sql


class Scan(NamedTuple):
    """One node of a plan that reads a table."""

    kind: str
    table: str
    by: str | None
    rows: float
    removed: float


class Plan(NamedTuple):
    """What a statement did."""

    scans: list[Scan]
    rows: float
    blocks: int


def explain(connection: psycopg.Connection[Any], statement: sql.Composed | bytes, values: Any = ()) -> Plan:
    """Run a statement and return what it read."""
    query = statement if isinstance(statement, bytes) else statement.as_bytes(connection)
    answer = connection.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query, values).fetchone()
    assert answer is not None
    top = answer[0][0]["Plan"]
    scans: list[Scan] = []

    def walk(node: dict[str, Any]) -> None:
        if "Relation Name" in node or "Index Name" in node:
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            rows, loops = node["Actual Rows"], node["Actual Loops"]
            kind, table = node["Node Type"], node.get("Relation Name", "")
            scans.append(Scan(kind, table, node.get("Index Name"), rows * loops, removed * loops))
        for below in node.get("Plans", ()):
            walk(below)

    walk(top)
    return Plan(scans, top["Actual Rows"], top.get("Shared Hit Blocks", 0) + top.get("Shared Read Blocks", 0))


def reads_only(plan: Plan, index: str) -> None:
    """Assert that the plan reads the journal by that index, and no row that it does not return."""
    assert {scan.by for scan in plan.scans} - {None} == {index}
    for scan in plan.scans:
        assert scan.kind in ("Index Scan", "Index Only Scan", "Bitmap Index Scan", "Bitmap Heap Scan")
        assert (scan.rows, scan.removed) == (plan.rows, 0)
