"""Templates of settlements: filled in, they equal what planner, codec and fold make of the settlement itself."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import verify
from squid_dagster.journal.contract.dispatch_store import Completed, Settlement
from squid_dagster.journal.postgres.dispatch.settle_template import SettleTemplate, SettleTemplates, Texts
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.runtime.execution.settlement import settle
from squid_dagster.workflow import Workflow, path
from tests.journal.access import all_entries, facts_of
from tests.journal.fast_settlement.workflows import facts_without_names

VALUES: tuple[Any, ...] = (
    None,
    0,
    -1.5e300,
    "",
    'ä\u2028"\\\n',
    [],
    {},
    {"b": [1, None, True], "a": {"z": 1, "y": []}},
    "\U0001f600",
    "value-0.",
    True,
)


def add(workflow: Workflow) -> Workflow:
    """Add three steps, each of which takes the output of the one before."""

    @workflow.step
    def first() -> None:
        """Return nothing."""

    @workflow.step
    def second(first: Any) -> None:
        """Return nothing."""

    @workflow.step
    def third(second: Any) -> None:
        """Return nothing."""

    return workflow


def chain() -> Workflow:
    """Return a workflow of three steps, one after another."""
    return add(Workflow("chain"))


def routed() -> Workflow:
    """Return a workflow of three steps by routes, of which one has a condition about the result."""
    workflow = add(Workflow("routed", entry="first"))
    workflow.route("first", to="second")
    workflow.route("second", to="fail", when=path("second") == "fail")
    workflow.route("second", to="third")
    workflow.route("third", to="complete")
    return workflow


def forked() -> Workflow:
    """Return a workflow by routes whose second step leads to one of two, by its result and by what it took."""
    workflow = add(Workflow("forked", entry="first"))

    @workflow.step
    def other(second: Any) -> None:
        """Return nothing."""

    workflow.route("first", to="second")
    workflow.route("second", to="other", when=path("second") == True)  # noqa: E712  a condition
    workflow.route("second", to="other", when=path("second.b").exists())
    workflow.route("second", to="third", when=path("first") == "")
    workflow.route("second", to="other", when=path("first.a.z") == 1)
    workflow.route("second", to="third")
    workflow.route("third", to="complete")
    workflow.route("other", to="complete")
    return workflow


def play(storage: PostgresStorage, workflow: Workflow, results: Sequence[Any], run_id: str) -> None:
    """Start a run and complete its steps with these results, one after another."""
    squid = Squid(storage, workflow)
    squid.start(workflow.name, run_id=run_id)
    for result in results:
        (claim,) = squid.runtime.dispatch.claim("default", "worker")
        settle(squid.runtime, [Settlement(claim.ref, Completed(result))]).answers[0].unwrap()


@pytest.fixture
def filled_texts(monkeypatch: pytest.MonkeyPatch) -> list[Texts]:
    """What templates were filled with."""
    written: list[Texts] = []
    fill = SettleTemplate.fill

    def noted(self: SettleTemplate, *values: Any) -> Any:
        texts = fill(self, *values)
        if texts is not None and not values[0].run_id.startswith("other-"):
            written.append(texts[0])
        return texts

    monkeypatch.setattr(SettleTemplate, "fill", noted)
    return written


@pytest.mark.parametrize("make", [chain, routed, forked])
def test_what_is_filled_in_is_what_would_have_been_planned(
    make: Callable[[], Workflow],
    postgres_virtual: PostgresStorage,
    filled_texts: list[Texts],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for n, value in enumerate(VALUES):
        play(postgres_virtual, make(), [value, VALUES[-n], "end"], f"filled-{n}")
    by_template = len(filled_texts)
    monkeypatch.setattr(SettleTemplates, "find", lambda *_: None)
    for n, value in enumerate(VALUES):
        play(postgres_virtual, make(), [value, VALUES[-n], "end"], f"planned-{n}")
    assert by_template == len(filled_texts) == len(VALUES) * 3
    if make is forked:
        decisions = [
            applied.transition
            for applied in facts_of(all_entries(postgres_virtual))
            if applied.type == "runnable_applied"
        ]
        chosen = {str(decision.get("condition")) for decision in decisions if decision["from"] == "second"}
        assert len(chosen) == 5
    for n in range(len(VALUES)):
        first, second = (facts_without_names(postgres_virtual, f"{way}-{n}") for way in ("filled", "planned"))
        assert first == second
    assert verify(postgres_virtual) == []


def test_a_result_that_is_no_json_takes_the_general_way(
    postgres_virtual: PostgresStorage, filled_texts: list[Texts]
) -> None:
    squid = Squid(postgres_virtual, chain())
    for odd in ((1, 2), {1: 2}, "nul \0", float("nan")):
        run_id = squid.start("chain").run_id
        (claim,) = squid.runtime.dispatch.claim("default", "worker")
        settle(squid.runtime, [Settlement(claim.ref, Completed(odd))])
        assert squid.inspect_run(run_id).status == "failed"
        assert "unwritable_outcome" in str(squid.inspect_run(run_id).error)
    assert filled_texts == []
    assert verify(postgres_virtual) == []


def test_a_step_whose_successor_is_due_later_has_no_template(
    postgres_virtual: PostgresStorage, filled_texts: list[Texts]
) -> None:
    workflow = Workflow("waits", entry="first")
    workflow.step(name="first")(lambda: None)
    workflow.wait("rest", timedelta(hours=1))
    workflow.route("first", to="rest")
    workflow.route("rest", to="complete")
    play(postgres_virtual, workflow, [1], "run")
    assert filled_texts == []
    assert Squid(postgres_virtual, workflow).inspect_run("run").status == "running"
    assert verify(postgres_virtual) == []


def test_workers_hear_of_what_a_template_has_scheduled(
    postgres_virtual: PostgresStorage, filled_texts: list[Texts]
) -> None:
    squid = Squid(postgres_virtual, chain())
    squid.start("chain")
    heard: list[Any] = []

    class RecordingNotifier:
        def __getattr__(self, name: str) -> Any:
            return getattr(notifier, name)

        def notify(self, queues: Any) -> None:
            heard.append(set(queues))

    notifier = squid.runtime.notifier
    runtime = squid.runtime
    object.__setattr__(runtime, "notifier", RecordingNotifier())
    (claim,) = runtime.dispatch.claim("default", "worker")
    settled = settle(runtime, [Settlement(claim.ref, Completed(1))])
    assert len(filled_texts) == 1
    assert heard == [{"default"}]
    assert set(settled.delays) == {timedelta(0)}
