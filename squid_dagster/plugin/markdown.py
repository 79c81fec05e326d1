"""Markdown as Dagster's UI renders it: GitHub's tables, lists and code, images by `data:` address, and no HTML.

From the bundle of Dagster 1.13: `remark-gfm`, then `rehype-sanitize` with `data` allowed for images. Inline HTML and
SVG are shown as text, Mermaid as code. All values are escaped: they make no link, no image and no new line.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any

from squid_dagster.inspection.display import brief

_SIGNS = re.compile(r"([\\`*_{}\[\]()<>#|~&!@:$])")
_LONGEST_CODE = 4000


def text(value: object, limit: int = 300) -> str:
    """Quote a value as one line of plain text: no character is markup, and no address becomes a link."""
    line = _SIGNS.sub(r"\\\1", brief("" if value is None else str(value), limit))
    return re.sub(r"(?i)(www)\.", r"\1\\.", line)


def code(value: object) -> str:
    """Quote a value as inline code, in as many backticks as it needs."""
    line = brief(str(value), 500) or " "
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    room = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{room}{line}{room}{fence}"


def json_block(value: Any) -> str:
    """Render a JSON value as a block of code of at most 4000 characters."""
    whole = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(whole) > _LONGEST_CODE:
        whole = whole[:_LONGEST_CODE] + "\n… (cut here)"
    longest = max((len(run) for run in re.findall("`+", whole)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{whole}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Render a table. Its cells are plain text."""
    lines = [f"| {' | '.join(text(name) for name in head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(text(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def picture(alt: str, svg: str) -> str:
    """Encode an SVG as an image with a `data:` address: it needs no server and no permission."""
    address = b64encode(svg.encode()).decode("ascii")
    return f"![{text(alt)}](data:image/svg+xml;base64,{address})"
