"""A journal that can only be read, and one without definitions: what a `Squid` still does, and what the rest raises."""

from collections.abc import Iterator

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import MemoryStorage, PostgresStorage
from squid_dagster.protocol.errors import IncompatibleDefinition, InvalidArgument, NotFound, StorageUnavailable
from tests.inspection.run_histories import order

READ_ONLY = "options=-c%20default_transaction_read_only%3Don"


@pytest.fixture
def read_only(postgres: PostgresStorage, postgres_url: str) -> Iterator[PostgresStorage]:
    """The journal of `postgres`, in sessions that cannot write."""
    separator = "&" if "?" in postgres_url else "?"
    storage = PostgresStorage(f"{postgres_url}{separator}{READ_ONLY}", postgres.schema)
    yield storage
    storage.close()


def test_everything_that_looks_works_where_nothing_can_be_written(
    postgres: PostgresStorage, read_only: PostgresStorage
) -> None:
    run_id = Squid(postgres, [order()]).start("orders").run_id
    with Squid(read_only, [order()]) as squid:
        snapshot = squid.inspect_run(run_id)

        assert snapshot.status == squid.explain_run(run_id).status == squid.inspect_run_graph(run_id).status
        assert squid.inspect_run_timeline(run_id, at=snapshot.as_of)[-1].kind in ("run_started", "attempt_scheduled")
        assert [run.status for run in squid.list_runs().runs] == [snapshot.status] == ["running"]
        assert (squid.dead_letters(), squid.live_workers()) == ([], [])
        assert [row.queue for row in squid.queues()] == ["default"]
        assert not squid.inspect_queue("default").paused
        assert [trouble.kind for trouble in squid.attention()] == ["no_worker"]
        assert squid.attention_items("waiting").items == ()
        for call in (
            lambda: squid.start("orders"),
            lambda: squid.cancel(run_id),
            lambda: squid.pause_queue("default"),
            lambda: squid.execute_next(),
        ):
            with pytest.raises(StorageUnavailable, match="read-only"):
                call()


def test_without_definitions_runs_are_judged_by_facts_alone() -> None:
    storage = MemoryStorage()
    run_id = Squid(storage, [order()]).start("orders").run_id
    squid, empty = Squid(storage), Squid(storage, [])

    assert squid.inspect_run(run_id).status == "running"
    assert empty.inspect_run(run_id).status == "held"
    assert squid.list_runs(status="held").runs == ()
    assert [run.run_id for run in empty.list_runs(status="held").runs] == [run_id]
    assert squid.attention_items("held").items == ()
    assert [item.run_id for item in empty.attention_items("held").items] == [run_id]
    assert [(trouble.kind, trouble.run_ids) for trouble in empty.attention() if trouble.kind == "held"] == [
        ("held", (run_id,))
    ]
    assert "held" not in {trouble.kind for trouble in squid.attention()}
    for kind, cursor in (("held", 12345), ("dead_letter", "zzz")):
        with pytest.raises(InvalidArgument, match="begin without one"):
            empty.attention_items(kind, cursor=cursor)
    assert squid.execute_next() is None
    with pytest.raises(NotFound, match="not registered"):
        squid.start("orders")
    with pytest.raises(IncompatibleDefinition, match="not registered"):
        squid.replay(run_id)
    assert squid.pause_queue("default")
    assert squid.cancel(run_id).snapshot.status == "cancelled"
