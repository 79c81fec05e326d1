"""Collecting workflows: errors name the module and what was wrong; good ones come in order, each once."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from squid_dagster.workflow import Workflow, WorkflowsNotLoaded, load_workflows
from tests.workflow import payment_recovery as module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


@pytest.mark.parametrize("name", ["no_such_module", "tests.no_such_module", "no.such.module"])
def test_a_module_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(WorkflowsNotLoaded, match=f"there is no module '{name}'"):
        load_workflows(name)


@pytest.mark.parametrize("name", ["", ".", "..x", "a b"])
def test_a_text_that_is_no_module_name_is_refused(name: str) -> None:
    with pytest.raises(WorkflowsNotLoaded):
        load_workflows(name)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_dependency", "No module named 'no_such_dependency'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def (", "SyntaxError"),
        ("import sys; sys.exit(0)", "it ends the process"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_reason(folder: Path, source: str, reason: str) -> None:
    (folder / "squid_test_broken.py").write_text(source)

    with pytest.raises(WorkflowsNotLoaded, match=f"module 'squid_test_broken' could not be imported: {reason}"):
        load_workflows("squid_test_broken")


def test_a_module_without_workflows_is_named(folder: Path) -> None:
    (folder / "squid_test_empty.py").write_text("orders = []")

    with pytest.raises(WorkflowsNotLoaded, match="module 'squid_test_empty' holds no workflow: define one"):
        load_workflows("squid_test_empty")


@pytest.mark.parametrize("source", [None, 5, b"module", [5], [None], [["tests"]], {5: 6}])
def test_anything_else_is_refused_by_value(source: Any) -> None:
    with pytest.raises(WorkflowsNotLoaded, match="is neither a workflow, nor a module"):
        load_workflows(source)


def test_two_workflows_of_one_name_and_version_are_refused_with_both_places() -> None:
    again = Workflow("payment_recovery", version="2026-11-16")

    with pytest.raises(WorkflowsNotLoaded, match=r"declared twice, in module 'tests\.workflow.*' and in the workflows"):
        load_workflows([module, again])


def test_versions_of_one_workflow_stand_side_by_side() -> None:
    older = Workflow("payment_recovery", version="2026-01-01")

    assert load_workflows([module, older]) == [module.payment_recovery, older]


def test_a_module_gives_its_workflows_in_order_each_once() -> None:
    made = ModuleType("made")
    first, second = Workflow("second"), Workflow("first")
    vars(made).update(a=first, b=second, again=first, other=5)

    assert load_workflows(made) == [first, second]


def test_a_name_a_module_and_the_workflow_itself_are_the_same() -> None:
    expected = [module.payment_recovery]

    assert load_workflows("tests.workflow.payment_recovery") == expected
    assert load_workflows(module) == expected
    assert load_workflows(module.payment_recovery) == expected
    assert load_workflows(["tests.workflow.payment_recovery", module, module.payment_recovery]) == expected
    assert load_workflows(iter(expected)) == expected
    assert load_workflows([]) == []


def test_loading_does_not_check() -> None:
    broken = Workflow("broken")

    assert load_workflows(broken) == [broken]
