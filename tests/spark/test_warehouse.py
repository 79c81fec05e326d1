"""The warehouse without a refresh: manifests, the directory, and what is refused before anything is touched."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.errors import WarehouseBusy, WarehouseTooNew, WarehouseUnavailable
from squid_dagster.spark.tables.files import Files, PartStatistics
from squid_dagster.spark.tables.manifest import LAYOUT, Manifest, Part, dump_manifest, empty_manifest, load_manifest
from squid_dagster.spark.tables.table_refresh import stale_parts
from squid_dagster.spark.tables.warehouse import Warehouse, warehouse_lock
from tests.journal.access import terminate_backends

NOW = datetime(2026, 1, 3, 12, tzinfo=UTC)


def part(generation: str, open_runs: int = 0, rows: int = 1, source: str = "") -> Part:
    """Return one part of a generation."""
    return Part(directory=f"{generation}/p", source=source or generation, covered=5, rows=rows, open_runs=open_runs)


def following(manifest: Manifest, generation: str, *gone: str, as_of: datetime = NOW, **changed: Part) -> Manifest:
    """Return the manifest after a refresh that changed these parts."""
    named = {name.replace("_", "-").removeprefix("d"): part for name, part in changed.items()}
    return manifest.replaced(generation=generation, covered=9, as_of=as_of, origin="o", changed=named, gone=gone)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A directory that is not there yet."""
    return Files(str(tmp_path / "house"))


def test_a_newer_manifest_is_refused_and_a_broken_one_explained() -> None:
    newer = empty_manifest("run_index", "{}").model_copy(update={"layout": LAYOUT + 1})
    with pytest.raises(WarehouseTooNew, match=rf"'run_index' has layout {LAYOUT + 1}.*upgrade"):
        load_manifest("run_index", dump_manifest(newer))
    for broken in (b"", b"{}", b'{"layout": 1}', b"\xff", b'{"layout": "one"}'):
        with pytest.raises(WarehouseUnavailable, match=r"manifest of table 'run_index' cannot be read.*full=True"):
            load_manifest("run_index", broken)


def test_a_manifest_is_read_back_as_it_was() -> None:
    manifest = following(empty_manifest("run_index", "{}"), "g1", d2026_01_01=part("g1", open_runs=2))
    assert load_manifest("run_index", dump_manifest(manifest)) == manifest


def test_days_are_sealed_when_they_are_over_and_all_their_runs_have_ended() -> None:
    manifest = following(
        empty_manifest("run_history", "{}"),
        "g1",
        d2026_01_01=part("g1", open_runs=1),
        d2026_01_02=part("g1"),
        d2026_01_03=part("g1"),
        unknown=part("g1"),
    )
    assert (manifest.open_days, manifest.sealed_days) == (("2026-01-01",), ("2026-01-02",))

    later = following(manifest, "g2", as_of=NOW + timedelta(days=1), d2026_01_01=part("g2"))
    assert (later.open_days, later.sealed_days) == ((), ("2026-01-01", "2026-01-02", "2026-01-03"))

    again = following(later, "g3", as_of=NOW + timedelta(days=1), d2026_01_02=part("g3", open_runs=1))
    assert (again.open_days, again.sealed_days) == (("2026-01-02",), ("2026-01-01", "2026-01-03"))


def test_a_manifest_names_what_the_one_before_it_named_and_it_no_longer_does() -> None:
    first = following(empty_manifest("run_history", "{}"), "g1", d2026_01_01=part("g1"), unknown=part("g0"))
    second = following(first, "g2", "unknown", d2026_01_01=part("g2"))
    third = following(second, "g3", d2026_01_02=part("g3"))
    assert (first.former, second.former, third.former) == ((), ("g0/p", "g1/p"), ())
    assert third.rows == 2


def test_parts_of_another_generation_than_the_stage_s_are_stale() -> None:
    stage = following(
        empty_manifest("folded_runs", "{}"), "s2", d2026_01_01=part("s1"), d2026_01_02=part("s2"), unknown=part("s2")
    )
    table = following(
        empty_manifest("run_history", "{}"),
        "t",
        d2026_01_01=part("t", source="s1"),
        d2026_01_02=part("t", source="s1"),
    )
    assert stale_parts(stage, table) == {"2026-01-02", "unknown"}


def test_a_directory_that_cannot_be_written_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WarehouseUnavailable, match=rf"cannot write in the warehouse '{path}'.*choose another"):
            Warehouse(str(path)).check()
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    Warehouse(str(tmp_path / "new" / "house")).check()
    assert list((tmp_path / "new" / "house").iterdir()) == []


@pytest.mark.parametrize("path", ["", "ftp://host/path", "/a/[b]", "/a/*"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match="the warehouse"):
        Warehouse(path)


def test_one_store_has_the_name_that_each_side_knows() -> None:
    assert Files("relative").for_spark == f"file://{Path('relative').absolute()}"
    bucket = Files("s3://bucket/squid/?region=eu-central-1")
    assert (bucket.root, bucket.for_spark, bucket.shown) == ("bucket/squid", "s3a://bucket/squid", "s3://bucket/squid")


def test_footers_tell_rows_runs_without_end_and_the_latest_time(files: Files) -> None:
    directory = Path(files.root) / "t" / "g" / "part=2026-01-01"
    directory.mkdir(parents=True)
    ended = pa.array([{"ended_at": NOW}, {"ended_at": None}, None], pa.struct({"ended_at": pa.timestamp("us", "UTC")}))
    times = [NOW, None, NOW - timedelta(days=1)]
    for name, latest in (("a", times), ("b", [None] * 3)):
        column = pa.array(latest, pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"run": ended, "latest": column}), directory / f"{name}.parquet")
    (directory / "c.txt").write_text("not ours")
    assert files.part_statistics("t/g") == {"2026-01-01": PartStatistics(6, 4, NOW)}
    assert files.part_statistics("t/none") == {}


def test_what_two_manifests_do_not_name_is_removed(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    for name in ("g0/p", "g1/p", "g1/q", "g2/p", "crashed/p"):
        (tmp_path / "run_history" / name).mkdir(parents=True)
    (tmp_path / "run_history" / "manifest.json").write_text("kept")
    first = following(empty_manifest("run_history", "{}"), "g1", d2026_01_01=part("g1"))
    warehouse.tidy(following(first, "g2", d2026_01_01=part("g2")))
    directories = {str(path.relative_to(tmp_path / "run_history")) for path in (tmp_path / "run_history").glob("*/*")}
    assert directories == {"g1/p", "g2/p"}
    assert (tmp_path / "run_history" / "manifest.json").exists()


def test_a_warehouse_has_one_writer_at_a_time(postgres: PostgresStorage, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "house")
    (tmp_path / "house").mkdir()
    with warehouse_lock(postgres, Warehouse(str(tmp_path / "house"))) as check:
        check()
        with (
            pytest.raises(WarehouseBusy, match=r"another refresh of the warehouse .* is under way"),
            warehouse_lock(postgres, Warehouse(str(tmp_path / "link"))),
        ):
            pass
        with warehouse_lock(postgres, Warehouse(str(tmp_path / "other"))):
            pass
    with warehouse_lock(postgres, Warehouse(str(tmp_path / "link"))):
        pass


def test_a_lock_that_was_lost_is_noticed(postgres: PostgresStorage, tmp_path: Path) -> None:
    with warehouse_lock(postgres, Warehouse(str(tmp_path))) as check:
        assert terminate_backends(postgres)
        with pytest.raises(WarehouseBusy, match=r"lock of the warehouse .* was lost"):
            check()
