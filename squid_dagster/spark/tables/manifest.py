"""The manifest of a table: which directories make it up, and up to which position. Pure: values in, values out.

A table is what its manifest says, and nothing else that lies around: directories are written first, under names that
are new, and the manifest is replaced last, in one step. So a table changes as a whole or not at all.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from squid_dagster.protocol.errors import explain
from squid_dagster.spark.errors import WarehouseTooNew, WarehouseUnavailable

LAYOUT = 1  # the version of all that is said here
UNKNOWN, LOOSE, ALL = "unknown", "loose", "all"
"""Parts that are no day: runs without a start, facts that belong to no run, and tables that are not divided."""

_NEWER = (
    "the manifest of table {table!r} has layout {found}, and this code knows layouts up to {known}: upgrade "
    "squid-dagster, or choose another directory for the warehouse"
)
_REMEDY = "refresh with full=True to make all tables anew"


class Part(BaseModel):
    """One day of a table, or one of the parts that are no day."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    directory: str | None  # below the table's own; None: no rows
    source: str  # the generation of the folded runs that it holds, or was cut from
    covered: int  # the position up to which they were folded
    rows: int
    open_runs: int = 0  # of that day
    latest: datetime | None = None  # when anything last happened to an attempt of that day
    sealed: bool = False  # all runs of that day have ended, and the day is over; a late fact opens it again


class Manifest(BaseModel):
    """What a table is made of."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    layout: int
    table: str
    columns: str  # a fingerprint of names and types: rows of another shape are never mixed with these
    origin: str | None  # the journal's first entry, by its digest: what tells one journal from another
    generation: str
    covered: int
    as_of: datetime | None  # the time of the last fact up to there
    parts: dict[str, Part]
    former: tuple[str, ...] = ()  # directories of the manifest before, still there for those who read it

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return sum(part.rows for part in self.parts.values())

    @property
    def directories(self) -> frozenset[str]:
        """The directories that hold its rows."""
        return frozenset(part.directory for part in self.parts.values() if part.directory is not None)

    @property
    def open_days(self) -> tuple[str, ...]:
        """Days that have runs which have not ended."""
        return tuple(name for name in sorted(self.parts) if is_day(name) and self.parts[name].open_runs)

    @property
    def sealed_days(self) -> tuple[str, ...]:
        """Days to which nothing more is expected."""
        return tuple(name for name in sorted(self.parts) if self.parts[name].sealed)

    def replaced(
        self,
        *,
        generation: str,
        covered: int,
        as_of: datetime | None,
        origin: str | None,
        changed: Mapping[str, Part],
        gone: Iterable[str] = (),
    ) -> "Manifest":
        """Give the manifest that follows this one: some parts are others, some are no more, all marks are new."""
        dropped = set(gone)
        parts = {**{name: part for name, part in self.parts.items() if name not in dropped}, **changed}
        marked = {name: _marked(name, parts[name], as_of) for name in sorted(parts)}
        named = {part.directory for part in marked.values()}
        return self.model_copy(
            update={
                "layout": LAYOUT,
                "generation": generation,
                "covered": covered,
                "as_of": as_of,
                "origin": origin,
                "parts": marked,
                "former": tuple(sorted(self.directories - named)),
            }
        )


def empty_manifest(table: str, columns: str) -> Manifest:
    """Give the manifest of a table that there is not yet."""
    return Manifest(
        layout=LAYOUT, table=table, columns=columns, origin=None, generation="", covered=0, as_of=None, parts={}
    )


def dump_manifest(manifest: Manifest) -> bytes:
    """Give a manifest as a file holds it."""
    return manifest.model_dump_json(indent=1).encode()


def load_manifest(table: str, data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        WarehouseTooNew: a newer version has written it.
        WarehouseUnavailable: it cannot be read.
    """
    try:
        layout = _Layout.model_validate_json(data).layout
        if layout > LAYOUT:
            raise WarehouseTooNew(_NEWER.format(table=table, found=layout, known=LAYOUT))
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        why = explain(error)
        raise WarehouseUnavailable(f"the manifest of table {table!r} cannot be read ({why}): {_REMEDY}") from None


def is_day(name: str) -> bool:
    """Tell whether a part is a day."""
    return name not in (UNKNOWN, LOOSE, ALL)


class _Layout(BaseModel):
    layout: int


def _marked(name: str, part: Part, as_of: datetime | None) -> Part:
    over = is_day(name) and as_of is not None and name < as_of.date().isoformat()
    sealed = over and not part.open_runs
    return part if part.sealed == sealed else part.model_copy(update={"sealed": sealed})


def part_of(run_id: str | None, day: date | None) -> str:
    """Give the part that a run belongs to, by its day; or, without a run, the facts of none."""
    if run_id is None:
        return LOOSE
    return UNKNOWN if day is None else day.isoformat()


def day_name(day: date | str) -> str:
    """Give the name of a day's part."""
    return day if isinstance(day, str) else day.isoformat()
