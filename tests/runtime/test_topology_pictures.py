"""Pictures of machines can be read: no text is small or lies on another; what they show."""

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings

from ncc_runtime.placement import place
from ncc_runtime.report.topology.canvas import DARK, GROUP_COLOURS, LIGHT
from ncc_runtime.report.topology.overlay import FaultMark, Load, Overlay, RankGroups
from ncc_runtime.report.topology.svg import MOST_INSTANCES, as_svg, share_text
from ncc_runtime.topology import fault_names
from ncc_runtime.topology.format.spec import example_names, preset_names
from ncc_runtime.topology.graph import Topology, build
from tests.draws_topology import fabrics
from tests.example_count import examples

EVERY = [*preset_names(), *example_names()]


def loaded(topology: Topology, share: float = 0.684) -> Overlay:
    """Every link and adapter is as busy."""
    names = [topology.links.name(link) for link in range(len(topology.links))]
    if topology.efa is not None:
        names += [
            f"n{node}.efa{number} {way}"
            for node in range(topology.nodes)
            for number in range(topology.efa.adapters)
            for way in ("out", "in")
        ]
    return Overlay(dict.fromkeys(names, Load(10**9, share)))


def texts(root: ElementTree.Element) -> list[tuple[str, float, float, float, float]]:
    """Every text with the box that it takes: left, top, right, bottom, at the width of Arial."""
    found = []
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        kinds = text.attrib["class"].split()
        words, x, y = text.text or "", float(text.attrib["x"]), float(text.attrib["y"])
        size = 11 if {"small", "rank", "load", "bad"} & set(kinds) else 12
        width = len(words) * size * (0.55 if "title" in kinds else 0.5)
        left = x - width * (0.5 if {"middle", "rank"} & set(kinds) else "end" in kinds)
        found.append((words, left, y - 0.72 * size, left + width, y))
    return [each for each in found if each[0]]


def overlapping(root: ElementTree.Element) -> list[tuple[str, str]]:
    rows = texts(root)
    boxes = np.array([row[1:] for row in rows])
    left, top, right, bottom = boxes.T
    apart = (right[:, None] <= left) | (right <= left[:, None])
    apart |= (bottom[:, None] <= top) | (bottom <= top[:, None])
    pairs = zip(*np.nonzero(~apart), strict=True)
    return [(rows[a][0], rows[b][0]) for a, b in pairs if a < b]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("shown", ["alone", "ranks", "loads", "instances"])
def test_no_text_lies_on_another(name: str, shown: str) -> None:
    topology = build(name)
    if shown == "instances" and topology.efa is not None:
        topology = build(name, 2)
    placement = None if shown == "alone" else place(topology, topology.max_ranks)
    overlay = loaded(topology) if shown in ("loads", "instances") else Overlay()
    root = ElementTree.fromstring(as_svg(topology, placement, overlay))
    assert overlapping(root) == []


@given(topology=fabrics())
@settings(max_examples=examples(30))
def test_boxes_and_texts_of_any_fabric_are_inside_the_picture(topology: Topology) -> None:
    placement = place(topology, topology.max_ranks)
    root = ElementTree.fromstring(as_svg(topology, placement, loaded(topology)))
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for words, left, top, right, bottom in texts(root):
        assert left >= 0 and right <= width + 1, words  # noqa: PT018
        assert top >= 0 and bottom <= height, words  # noqa: PT018


def test_letters_have_eleven_pixels_or_more() -> None:
    style = ElementTree.fromstring(as_svg(build("trn2"))).findtext("{*}style") or ""
    sizes = [word for word in style.replace(";", " ").split() if word.endswith("px")]
    fonts = [float(word[:-2]) for word in sizes if float(word[:-2]) > 8]
    assert fonts
    assert min(fonts) >= 11


def luminance(colour: str) -> float:
    """Of WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_has_a_contrast_of_four_and_a_half(colours: dict[str, str]) -> None:
    grounds = ["frame", "chip", "rank", "switch", *(f"group{n}" for n in range(GROUP_COLOURS))]
    pairs = [("ink", ground) for ground in grounds]
    pairs += [("faint", "frame"), ("faint", "chip"), ("bad", "frame")]
    for ink, ground in pairs:
        low, high = sorted((luminance(colours[ink]), luminance(colours[ground])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground)


def drawn(topology: Topology, overlay: Overlay | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(
        as_svg(topology, place(topology, topology.max_ranks), overlay or Overlay())
    )


def of_kind(root: ElementTree.Element, tag: str, kind: str) -> list[ElementTree.Element]:
    return [each for each in root.findall(f"{{*}}{tag}") if kind in each.attrib["class"].split()]


def test_several_instances_have_their_adapters_and_the_network() -> None:
    topology = build("trn1", 3)
    root = drawn(topology)
    adapters = [box.attrib["data-name"] for box in of_kind(root, "rect", "adapter")]
    assert adapters == [f"n{node}.efa{number}" for node in range(3) for number in range(8)]
    words = {each.text for each in root.findall("{*}text")}
    assert {"instance 0", "instance 2", "EFA: 8 adapters an instance, 12.5 GB/s each way"} <= words
    assert {"c0-c1", "c46-c47"} <= words
    assert not of_kind(drawn(build("trn1")), "rect", "adapter")


def test_of_very_many_instances_the_first_are_drawn() -> None:
    topology = build("trn1", MOST_INSTANCES + 4)
    root = drawn(topology)
    assert len(of_kind(root, "rect", "chip")) == MOST_INSTANCES * 16
    assert "and 4 more instances, wired alike" in {each.text for each in root.findall("{*}text")}


@pytest.mark.parametrize(("share", "step"), [(0.0, 0), (0.1, 1), (0.2, 2), (0.79, 4), (0.8, 5)])
def test_a_line_is_as_wide_as_it_was_busy_and_says_how_much(share: float, step: int) -> None:
    topology = build("trn2")
    root = drawn(topology, Overlay({"c0.E": Load(10**9, share)}))
    lines = [
        line
        for line in root.findall("{*}polyline")
        if (line.findtext("{*}title") or "").startswith("c0.E>c1")
    ]
    assert [line.attrib["class"].split()[-1] for line in lines] == [f"load{step}"]
    words = [each.text for each in root.findall("{*}text") if "%" in (each.text or "")]
    assert words == ([f"→{share:.0%}"] if share else [])


def test_a_share_is_written_in_whole_per_cent() -> None:
    assert [share_text(share) for share in (0, 0.001, 0.0149, 0.675, 1)] == [
        *("", "<1%", "1%", "68%", "100%")
    ]


def legend_of(name: str, nodes: int = 1) -> set[str]:
    topology = build(name, nodes)
    legend = drawn(topology, Overlay({topology.links.name(0): Load(10**9, 0.5)})).find("{*}g")
    assert legend is not None
    return {each.text for each in legend.iter() if each.text}


def test_the_legend_says_of_which_links_each_way_has_a_line() -> None:
    assert "link, a line for each way" in legend_of("trn2")
    assert "link, both ways" in legend_of("dgx-h100", 2)
    assert "link, a line for each way; at a switch one for both" in legend_of("trn3")


def test_groups_are_colours_and_a_legend() -> None:
    topology = build("trn2")
    group = np.arange(64) % 16
    division = RankGroups((3,), "p3 all-reduce", group, tuple(f"of {n}" for n in range(16)))
    root = drawn(topology, Overlay(groups=division))
    for rank, slot in enumerate(of_kind(root, "rect", "rank")):
        assert f"group{group[rank] % GROUP_COLOURS}" in slot.attrib["class"]
        assert f"group {group[rank]}: of {group[rank]}" in (slot.findtext("{*}title") or "")
    legend = " ".join(each.text or "" for each in root.iter() if each.text)
    assert "colours of ranks: p3 all-reduce" in legend
    assert "of 11" in legend
    assert "and 4 more groups" in legend


def test_what_is_wrong_is_marked_by_more_than_a_colour() -> None:
    faults = [fault_names.down("c0-c1"), fault_names.slow("c5-c6=50%")]
    faults.append(fault_names.slow("c3.core2=50%"))
    root = drawn(build("trn2", faults=faults))
    words = [each.text for each in root.findall("{*}text")]
    assert words.count("down") == 1
    assert words.count("64") == 1  # GB/s
    assert words.count("13▾") == 1
    legend = {each.text for each in root.find("{*}g") if each.text}
    assert {"a link is down here", "a link is slow here, and its GB/s"} <= legend
    assert "a rank on a slow core" in legend
    marked = drawn(build("trn2", 2), Overlay(faults=[FaultMark("x", {0}, {(1, 2)}, {5})]))
    assert [
        box.attrib["data-name"]
        for box in of_kind(marked, "rect", "fault")
        if "data-name" in box.attrib
    ] == ["n1.efa2"]
    assert "fault: x" in [each.text for each in marked.findall("{*}text")]


def test_loads_of_both_directions_have_lines_of_their_own() -> None:
    topology = build("trn2")
    root = drawn(topology, loaded(topology))
    titles = [line.findtext("{*}title") or "" for line in root.findall("{*}polyline")]
    both = [title for title in titles if title.startswith(("c0.E>", "c1.W>"))]
    assert len(both) == 2
    assert all("68.4% of what it could pass" in title for title in both)
    assert len(list(itertools.filterfalse(None, titles))) == 0
