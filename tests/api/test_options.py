"""Keywords of public methods are typed: an unknown one is refused, and those that are passed on are all there."""

import inspect
import typing

import pytest

from squid_dagster.api import Squid
from squid_dagster.inspection.inspection import Inspection
from squid_dagster.journal import MemoryStorage
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread
from squid_dagster.runtime.adapters import SquidOptions
from squid_dagster.runtime.worker.options import WorkerOptions
from squid_dagster.runtime.worker.worker import Worker


def test_no_public_method_takes_options_without_a_type() -> None:
    for cls in (Squid, Inspection):
        for name, member in inspect.getmembers(cls, inspect.isroutine):
            if name.startswith("_") and name != "__init__":
                continue
            for parameter in inspect.signature(member).parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    assert typing.get_origin(parameter.annotation) is typing.Unpack, name


def test_an_unknown_keyword_is_named_with_those_that_there_are() -> None:
    squid = Squid(MemoryStorage())

    with pytest.raises(
        TypeError, match=r"Squid.cancel\(\) got an unexpected keyword argument 'acter': it takes actor,"
    ):
        squid.cancel("run-1", acter="ada")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"list_runs\(\) got an unexpected keyword argument 'workflows': it takes cur"):
        squid.list_runs(workflows="orders")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'concurency'"):
        squid.new_worker(concurency=3)  # type: ignore[call-arg]


def test_an_option_of_another_type_is_refused_by_the_class_that_was_called() -> None:
    squid = Squid(MemoryStorage())

    with pytest.raises(InvalidArgument, match=r"^Squid.cancel: comment must be a text or None, not 5"):
        squid.cancel("run-1", comment=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidThread, match=r"^Squid.inspect_run: run_id must be a text, not 5"):
        squid.inspect_run(5)  # type: ignore[arg-type]


def test_the_options_of_a_worker_are_those_of_its_constructor() -> None:
    hints = typing.get_type_hints(Worker.__init__)
    keywords = [p.name for p in inspect.signature(Worker).parameters.values() if p.kind is p.KEYWORD_ONLY]

    assert typing.get_type_hints(WorkerOptions) == {name: hints[name] for name in keywords}


def test_connect_takes_all_options_of_a_squid() -> None:
    taken = {p.name for p in inspect.signature(Squid).parameters.values() if p.kind is p.KEYWORD_ONLY}

    assert taken < set(typing.get_type_hints(SquidOptions))
