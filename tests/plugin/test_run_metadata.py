"""A run as Dagster metadata: what a text holds stays text, what is long is cut, and the picture holds itself."""

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal
from xml.etree import ElementTree

import pytest
from pydantic import BaseModel, Field

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.plugin import run_metadata as show
from squid_dagster.plugin.commands.payloads import example_payload, example_text
from squid_dagster.plugin.markdown import code, json_block, picture, table, text
from squid_dagster.plugin.run_metadata import graph_markdown, run_metadata, snapshot_markdown, timeline_markdown
from squid_dagster.protocol.errors import NotFound
from tests.facts import T0
from tests.plugin.workflows import every, finish


@pytest.fixture
def squid() -> Iterator[Squid]:
    with Squid(MemoryStorage(VirtualClock(T0)), every()) as made:
        yield made


def claim(squid: Squid, run_id: str = "run-1", **options: Any) -> str:
    return squid.start("claims", {"account": "acc-1", "amount": 7, "api_token": "hunter2"}, run_id=run_id).run_id


# --- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        "![x](https://example.com/pixel.png)",
        "[x](javascript:alert(1))",
        "<img src=x onerror=alert(1)>",
        "https://example.com and www.example.com and ada@example.com",
        "a | b",
        "**bold** _it_ ~~gone~~ `code`",
        "line\n| a | b |\n# head",
        "&lt;b&gt;",
        "\\",
    ],
)
def test_a_text_stays_a_text(bad: str) -> None:
    shown = text(bad)
    assert "\n" not in shown
    assert re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]()<>|~&!@:#]", shown) is None
    assert "www." not in shown
    assert re.sub(r"\\(.)", r"\1", shown) == " ".join(bad.split())


def test_cells_never_break_their_table() -> None:
    shown = table(("a|b", "c"), [("x\ny|z", None), (1, "`")])
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in shown.splitlines()] == [3, 3, 3, 3]


def test_code_keeps_its_backticks_to_itself() -> None:
    assert code("a`b``c") == "```a`b``c```"
    assert code("`") == "`` ` ``"
    assert json_block({"a": "```"}).startswith("````json\n")
    assert json_block({"a": "x" * 9000}).endswith("… (cut here)\n```")


# --- a run ----------------------------------------------------------------------------------------------------------


def test_a_run_that_does_not_exist_is_not_shown(squid: Squid) -> None:
    with pytest.raises(NotFound):
        run_metadata(squid, "nowhere")


def test_a_run_is_shown_with_its_graph_timeline_explanation_and_attempts(squid: Squid) -> None:
    run_id = claim(squid)
    finish(squid)
    shown = {name: str(value.value) for name, value in run_metadata(squid, run_id).items()}
    assert (shown["run_id"], shown["status"]) == ("run-1", "paused")
    assert "**What can be done**" in shown["explanation"]
    assert "`squid.approve('run-1'" in shown["explanation"]
    assert "| manual\\_step\\_paused | squid\\:run\\:run-1 |" in shown["explanation"]
    assert "run\\_started" in shown["timeline"]
    assert "| read | 1 | completed |" in shown["snapshot"]
    assert "| waits for | approval of step 'review' since " in shown["snapshot"]
    assert "hunter2" not in str(shown)


def test_the_graph_is_an_image_that_holds_itself(squid: Squid) -> None:
    run_id = claim(squid)
    shown = graph_markdown(squid.inspect_run_graph(run_id))
    match = re.fullmatch(r"!\[(.*)\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", shown)
    assert match is not None
    assert match[1] == "claims · run-1 · running"
    drawn = ElementTree.fromstring(base64.b64decode(match[2]))  # noqa: S314  our own
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert picture("]", "<svg/>").startswith("![\\]](data:")


def test_a_graph_that_is_too_large_is_a_table(squid: Squid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "MAX_PICTURE_CHARACTERS", 100)
    shown = graph_markdown(squid.inspect_run_graph(claim(squid)))
    assert "data:" not in shown
    assert "| read | step | " in shown


def test_a_long_timeline_is_told_from_its_end_and_says_where_the_rest_is(squid: Squid) -> None:
    events = squid.inspect_run_timeline(claim(squid))
    many = [replace(events[0], revision=number) for number in range(150)]
    shown = timeline_markdown(many, "run-1")
    assert shown.startswith("50 earlier events are left out: `squid.inspect_run_timeline('run-1')` tells them all.")
    assert len(shown.splitlines()) == 2 + 2 + show.MAX_EVENTS


def test_attempts_commands_anomalies_and_errors_of_a_run_are_shown(squid: Squid) -> None:
    run_id = squid.start("failing", run_id="f", actor={"name": "ada"}, metadata={"actor_source": "test"}).run_id
    finish(squid)
    snapshot = squid.inspect_run(run_id)
    shown = snapshot_markdown(replace(snapshot, attempts=snapshot.attempts * 60))
    assert "| error | RuntimeError\\: it broke down |" in shown
    assert "| start\\_run | ada | test |" in shown
    assert "10 earlier attempts are left out." in shown


# --- examples of payloads -------------------------------------------------------------------------------------------


class Inner(BaseModel):
    day: str = Field(json_schema_extra={"format": "date"})
    inner: "Inner | None" = None


class Wide(BaseModel):
    name: str = Field(examples=["ada"])
    kind: Literal["a", "b"]
    count: int = Field(ge=3)
    size: float = 2.5
    yes: bool
    inner: Inner
    many: list[Inner]
    maybe: int | None
    by_name: dict[str, int]
    client_secret: str = "s3cret"


class Choice(BaseModel):
    mode: Literal["dry", "real"] = "real"
    limit: int = Field(default_factory=lambda: 10)


class Odd(BaseModel, arbitrary_types_allowed=True):
    clock: VirtualClock
    name: str = "x"


def test_an_example_has_the_shape_of_the_payload_and_no_secret() -> None:
    day = {"day": "2026-01-31", "inner": None}
    assert example_payload(Wide) == {
        "name": "ada",
        "kind": "a",
        "count": 3,
        "size": 2.5,
        "yes": False,
        "inner": day,
        "many": [day],
        "maybe": 1,
        "by_name": {},
        "client_secret": "[REDACTED]",
    }
    Wide.model_validate(example_payload(Wide))


def test_an_example_changes_no_default() -> None:
    assert example_payload(Choice) == {"mode": "real"}


def test_a_payload_that_no_schema_describes_has_what_its_defaults_say() -> None:
    assert example_payload(Odd) == {"name": "x"}
    assert example_text(None) == "{}"
