"""The registry: which definitions a process can execute, and which of them new runs and old ones get."""

from dataclasses import replace
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
    assert list(Registry([OLD, OLD])) == [OLD]
    frozen_twice = workflow("1")
    assert len(list(Registry([frozen_twice.freeze(), frozen_twice.freeze()]))) == 1, "the same meaning twice is one"


def test_one_version_has_one_set_of_functions() -> None:
    with pytest.raises(WorkflowsNotLoaded, match=r"'orders' is given twice with version '1'.*functions of step 'ship'"):
        Registry([OLD, definition("1")])
    undone, otherwise = workflow("1"), workflow("1")
    for wf in (undone, otherwise):
        wf.step(name="pay", compensate=lambda: None)(_pay)
    with pytest.raises(WorkflowsNotLoaded, match="functions of step"):
        Registry([undone.freeze(), otherwise.freeze()])


def _pay() -> None:
    """Return nothing."""


@pytest.mark.parametrize("order", [1, -1], ids=["older first", "newer first"])
def test_versions_that_differ_in_function_bodies_only_stand_side_by_side(order: int) -> None:
    renamed = definition("1.1")
    assert renamed.fingerprint == OLD.fingerprint
    given = [OLD, renamed][::order]
    registry = Registry(given)
    assert list(registry) == given
    assert len(registry.keys) == 1, "they share a lane: each can execute the other's runs"
    assert registry.select("orders") is given[-1]
    assert (registry.select("orders", "1"), registry.select("orders", "1.1")) == (OLD, renamed)
    for version in given:
        assert registry.find("orders", OLD.fingerprint, version.version) is version
        assert registry.require("r-1", "orders", version.version, OLD.fingerprint) is version
    assert registry.find("orders", OLD.fingerprint, "0.9") is given[-1], "a version that is gone"
    assert Registry([renamed]).find("orders", OLD.fingerprint, "1") is renamed


def test_a_run_of_an_earlier_release_finds_its_definition_by_the_fingerprint_of_then() -> None:
    now = definition("2")
    then = replace(now, fingerprint="f" * 64)
    upgraded = replace(now, former_fingerprints=("f" * 64,))
    registry = Registry([OLD, upgraded])
    assert registry.keys == {OLD.key, then.key}
    assert registry.find("orders", then.fingerprint, "2") is upgraded
    assert registry.find("orders", then.fingerprint, "whatever") is upgraded
    beside = Registry([replace(then, version="1"), upgraded])
    assert beside.find("orders", then.fingerprint, "1").version == "1"  # type: ignore[union-attr]
    assert beside.find("orders", then.fingerprint, "2") is upgraded
    assert beside.find("orders", then.fingerprint, "3").version == "1", "what has it now, before what had it"  # type: ignore[union-attr]
