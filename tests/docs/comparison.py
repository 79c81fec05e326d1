"""Whether a command printed what the document shows: equal but for what differs each time.

Times, ids, spans, process ids and widths of columns do not count. A line `...` stands for any number of lines.
"""

import re
from collections.abc import Sequence

_MASKS = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "<time>"),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
        (r"\b[\w.-]+-\d+-[0-9a-f]{8}\b", "<worker>"),
        (r"(?<![\w/])(~|/)[\w./~+-]+", "<path>"),
        (r"\b\d+:\d\d:\d\d(\.\d+)?", "<span>"),
        (r"\b\d+(\.\d+)? ?(ms|s|min|h|d|seconds?|minutes?|hours?|days?)\b", "<span>"),
        (r"\b(pid|process|port|version|fingerprint|position) [0-9a-f]+\b", r"\1 <n>"),
        (r"\b\d+ commits?\b", "<n> commits"),
        (r"(<span>)( <span>)+", "<span>"),
        (r"─+", "─"),
        (r"\bschema \w+", "schema <name>"),
        (r"\((SQUID_DATA_DIR|default)\)", "(<where>)"),
        (r"\s+", " "),
    )
)


def masked(line: str) -> str:
    """Strip from a line what differs each time."""
    for pattern, by in _MASKS:
        line = pattern.sub(by, line)
    return line.strip()


def fits(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Return whether the printed lines are the shown ones; empty lines do not count."""
    wanted = [masked(line) for line in shown if line.strip()]
    given = [masked(line) for line in printed if line.strip()]
    pattern = "".join("(?:.*\n)*?" if line == "..." else f"{_line(line)}\n" for line in wanted)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in given)) is not None


def _line(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("..."))
