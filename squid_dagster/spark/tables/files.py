"""The warehouse's files beside Spark's own: manifests, clean-up, and what the footers of Parquet files tell.

All of it by Arrow's file systems, so that a directory here and a bucket elsewhere are the same, and nothing needs
Spark's JVM, which Spark Connect does not give.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.errors import WarehouseUnavailable

T = TypeVar("T")

ENDED, LATEST = "run.ended_at", "latest"
_PART, _PARQUET = "part=", ".parquet"
_GLOB = re.compile(r"[*?\[\]{}\\\0]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE = 8
_OBJECT_STORES = tuple(
    getattr(fs, name) for name in ("S3FileSystem", "GcsFileSystem", "AzureFileSystem") if hasattr(fs, name)
)
_SPARK_SCHEMES = {"s3": "s3a"}  # what Arrow and Hadoop call the same store


class Written(NamedTuple):
    """What the files of one part hold."""

    rows: int
    open_runs: int
    latest: datetime | None


class ParquetFile(NamedTuple):
    """One file, by its name below the warehouse and by that in its directory."""

    name: str
    base_name: str
    size: int


class Files:
    """One directory, on any file system that Arrow knows."""

    def __init__(self, path: str) -> None:
        """Bind to a directory, by its path or URI; nothing is touched yet.

        Raises:
            InvalidArgument: no file system is known for it, or it holds signs that Spark takes for patterns.
        """
        scheme, sign, rest = path.partition("://")
        place = rest.partition("?")[0] if sign else path  # behind it are settings of Arrow's, such as a region
        if not place or _GLOB.search(place):
            raise InvalidArgument(f"the warehouse {path!r} is no usable directory: name one without * ? [ ] {{ }}")
        uri = path if sign else str(Path(path).expanduser().absolute())
        try:
            self._fs, self.root = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InvalidArgument(f"the warehouse {path!r} is on no file system that is known: {error}") from None
        self.root = self.root.rstrip("/")
        local = isinstance(self._fs, fs.LocalFileSystem)
        there = place.rstrip("/")
        self.shown = self.root if local else f"{scheme}://{there}"
        self.identity = str(Path(self.root).resolve()) if local else self.shown  # one for all who mean it
        self.for_spark = f"file://{self.root}" if local else f"{_SPARK_SCHEMES.get(scheme, scheme)}://{there}"

    def probe(self, name: str) -> None:
        """Write a file and remove it again.

        Raises:
            WarehouseUnavailable: that cannot be done.
        """
        self.replace(name, b"probe")
        self._do("write", lambda: self._fs.delete_file(f"{self.root}/{name}"))

    def read(self, name: str) -> bytes | None:
        """Give what a file holds, None if there is none. Raises `WarehouseUnavailable`."""

        def read() -> bytes | None:
            try:
                with self._fs.open_input_stream(f"{self.root}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

        return self._do("read", read)

    def replace(self, name: str, data: bytes) -> None:
        """Put a file in the place of another: whoever reads finds the old one or the new one, whole.

        Raises:
            WarehouseUnavailable: it cannot be written; the old one is still there.
        """
        target = f"{self.root}/{name}"
        # An object store shows a file when it is whole, and knows no renaming.
        new = target if isinstance(self._fs, _OBJECT_STORES) else f"{target}.new"

        def write() -> None:
            self._fs.create_dir(target.rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(new) as stream:
                stream.write(data)
            if new != target:
                self._fs.move(new, target)

        self._do("write", write)

    def below(self, directory: str) -> list[str]:
        """Give the names of the directories right below one. Raises `WarehouseUnavailable`."""
        return [info.base_name for info in self._list(directory) if info.type == fs.FileType.Directory]

    def remove(self, directories: Iterable[str]) -> None:
        """Remove directories with all that is in them; those that are gone are gone. Raises `WarehouseUnavailable`."""

        def remove(directory: str) -> None:
            with suppress(FileNotFoundError):
                self._fs.delete_dir(f"{self.root}/{directory}")

        for each in directories:
            self._do("write", partial(remove, each))

    def parquet_files(self, directory: str) -> list[ParquetFile]:
        """Give the Parquet files in a directory, by name. Raises `WarehouseUnavailable`."""
        found = [info for info in self._list(directory) if info.base_name.endswith(_PARQUET)]
        return sorted(ParquetFile(f"{directory}/{info.base_name}", info.base_name, info.size) for info in found)

    def batches(self, name: str, columns: Iterable[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Read some columns of a Parquet file, so many rows at a time. Raises `OSError`."""
        with self._fs.open_input_file(f"{self.root}/{name}") as file:
            yield from pq.ParquetFile(file).iter_batches(batch_size=rows, columns=sorted(columns))

    @contextmanager
    def writing(self, name: str, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        """Write a Parquet file that shows when it is whole, and takes the place of one of that name.

        So a task that is done twice, or by two at once, leaves one file. Raises `OSError`.
        """
        directory, _, base = f"{self.root}/{name}".rpartition("/")
        target = f"{directory}/{base}"
        # What begins with a dot is read by nobody, and goes with its directory.
        new = target if isinstance(self._fs, _OBJECT_STORES) else f"{directory}/.{base}.{uuid4().hex}"
        self._fs.create_dir(directory, recursive=True)
        with self._fs.open_output_stream(new) as stream, pq.ParquetWriter(stream, schema) as writer:
            yield writer
        if new != target:
            self._fs.move(new, target)

    def write(self, name: str, rows: pa.Table) -> None:
        """Write rows that are at hand as a Parquet file. Raises `WarehouseUnavailable`."""

        def write() -> None:
            with self.writing(name, rows.schema) as writer:
                writer.write_table(rows)

        self._do("write", write)

    def written(self, directory: str) -> dict[str, Written]:
        """Tell by the footers of its files what each part of a directory holds. Raises `WarehouseUnavailable`."""
        names = [name for name in self.below(directory) if name.startswith(_PART)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(lambda name: self._part(f"{directory}/{name}"), names)
            return {name.removeprefix(_PART): each for name, each in zip(names, found, strict=True)}

    def _part(self, directory: str) -> Written:
        told = [self._footer(each.name) for each in self.parquet_files(directory)]
        times = [each.latest for each in told if each.latest is not None]
        return Written(
            sum(each.rows for each in told), sum(each.open_runs for each in told), max(times) if times else None
        )

    def _footer(self, name: str) -> Written:
        def read() -> Written:
            with self._fs.open_input_file(f"{self.root}/{name}") as file:
                return _read_footer(pq.ParquetFile(file).metadata)

        return self._do("read", read)

    def _list(self, directory: str) -> list[Any]:
        selector = fs.FileSelector(f"{self.root}/{directory}".rstrip("/"), allow_not_found=True)
        return self._do("read", lambda: list(self._fs.get_file_info(selector)))

    def _do(self, verb: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except (OSError, pa.ArrowException) as error:
            raise WarehouseUnavailable(
                f"cannot {verb} in the warehouse {self.shown!r} ({error}): check that it is a directory that this user "
                "can write, or choose another one"
            ) from None


def _read_footer(metadata: Any) -> Written:
    """Count rows, runs that have no end, and the latest time, without reading a row."""
    open_runs, latest = 0, None
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            if column.path_in_schema == ENDED:
                open_runs += column.statistics.null_count
            elif column.path_in_schema == LATEST and column.statistics.has_min_max:
                latest = max(latest or 0, column.statistics.max_raw)
    return Written(metadata.num_rows, open_runs, None if latest is None else _EPOCH + timedelta(microseconds=latest))
