"""Postgres: open transactions hold a cut back, and a follower reads each entry once, wherever a writer stands still."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from psycopg import sql

from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Entry
from squid_dagster.protocol.errors import InvalidArgument
from tests.facts import queued, signal
from tests.journal.access import (
    EVERYTHING,
    OTHER,
    OTHER_THREAD,
    QUEUE_THREAD,
    THREAD,
    Opener,
    all_entries,
    raw,
    wait_for_a_lock,
)


def test_an_open_transaction_that_has_taken_positions_holds_the_cut_back(postgres: PostgresStorage) -> None:
    # given a writer that has announced itself, taken a position, and stands still
    postgres.append(THREAD, [signal()])
    first = postgres.cut()
    with raw(postgres, autocommit=False) as writer:
        (taken,) = writer.execute("SELECT take_number(1)").fetchone() or (0,)
        assert taken > first
        # when others go on
        postgres.append(OTHER_THREAD, [signal(OTHER)])
        # then the cut stays below, and waits for no writer
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(postgres.cut).result(10) == first
        assert len(postgres.read_between(first, EVERYTHING)) == 1
        writer.rollback()
    # and moves on when the writer has gone
    assert postgres.cut() == all_entries(postgres)[-1].position


def test_of_several_open_transactions_the_first_holds_the_cut_back(postgres: PostgresStorage) -> None:
    postgres.append(THREAD, [signal()])
    first = postgres.cut()
    with raw(postgres, autocommit=False) as early, raw(postgres, autocommit=False) as late:
        early.execute("SELECT take_number(1)")
        postgres.append(OTHER_THREAD, [signal(OTHER)])
        late.execute("SELECT take_number(1)")
        postgres.append(OTHER_THREAD, [signal(OTHER)])
        assert postgres.cut() == first
        early.rollback()
        assert first < postgres.cut() < all_entries(postgres)[-1].position


def test_a_writer_that_announces_itself_between_the_two_looks_of_a_cut_does_not_move_it(
    postgres: PostgresStorage,
) -> None:
    # given a writer whose announcement is ahead of the number that a cut has read already
    postgres.append(THREAD, [signal()])
    cut = postgres.cut()
    namespace = lock_number(postgres.schema, "positions")
    for ahead in (1, 2, 1000):
        with raw(postgres, autocommit=False) as writer:
            writer.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", (namespace, (cut >> 20) + ahead))
            # then it makes no difference
            assert postgres.cut() == cut


def test_numbers_of_locks_may_begin_again(postgres: PostgresStorage) -> None:
    # given a journal whose next commits pass the last number that a lock can have
    with raw(postgres) as connection:
        connection.execute("SELECT setval('journal_numbers', %s)", (2**32 - 2,))
    cuts = []
    for at in range(4):
        postgres.append(THREAD, [signal(at=at)])
        cuts.append(postgres.cut())
        with raw(postgres, autocommit=False) as writer:
            # when a writer stands still at each of them
            writer.execute("SELECT take_number(1)")
            postgres.append(OTHER_THREAD, [signal(OTHER, at=at)])
            # then the cut stays before it
            assert postgres.cut() == cuts[-1]
    assert cuts == sorted(cuts)
    assert postgres.cut() == all_entries(postgres)[-1].position


_STEPS = {
    "looked": "SELECT set_config('squid.looked', last_value::text, true) FROM journal_numbers",
    "announced": "SELECT pg_advisory_xact_lock_shared({positions}, current_setting('squid.looked')::int)",
    "taken": "SELECT nextval('journal_numbers')",
    "inserted": """INSERT INTO journal_entries SELECT (currval('journal_numbers') << 20) + n, 'squid:run:slow', n,
        'run_signal_received', 'slow', clock_timestamp(), '{{}}', '' FROM generate_series(1, 2) n""",
}


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("reached", range(1, len(_STEPS) + 1), ids=lambda n: list(_STEPS)[n - 1])
def test_wherever_a_writer_stands_still_its_commit_is_read_whole_and_once(
    postgres: PostgresStorage, reached: int, ends: str
) -> None:
    # given a follower, and a writer that takes its first steps and stands still
    postgres.append(THREAD, [signal()])
    after, seen = 0, list[Entry]()

    def follow() -> None:
        nonlocal after
        upto = postgres.cut(after)
        seen.extend(postgres.read_between(after, upto))
        after = upto

    steps = [step.format(positions=lock_number(postgres.schema, "positions")) for step in _STEPS.values()]
    with raw(postgres, autocommit=False) as writer:
        for step in steps[:reached]:
            writer.execute(step)
            follow()
        # when another one commits meanwhile, and the first goes on
        postgres.append(OTHER_THREAD, [signal(OTHER)])
        follow()
        for step in steps[reached:]:
            writer.execute(step)
            follow()
        assert not [entry for entry in seen if entry.thread == "squid:run:slow"]
        writer.execute(ends)
    follow()
    # then every fact was read once, and in order
    assert [entry.position for entry in seen] == [entry.position for entry in all_entries(postgres)]
    assert len([entry for entry in seen if entry.thread == "squid:run:slow"]) == (2 if ends == "COMMIT" else 0)


def test_a_commit_that_takes_too_many_positions_is_refused_by_the_database(postgres: PostgresStorage) -> None:
    with pytest.raises(InvalidArgument, match=r"1048576 facts"):
        postgres.rows("SELECT {schema}.take_number(1048576)")


def test_an_append_of_too_many_facts_is_refused_by_the_database(postgres: PostgresStorage) -> None:
    with pytest.raises(InvalidArgument, match=r"1048576 facts"):
        postgres.rows(
            """SELECT {schema}.append_entries(NULL, ARRAY['squid:run:a', 'squid:run:b'], ARRAY[NULL, NULL]::bigint[],
                   ARRAY[1, 1048575], '[]', NULL, NULL, NULL, NULL, NULL, NULL)"""
        )


def test_a_start_of_too_many_facts_is_refused_by_the_database(postgres: PostgresStorage) -> None:
    with pytest.raises(InvalidArgument, match=r"1048576 facts"):
        postgres.rows(
            """SELECT {schema}.start_runs(gen_random_uuid(), 'default', clock_timestamp(), true, ARRAY['a', 'b'],
                   2, 524286, '[]', '[]', '[]')"""
        )


def test_a_cut_is_published_once_it_has_moved_and_never_falls(postgres: PostgresStorage) -> None:
    published = "SELECT xmin::text, position FROM journal_published"
    with raw(postgres) as connection:
        postgres.append(THREAD, [signal()])
        assert postgres.publish_cut() == postgres.cut() > 0
        before = connection.execute(published).fetchall()
        assert before[0][1] == postgres.cut()
        # when nothing has happened, or a slow writer makes the cut fall
        postgres.publish_cut()
        with raw(postgres, autocommit=False) as writer:
            namespace = lock_number(postgres.schema, "positions")
            writer.execute("SELECT pg_advisory_xact_lock_shared(%s, 0)", (namespace,))
            assert postgres.publish_cut() == 0
        # then nothing is written
        assert connection.execute(published).fetchall() == before


def test_a_writer_slow_to_announce_itself_makes_no_reader_read_twice(postgres: PostgresStorage) -> None:
    # given a reader that has come to a cut, and a writer that looked at the sequence long before it
    postgres.append(THREAD, [signal()])
    early = postgres.cut()
    postgres.append(THREAD, [signal(at=1)])
    after = postgres.cut()
    assert after > early
    with raw(postgres, autocommit=False) as writer:
        namespace = lock_number(postgres.schema, "positions")
        writer.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", (namespace, early >> 20))
        # when it announces that position now, a cut is lower than the earlier one
        assert postgres.cut() == early
        # then a reader that passes the earlier one stays there
        assert postgres.cut(after) == after
    assert postgres.cut(after) == after


def test_an_append_that_has_taken_its_positions_and_not_committed_is_read_once_when_it_does(
    postgres: PostgresStorage,
) -> None:
    # given an append that comes to its very last step and has to wait there
    postgres.append(THREAD, [signal()])
    a, commit_id = postgres.cut(), uuid4()
    with raw(postgres, autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        other.execute(
            "INSERT INTO journal_commits (id, receipt, committed_at) VALUES (%s, '{}', clock_timestamp())", (commit_id,)
        )
        waiting = pool.submit(postgres.commit, [Append(QUEUE_THREAD, [queued("run-3")])], commit_id)
        wait_for_a_lock(postgres)
        # when others commit behind it
        postgres.append(OTHER_THREAD, [signal(OTHER)])
        b = postgres.cut()
        # then no cut comes past it
        assert a == b
        assert postgres.read_between(a, b) == []
        other.rollback()
        assert waiting.result(30) == {QUEUE_THREAD: 1}
    # and once it is done, everything is found between the next two
    c = postgres.cut()
    assert [entry.thread for entry in postgres.read_between(b, c)] == [QUEUE_THREAD, OTHER_THREAD]


def test_a_cut_of_one_schema_does_not_wait_for_writers_of_another(
    postgres: PostgresStorage, open_storage: Opener
) -> None:
    other = open_storage(name=f"{postgres.schema}_other")
    other.upgrade()
    postgres.append(THREAD, [signal()])
    with raw(other, autocommit=False) as writer:
        writer.execute("SELECT take_number(1)")
        postgres.append(THREAD, [signal()])
        assert postgres.cut() == all_entries(postgres)[-1].position
        assert other.cut() == 0


def test_a_cut_of_one_database_does_not_wait_for_writers_of_another(
    postgres: PostgresStorage, open_storage: Opener
) -> None:
    # given a schema of the same name in another database of the server
    url, name = postgres.engine.url, f"other_of_{postgres.schema}"
    with raw(postgres) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        other = open_storage(url.set(database=name).render_as_string(hide_password=False))
        other.upgrade()
        # when a writer stands still there, before the first number that was taken here
        with raw(other, autocommit=False) as writer:
            writer.execute("SELECT take_number(1)")
            postgres.append(THREAD, [signal()])
            # then readers here do not notice
            assert postgres.cut() == all_entries(postgres)[-1].position
        other.close()
    finally:
        with raw(postgres) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
