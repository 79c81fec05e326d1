"""The manifest of a table: its directories, and the position up to which they were folded. Pure.

A table consists of the directories that its manifest names, whatever else is there. Directories are written first,
under new names, and the manifest is replaced last, in one step. So a table changes completely or not at all.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from squid_dagster.protocol.errors import explain
from squid_dagster.spark.errors import WarehouseTooNew, WarehouseUnavailable

LAYOUT = 1  # the version of this format
UNKNOWN, LOOSE, ALL = "unknown", "loose", "all"
"""Parts that are no day: runs without a start, facts that belong to no run, and the one part of an undivided table."""

_NEWER = (
    "the manifest of table {table!r} has layout {found}, and this code knows layouts up to {known}: upgrade "
    "squid-dagster, or choose another directory for the warehouse"
)
_REMEDY = "refresh with full=True to make all tables anew"


class Part(BaseModel):
    """One day of a table, or one of the parts that are no day."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    directory: str | None  # below that of the table; None: no rows
    source: str  # the generation of the folded runs that it holds or was made from
    covered: int  # the position up to which they were folded
    rows: int
    open_runs: int = 0  # of that day
    latest: datetime | None = None  # when an attempt of that day last changed
    sealed: bool = False  # all runs of that day have ended, and the day is over; a late fact reopens it


class Manifest(BaseModel):
    """The manifest of one table."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    layout: int
    table: str
    columns: str  # names and types, as JSON: rows of another schema are never mixed with these
    origin: str | None  # the digest of the journal's first entry, which identifies the journal
    generation: str
    covered: int
    as_of: datetime | None  # the time of the last fact up to there
    parts: dict[str, Part]
    former: tuple[str, ...] = ()  # directories of the previous manifest, kept for its readers

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
        """Days with runs that have not ended."""
        return tuple(name for name in sorted(self.parts) if is_day(name) and self.parts[name].open_runs)

    @property
    def sealed_days(self) -> tuple[str, ...]:
        """Days whose runs have all ended."""
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
        """Return the next manifest: some parts changed, some gone, and `sealed` computed again for all."""
        dropped = set(gone)
        parts = {**{name: part for name, part in self.parts.items() if name not in dropped}, **changed}
        sealed = {name: _with_seal(name, parts[name], as_of) for name in sorted(parts)}
        named = {part.directory for part in sealed.values()}
        return self.model_copy(
            update={
                "layout": LAYOUT,
                "generation": generation,
                "covered": covered,
                "as_of": as_of,
                "origin": origin,
                "parts": sealed,
                "former": tuple(sorted(self.directories - named)),
            }
        )


def empty_manifest(table: str, columns: str) -> Manifest:
    """Return the manifest of a table that does not exist yet."""
    return Manifest(
        layout=LAYOUT, table=table, columns=columns, origin=None, generation="", covered=0, as_of=None, parts={}
    )


def dump_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as the content of its file."""
    return manifest.model_dump_json(indent=1).encode()


def load_manifest(table: str, data: bytes) -> Manifest:
    """Parse a manifest.

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
    """Return whether a part is a day."""
    return name not in (UNKNOWN, LOOSE, ALL)


class _Layout(BaseModel):
    layout: int


def _with_seal(name: str, part: Part, as_of: datetime | None) -> Part:
    over = is_day(name) and as_of is not None and name < as_of.date().isoformat()
    sealed = over and not part.open_runs
    return part if part.sealed == sealed else part.model_copy(update={"sealed": sealed})


def part_of(run_id: str | None, day: date | None) -> str:
    """Return the part that a run belongs to, by its day; without a run id, that of the facts of no run."""
    if run_id is None:
        return LOOSE
    return UNKNOWN if day is None else day.isoformat()


def day_name(day: date | str) -> str:
    """Return the name of a day's part."""
    return day if isinstance(day, str) else day.isoformat()
