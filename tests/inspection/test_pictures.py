"""Mermaid and SVG: the same graph gives the same picture, nothing lies upon anything, and no name breaks out."""

import itertools
import re
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squid_dagster.inspection import EdgeStatus, GraphEdge, GraphNode, NodeStatus
from squid_dagster.inspection.graph.layout import BOX_HEIGHT, BOX_WIDTH, LABEL_HEIGHT, Link, Picture, lay_out
from squid_dagster.inspection.graph.mermaid import mermaid
from squid_dagster.inspection.graph.palette import COLOURS
from squid_dagster.inspection.graph.run_graph import RunGraph, graph
from squid_dagster.inspection.graph.svg import svg
from tests.inspection.run_histories import fan, looping, order, saga, start_history

SVG = "{http://www.w3.org/2000/svg}"
NASTY = ['"]; click n0 "javascript:x"', "<script>alert(1)</script>", "a&b]]>", "\x01\x0b\ud7ff", "x" * 300, "`#quot;`"]


def _pictures() -> dict[str, RunGraph]:
    return {
        "order": graph(start_history(order()).do("charge").case()),
        "saga": graph(start_history(saga()).do("book").do("pay").do("mail").claim("ship").fail("ship").case()),
        "fan": graph(start_history(fan()).do("left").case()),
        "looping": graph(
            start_history(looping()).do("poll", {"again": True}).do("poll").do("look", {"tired": True}).case()
        ),
    }


PICTURES = _pictures()


def _parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314  our own


def _node(name: str, status: NodeStatus = NodeStatus.PENDING, kind: str = "step") -> GraphNode:
    return GraphNode(id=name, kind=kind, status=status, current=False, visits=1, attempt_count=1)


def _edge(source: str, target: str, **fields: object) -> GraphEdge:
    base = {"type": "route", "status": EdgeStatus.PENDING, "times": 0}
    return GraphEdge(id=f"{source}:{target}", source=source, target=target, **{**base, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PICTURES)
def test_the_same_graph_always_gives_the_same_picture(name: str) -> None:
    again = _pictures()[name]

    assert again.to_svg() == PICTURES[name].to_svg()
    assert again.to_mermaid() == PICTURES[name].to_mermaid()


# --- SVG ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PICTURES)
def test_an_svg_is_xml_with_a_box_for_each_node_and_a_line_for_each_edge(name: str) -> None:
    drawn = PICTURES[name]

    root = _parsed(drawn.to_svg())

    assert root.tag == f"{SVG}svg"
    assert {g.get("data-node"): g.get("data-status") for g in root.iter(f"{SVG}g") if g.get("data-node")} == {
        node.id: node.status.value for node in drawn.nodes
    }
    assert {g.get("data-edge"): g.get("data-status") for g in root.iter(f"{SVG}g") if g.get("data-edge")} == {
        edge.id: edge.status.value for edge in drawn.edges
    }


@pytest.mark.parametrize("name", PICTURES)
def test_an_svg_can_be_read_aloud(name: str) -> None:
    drawn = PICTURES[name]
    root = _parsed(drawn.to_svg())

    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")

    assert title is not None
    assert desc is not None
    assert title.text == drawn.title
    assert all(f"{node.id}: {node.status.value}" in (desc.text or "") for node in drawn.nodes)
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "title desc"


@pytest.mark.parametrize("name", PICTURES)
def test_everything_stays_within_the_picture(name: str) -> None:
    root = _parsed(PICTURES[name].to_svg())
    _, _, width, height = map(float, root.get("viewBox", "").split())
    shift_x, shift_y = map(float, re.findall(r"[\d.]+", root.findall(f"{SVG}g")[0].get("transform", "")))

    for rect in root.findall(f"{SVG}g")[0].iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.get(side, "")) for side in ("x", "y", "width", "height"))
        assert 0 <= x + shift_x <= x + shift_x + w <= width
        assert 0 <= y + shift_y <= y + shift_y + h <= height


def test_the_state_is_told_in_words_and_not_by_colour_alone() -> None:
    text = PICTURES["saga"].to_svg()

    for word in ("step · completed", "step · failed", "compensation · pending"):
        assert f">{word}</text>" in text
    assert set(COLOURS) == set(NodeStatus)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_reads_on_its_own_ground_and_lines_on_light_and_dark_pages() -> None:
    for colour in COLOURS.values():
        assert _contrast(colour.fill, colour.text) >= 4.5
    strokes = set(re.findall(r'stroke="(#[0-9a-f]{6})" stroke-width="[\d.]+"/?>', PICTURES["order"].to_svg()))
    for edge_colour in ("#2563eb", "#64748b", "#8492a6", "#dc2626"):
        assert _contrast(edge_colour, "#ffffff") >= 3
        assert _contrast(edge_colour, "#0d1117") >= 3
    assert strokes


def test_a_late_step_and_many_attempts_are_told() -> None:
    history = start_history(order()).claim("charge").fail("charge", retry_in=400).advance(minutes=5)

    assert "step · retrying · 2 attempts · overdue" in graph(history.case()).to_svg()


def test_a_long_name_is_cut_and_stays_whole_in_its_title() -> None:
    text = svg("t", [_node("n" * 80)], [])

    assert "…</text>" in text
    assert f"<title>{'n' * 80}" in text


def test_a_graph_of_nothing_is_a_picture_too() -> None:
    _parsed(svg("nothing", [], []))
    assert mermaid([], []) == "flowchart TB\n"


@pytest.mark.parametrize("name", NASTY)
def test_no_name_breaks_out_of_an_svg(name: str) -> None:
    nodes = [_node(name), _node("b")]
    root = _parsed(svg(name, nodes, [_edge(name, "b", condition=name, outcome=name)]))

    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "g", "rect", "text", "path"}


# --- Mermaid --------------------------------------------------------------------------------------------------------


def test_a_flowchart_tells_states_and_routes() -> None:
    lines = PICTURES["order"].to_mermaid().splitlines()

    assert lines[0] == "flowchart TB"
    assert '    n0["charge<br/>step · completed"]:::completed' in lines
    assert '    n4{{"review<br/>approval · waiting"}}:::waiting' in lines
    assert '    n5(["complete"]):::waiting' in lines
    assert "    n0 ==> n2" in lines
    assert '    n0 -.->|"error (compensation)"| n1' in lines
    assert '    n3 -->|"check.amount #62; 100"| n4' in lines
    assert "    style n2 stroke-width:4px" in lines


@pytest.mark.parametrize("name", NASTY)
def test_no_name_breaks_out_of_a_flowchart(name: str) -> None:
    text = mermaid([_node(name), _node("b")], [_edge(name, "b", condition=name)])

    assert len(text.splitlines()) == 5
    for label in re.findall(r'"(.*)"', text):
        assert not set('"<>[]{}|;`') & set(re.sub(r"#\d+;|<br/>", "", label))


# --- layout ---------------------------------------------------------------------------------------------------------


def _boxes(picture: Picture, links: list[Link]) -> list[tuple[float, float, float, float]]:
    boxes = [(x, y, BOX_WIDTH, BOX_HEIGHT) for x, y in picture.boxes.values()]
    labels = [(line.label, link) for line, link in zip(picture.lines, links, strict=True) if line.label is not None]
    return boxes + [(at[0], at[1], link.label_width, LABEL_HEIGHT) for at, link in labels]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], list[Link]]:
    names = [f"n{number}" for number in range(draw(st.integers(1, 9)))]
    ends = st.sampled_from(names)
    width = st.sampled_from((0.0, 0.0, 40.0, 200.0))
    return names, draw(st.lists(st.builds(Link, ends, ends, width), max_size=14))


@given(graphs())
def test_no_box_and_no_label_lies_upon_another(given_: tuple[list[str], list[Link]]) -> None:
    names, links = given_
    # Of several loops to the same box only one is drawn by workflows; their labels share a place.
    links = [link for i, link in enumerate(links) if link.source != link.target or link not in links[:i]]
    seen: set[str] = set()
    links = [x for x in links if x.source != x.target or (x.source not in seen and not seen.add(x.source))]  # type: ignore[func-returns-value]

    picture = lay_out(names, links)

    assert set(picture.boxes) == set(names)
    assert len(picture.lines) == len(links)
    for (ax, ay, aw, ah), (bx, by, bw, bh) in itertools.combinations(_boxes(picture, links), 2):
        apart = abs(ax - bx) >= (aw + bw) / 2 - 0.01 or abs(ay - by) >= (ah + bh) / 2 - 0.01
        assert apart
    for x, y, w, h in _boxes(picture, links):
        assert -0.01 <= x - w / 2 <= x + w / 2 <= picture.width + 0.01
        assert -0.01 <= y - h / 2 <= y + h / 2 <= picture.height + 0.01


@given(graphs())
def test_every_line_goes_from_its_source_to_its_target(given_: tuple[list[str], list[Link]]) -> None:
    names, links = given_
    picture = lay_out(names, links)

    for link, line in zip(links, picture.lines, strict=True):
        for name, (x, y) in ((link.source, line.points[0]), (link.target, line.points[-1])):
            box_x, box_y = picture.boxes[name]
            assert abs(x - box_x) <= BOX_WIDTH / 2 + 0.01
            assert abs(y - box_y) <= BOX_HEIGHT / 2 + 0.01
        assert (line.label is not None) == bool(link.label_width)


def test_a_chain_of_thousands_of_steps_is_laid_out() -> None:
    names = [f"n{number}" for number in range(3000)]
    links = [Link(a, b) for a, b in itertools.pairwise(names)]

    assert len(lay_out(names, links).boxes) == 3000


def test_time_is_not_part_of_a_picture() -> None:
    history = start_history(order())
    early = graph(history.case()).to_svg()
    history.clock.advance(timedelta(seconds=30))

    assert graph(history.case()).to_svg() == early
