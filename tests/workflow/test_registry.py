"""The registry: which definitions a process can execute, and which of them new runs and old ones get."""

from typing import Any

import pytest

from squid_dagster.protocol import definition_key
from squid_dagster.protocol.errors import IncompatibleDefinition, NotFound
from squid_dagster.workflow import Workflow, WorkflowsNotLoaded
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.registry import Registry


def definition(version: str | None = "1", *steps: str, name: str = "orders") -> Definition:
    return workflow(version, *steps, name=name).freeze()


def workflow(version: str | None = "1", *steps: str, name: str = "orders") -> Workflow:
    wf = Workflow(name, version=version)
    for step in steps or ("ship",):
        wf.step(name=step)(lambda: None)
    return wf


OLD, NEW, OTHER = definition("1"), definition("2", "ship", "note"), definition(None, name="other")


def test_several_versions_stand_side_by_side_and_the_last_one_is_current() -> None:
    registry = Registry([OLD, NEW, OTHER])
    assert list(registry) == [OLD, NEW, OTHER]
    assert registry.keys == {OLD.key, NEW.key, OTHER.key}
    assert (registry.current("orders"), registry.current("other")) == (NEW, OTHER)
    assert registry.current("nothing") is None
    assert Registry([NEW, OLD]).current("orders") is OLD


def test_a_run_finds_exactly_the_definition_that_it_was_started_with() -> None:
    registry = Registry([OLD, NEW])
    assert registry.find("orders", OLD.fingerprint) is OLD
    assert registry.find("other", OLD.fingerprint) is None
    assert registry.find(None, None) is None
    assert OLD.key == definition_key("orders", OLD.fingerprint)


@pytest.mark.parametrize(
    ("reference", "version", "expected"),
    [
        ("orders", None, NEW),
        ("orders", "1", OLD),
        (OLD, None, OLD),
        (workflow("1"), None, OLD),
        (workflow("1"), "2", NEW),
        (workflow(None), None, NEW),
    ],
    ids=["name", "name and version", "definition", "workflow", "workflow and version", "workflow without a version"],
)
def test_a_new_run_gets_the_current_definition_or_the_version_that_is_named(
    reference: Any, version: str | None, expected: Definition
) -> None:
    assert Registry([OLD, NEW, OTHER]).select(reference, version) is expected


@pytest.mark.parametrize(
    ("reference", "version", "said"),
    [
        ("nothing", None, "workflow 'nothing' is not registered (registered: orders 1, orders 2, other)"),
        ("orders", "3", "version '3' of workflow 'orders' is not registered"),
        (workflow("9"), None, "version '9' of workflow 'orders' is not registered"),
        (workflow("1", name="third"), None, "workflow 'third' is not registered"),
    ],
    ids=str,
)
def test_what_is_not_there_is_named_with_what_is(reference: Any, version: str | None, said: str) -> None:
    with pytest.raises(NotFound) as refused:
        Registry([OLD, NEW, OTHER]).select(reference, version)
    assert said in str(refused.value)
    assert "workflows=[...]" in str(refused.value)


def test_a_run_whose_definition_is_missing_is_told_which_one_is_there() -> None:
    with pytest.raises(IncompatibleDefinition) as refused:
        Registry([NEW]).require("r-1", "orders", "1", OLD.fingerprint)
    for said in ("r-1", "'1'", OLD.fingerprint[:12], "'2'", NEW.fingerprint[:12], "register that version"):
        assert said in str(refused.value)
    with pytest.raises(IncompatibleDefinition, match="not registered at all"):
        Registry().require("r-1", "orders", None, None)
    assert Registry([OLD, NEW]).require("r-1", "orders", "whatever it is called", OLD.fingerprint) is OLD


def test_one_version_has_one_meaning() -> None:
    with pytest.raises(WorkflowsNotLoaded, match="'orders' is given twice with version '1'"):
        Registry([OLD, definition("1", "ship", "note")])
    again = definition("1")
    assert list(Registry([OLD, again])) == [again], "the same meaning twice is one"


def test_the_same_meaning_under_two_versions_is_one_definition_and_the_last_version_counts() -> None:
    renamed = definition("1.1")
    registry = Registry([OLD, renamed])
    assert len(registry.keys) == 1
    assert registry.select("orders").version == "1.1"
    assert registry.find("orders", OLD.fingerprint) is renamed
