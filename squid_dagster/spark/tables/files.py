"""The warehouse's files: manifests, Parquet files and their footers, and clean-up.

Uses Arrow's file systems, which treat a local directory and a bucket alike and need no access to Spark's JVM, which
Spark Connect does not give.
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
_READERS = 8
_OBJECT_STORES = tuple(
    getattr(fs, name) for name in ("S3FileSystem", "GcsFileSystem", "AzureFileSystem") if hasattr(fs, name)
)
_SPARK_SCHEMES = {"s3": "s3a"}  # Hadoop's name by Arrow's


class PartStatistics(NamedTuple):
    """Statistics of the files of one part, from their footers."""

    rows: int
    open_runs: int
    latest: datetime | None


class ParquetFile(NamedTuple):
    """One file: its path below the warehouse, its name, its size in bytes."""

    name: str
    base_name: str
    size: int


class Files:
    """The files in one directory, on any file system of Arrow."""

    def __init__(self, path: str) -> None:
        """Store a directory, by path or URI; nothing is read or written yet.

        Raises:
            InvalidArgument: it has no known file system, or contains characters that Spark takes for patterns.
        """
        scheme, sign, rest = path.partition("://")
        place = rest.partition("?")[0] if sign else path  # the rest are settings of Arrow, such as a region
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
        self.identity = (
            str(Path(self.root).resolve()) if local else self.shown
        )  # the same for all ways to name the directory
        self.for_spark = f"file://{self.root}" if local else f"{_SPARK_SCHEMES.get(scheme, scheme)}://{there}"

    def probe(self, name: str) -> None:
        """Write a file and delete it again.

        Raises:
            WarehouseUnavailable: that is not possible.
        """
        self.replace(name, b"probe")
        self._do("write", lambda: self._fs.delete_file(f"{self.root}/{name}"))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if there is none. Raises `WarehouseUnavailable`."""

        def read() -> bytes | None:
            try:
                with self._fs.open_input_stream(f"{self.root}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

        return self._do("read", read)

    def replace(self, name: str, data: bytes) -> None:
        """Replace a file atomically: a reader finds the old content or the new content.

        Raises:
            WarehouseUnavailable: it cannot be written; the old file is still there.
        """
        target = f"{self.root}/{name}"
        # An object store shows a file only when it is complete, and has no rename.
        new = target if isinstance(self._fs, _OBJECT_STORES) else f"{target}.new"

        def write() -> None:
            self._fs.create_dir(target.rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(new) as stream:
                stream.write(data)
            if new != target:
                self._fs.move(new, target)

        self._do("write", write)

    def directories(self, directory: str) -> list[str]:
        """Return the names of the directories in a directory. Raises `WarehouseUnavailable`."""
        return [info.base_name for info in self._list(directory) if info.type == fs.FileType.Directory]

    def remove(self, directories: Iterable[str]) -> None:
        """Delete directories with their content; missing ones are no error. Raises `WarehouseUnavailable`."""

        def remove(directory: str) -> None:
            with suppress(FileNotFoundError):
                self._fs.delete_dir(f"{self.root}/{directory}")

        for directory in directories:
            self._do("write", partial(remove, directory))

    def parquet_files(self, directory: str) -> list[ParquetFile]:
        """Return the Parquet files in a directory, sorted by name. Raises `WarehouseUnavailable`."""
        files = [info for info in self._list(directory) if info.base_name.endswith(_PARQUET)]
        return sorted(ParquetFile(f"{directory}/{info.base_name}", info.base_name, info.size) for info in files)

    def batches(self, name: str, columns: Iterable[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield some columns of a Parquet file, `rows` rows at a time. Raises `OSError`."""
        with self._fs.open_input_file(f"{self.root}/{name}") as file:
            yield from pq.ParquetFile(file).iter_batches(batch_size=rows, columns=sorted(columns))

    @contextmanager
    def writing(self, name: str, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        """Write a Parquet file that appears when it is complete, and replaces one of the same name.

        So a task that runs twice, or twice at once, leaves one file. Raises `OSError`.
        """
        directory, _, base = f"{self.root}/{name}".rpartition("/")
        target = f"{directory}/{base}"
        # Readers ignore names that begin with a dot; the file is deleted with its directory.
        new = target if isinstance(self._fs, _OBJECT_STORES) else f"{directory}/.{base}.{uuid4().hex}"
        self._fs.create_dir(directory, recursive=True)
        with self._fs.open_output_stream(new) as stream, pq.ParquetWriter(stream, schema) as writer:
            yield writer
        if new != target:
            self._fs.move(new, target)

    def write(self, name: str, rows: pa.Table) -> None:
        """Write a table as a Parquet file. Raises `WarehouseUnavailable`."""

        def write() -> None:
            with self.writing(name, rows.schema) as writer:
                writer.write_table(rows)

        self._do("write", write)

    def part_statistics(self, directory: str) -> dict[str, PartStatistics]:
        """Return the statistics of each part in a directory. Raises `WarehouseUnavailable`."""
        names = [name for name in self.directories(directory) if name.startswith(_PART)]
        with ThreadPoolExecutor(_READERS) as pool:
            statistics = pool.map(lambda name: self._statistics(f"{directory}/{name}"), names)
            return {name.removeprefix(_PART): part for name, part in zip(names, statistics, strict=True)}

    def _statistics(self, directory: str) -> PartStatistics:
        footers = [self._footer(file.name) for file in self.parquet_files(directory)]
        times = [footer.latest for footer in footers if footer.latest is not None]
        rows, open_runs = sum(footer.rows for footer in footers), sum(footer.open_runs for footer in footers)
        return PartStatistics(rows, open_runs, max(times) if times else None)

    def _footer(self, name: str) -> PartStatistics:
        def read() -> PartStatistics:
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


def _read_footer(metadata: Any) -> PartStatistics:
    """Return the rows, the runs without an end, and the latest time, without reading a row."""
    open_runs, latest = 0, None
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            if column.path_in_schema == ENDED:
                open_runs += column.statistics.null_count
            elif column.path_in_schema == LATEST and column.statistics.has_min_max:
                latest = max(latest or 0, column.statistics.max_raw)
    return PartStatistics(
        metadata.num_rows, open_runs, None if latest is None else _EPOCH + timedelta(microseconds=latest)
    )
