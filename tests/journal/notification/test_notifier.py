"""Wakeups of a queue: one suite for those within a process and those by Postgres."""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from squid_dagster.journal import Listener, LocalNotifier, MemoryStorage, Notifier, PostgresNotifier, PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread

LONG = 30.0  # seconds: a wait takes so long only if something is broken


class NotifierFixture:
    """A notifier, and its listeners, which are connected, and closed at the end."""

    def __init__(self, notifier: Notifier, another: Notifier) -> None:
        self.notifier = notifier
        self.another = another
        self.opened: list[Listener] = []

    def listen(self, *queues: str) -> Listener:
        """Listen, and wait until the listener is connected."""
        listener = self.notifier.listen(queues)
        self.opened.append(listener)
        if isinstance(self.notifier, PostgresNotifier):
            assert listener.wait(LONG), "it never connected"
        return listener


@pytest.fixture(params=["local", "postgres"])
def fixture(request: pytest.FixtureRequest) -> Iterator[NotifierFixture]:
    """No listener yet."""
    made: NotifierFixture
    if request.param == "local":
        memory = MemoryStorage()
        made = NotifierFixture(LocalNotifier(memory), LocalNotifier(memory))
    else:
        postgres: PostgresStorage = request.getfixturevalue("postgres")
        made = NotifierFixture(PostgresNotifier(postgres), PostgresNotifier(postgres))
    yield made
    for listener in made.opened:
        listener.close()
    made.notifier.close()
    made.another.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("squid-")] == []


def test_whoever_listens_is_woken(fixture: NotifierFixture) -> None:
    listener = fixture.listen("default", "slow")
    for queues in (["default"], ["slow"], {"other", "slow"}, ("default", "slow")):
        fixture.notifier.notify(queues)
        assert listener.wait(LONG)


def test_whoever_uses_the_same_storage_is_heard(fixture: NotifierFixture) -> None:
    listener = fixture.listen("default")
    fixture.another.notify(["default"])
    assert listener.wait(LONG)


def test_all_listeners_of_a_queue_are_woken(fixture: NotifierFixture) -> None:
    listeners = [fixture.listen("default"), fixture.listen("default", "slow")]
    fixture.notifier.notify(["default"])
    assert [listener.wait(LONG) for listener in listeners] == [True, True]


def test_news_of_other_queues_wake_nobody(fixture: NotifierFixture) -> None:
    mine, other = fixture.listen("default"), fixture.listen("slow")
    for queues in (["slow"], ["default2"], ["Default"], []):
        fixture.notifier.notify(queues)
    assert other.wait(LONG)
    assert not mine.wait(0.2)


def test_a_wait_without_news_ends(fixture: NotifierFixture) -> None:
    listener = fixture.listen("default")
    assert not listener.wait(0.01)
    assert not listener.wait(0)
    assert not listener.wait(-1)


def test_news_from_before_the_wait_are_not_lost_and_many_count_as_one(fixture: NotifierFixture) -> None:
    listener = fixture.listen("default")
    for _ in range(100):
        fixture.notifier.notify(["default"])
    fixture.notifier.close()
    woken = 0
    while listener.wait(0.5):
        woken += 1
    assert 1 <= woken < 100


def test_a_listener_can_be_woken_from_this_process(fixture: NotifierFixture) -> None:
    listener = fixture.listen("default")
    listener.wake()
    listener.wake()
    assert listener.wait(LONG)
    assert not listener.wait(0)
    # also while a thread waits
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(listener.wait(LONG)))
    thread.start()
    listener.wake()
    thread.join(LONG)
    assert answers == [True]


def test_a_listener_that_is_closed_wakes_whoever_waits_and_hears_nothing_more(fixture: NotifierFixture) -> None:
    listener = fixture.listen("default")
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(listener.wait(600))) for _ in range(2)]
    for thread in threads:
        thread.start()
    listener.close()
    for thread in threads:
        thread.join(LONG)
    assert answers == [False, False]
    listener.close()
    listener.wake()
    fixture.notifier.notify(["default"])
    assert not listener.wait(600)


@pytest.mark.parametrize("queues", [[], "default", [""], ["a b"], ["x" * 201], [None]], ids=str)
def test_queues_that_make_no_sense_are_refused_before_anything_is_opened(fixture: NotifierFixture, queues: Any) -> None:
    with pytest.raises((InvalidArgument, InvalidThread)):
        fixture.notifier.listen(queues)


def test_notifying_where_nobody_listens_is_no_error(fixture: NotifierFixture) -> None:
    fixture.notifier.notify(["default"])
    fixture.notifier.notify(["no queue has this name: \0"])
    fixture.notifier.notify([])
    fixture.notifier.close()
    # and what comes after a close is sent all the same
    listener = fixture.listen("default")
    fixture.notifier.notify(["default"])
    assert listener.wait(LONG)


def test_storages_in_memory_do_not_hear_each_other_and_forget_who_left() -> None:
    first, second = LocalNotifier(MemoryStorage()), LocalNotifier(MemoryStorage())
    listener = first.listen(["default"])
    second.notify(["default"])
    assert not listener.wait(0)
    listeners = first._listeners._listeners
    assert len(listeners) == 1
    del listener
    gc.collect()
    assert len(listeners) == 0
