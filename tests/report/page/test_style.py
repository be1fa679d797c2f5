"""The style sheet: what is written on bars, and beside them, can be read in both themes."""

import re

import pytest

from ncc_runtime.report.page.page import ASSETS
from ncc_runtime.report.topology.canvas import DARK, LIGHT
from tests.runtime.test_topology_pictures import luminance

STYLE = (ASSETS / "page.css").read_text()


def colours_of(theme: str) -> dict[str, str]:
    """The first block that begins with the colours of a theme."""
    block = STYLE.split(f"/*{theme}*/", 1)[1].split("}", 1)[0]
    return {
        **(LIGHT if theme == "light" else DARK),
        **dict(re.findall(r"--(\w+): (#\w{6})", block)),
    }


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_on_bars_and_on_the_page_have_a_contrast_of_four_and_a_half(theme: str) -> None:
    colours = colours_of(theme)
    bars = ["compute", "both", "exposed", "idle", "engine", "wait", *(f"op{n}" for n in range(8))]
    for bar in bars:
        assert contrast(colours["label"], colours[bar]) >= 4.5, bar
    for ink in ("ink", "faint", "link"):
        for ground in ("page", "panel"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    assert contrast(colours["ink"], colours["bar"]) >= 4.5


def test_both_ways_to_the_dark_theme_have_the_same_colours() -> None:
    first, second = (block.split("}", 1)[0] for block in STYLE.split("/*dark*/")[1:3])
    assert re.findall(r"--\w+: [^;]+", first) == re.findall(r"--\w+: [^;]+", second)


def test_every_colour_that_a_script_asks_for_is_there() -> None:
    known = colours_of("light")
    for script in sorted(ASSETS.glob("*.js")):
        for name in re.findall(r'colour\("(\w+)"\)', script.read_text()):
            assert name in known, (script.name, name)
