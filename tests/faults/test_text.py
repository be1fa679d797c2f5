"""Faults as text: one form of each is printed and reads back; nothing that is typed ends badly."""

import contextlib
import random
import re
from pathlib import Path

import pytest

from ncc_runtime.errors import InputError
from ncc_runtime.execution.disturbance import FULL_SPEED
from ncc_runtime.faults.fault import Fault, Kind, When
from ncc_runtime.faults.laws import Draws, Law
from ncc_runtime.faults.text import parse

ROOT = Path(__file__).parents[2]

CANONICAL = """\
at 120us: link c0-c1 down for 50us
rank 3 slow to 50%
rank 0-7 slow by lognormal(1, 0.3)
rank * slow by exponential(0.2)
rank * slow by uniform(1, 1.5)
rank * slow by normal(1, 0.05)
rank * slow by pareto(1, 3)
rank 3 late by 100us
rank * late by exponential(20us)
rank * late by lognormal(20us, 0.3)
rank * late by uniform(1us, 20us)
rank * late by pareto(1us, 2.5)
at 1ms: rank 3 dead
at run 2 of all-reduce.1: rank 3 dead
at run 1 of p0: core c5.core0 dead for 2s
at 1ms: core c5.core0 slow to 12.34% for 1.5ms
chip c3 dead
link c0>c1 slow to 64GB/s
link c0.E slow to 0.01%
link c0.E>c1 flaps 10us of every 100us
link s0-c1 down
at 1ps: adapter n0.efa3 down for 1ps
adapter n0.efa3 flaps 1us of every 2us
adapter * loses 0.1%
adapter n1.efa0 slow to 0.001GB/s
instance n1 has mtu 1500
at 3us: ring cc0.dma0 on rank 3 stuck for 5us
completion 5 of cc0.dma0 on rank 3 lost
completion 0 of cc0.dma0 on rank 3 doubled
completion 5 of cc0.dma0 on rank 3 late by 10us
completion 5 of cc0.dma0 on rank 3 late by exponential(10us)
bit 3 of transfer 5 of cc0.dma0 on rank 3 flips
at 20us: bit 3 of element 100 of arg0 on rank 3 flips
at 20us: bit 3 of byte 2310 on rank 3 flips
"""


@pytest.mark.parametrize("text", CANONICAL.splitlines())
def test_the_printed_form_is_read_back(text: str) -> None:
    assert str(parse(text)) == text


def test_every_kind_has_a_form() -> None:
    assert {parse(text).kind for text in CANONICAL.splitlines()} == set(Kind)


@pytest.mark.parametrize(
    ("friendly", "canonical"),
    [
        ("link c0-c1 down at 120us for 50us", "at 120us: link c0-c1 down for 50us"),
        ("link c0-c1 down from 120us until 170us", "at 120us: link c0-c1 down for 50us"),
        ("core c5.core0 slow to 50% until 2 ms", "core c5.core0 slow to 50% for 2ms"),
        ("  rank 3   slow by 2 ", "rank 3 slow to 50%"),
        ("rank 3-3 dead at run 2 of p1", "at run 2 of p1: rank 3 dead"),
        ("at 0us: chip c03 dead", "chip c3 dead"),
        ("link c0-c1 slow to 500MB/s", "link c0-c1 slow to 0.5GB/s"),
        ("rank 1 late by 0.1ms", "rank 1 late by 100us"),
        ("rank * slow by exponential(1, 0.2)", "rank * slow by exponential(0.2)"),
    ],
)
def test_other_ways_to_say_it_are_read(friendly: str, canonical: str) -> None:
    assert str(parse(friendly)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 1, at the end"),
        ("lnk c0-c1 down", "column 1, at 'lnk'.*did you mean link"),
        ("at 120us: link c0-c1 dwn for 50us", "column 22, at 'dwn'.*did you mean down"),
        ("at 120us: link c0-c1", "column 21, at the end"),
        ("rank 3 slow by 50%", "say slow to 50%"),
        ("rank 3 slow to 50", "column 16, at '50'.*a percentage"),
        ("rank 3 slow to 0%", "no speed"),
        ("rank 3 slow to 200%", "no speed"),
        ("rank 3 slow to 1.234%", "two digits behind the point"),
        ("rank 3 slow to 1e999999999%", "no speed|column 16"),
        ("rank 3 slow by 0.5", "as long"),
        ("rank 9-3 dead", "the first comes first"),
        ("rank 9999999999999 dead", "too large"),
        ("core c5 dead", "no core"),
        ("chip 5 dead", "column 6, at '5'"),
        ("link c0c1 down", "no link"),
        ("adapter c0 down", "no adapter"),
        ("adapter n0.efa3 loses 90%", "at most 50%"),
        ("instance n1 has mtu 9", "256 to 65,536"),
        ("link c0-c1 flaps 10us of every 5us", "for a part"),
        ("link c0-c1 down for 0us", "lasts no time"),
        ("link c0-c1 down from 2us until 1us", "ends before it begins"),
        ("at 1us: link c0-c1 down at 2us", "says twice when"),
        ("link c0-c1 down for 1us for 2us", "says twice how long"),
        ("link c0-c1 down for 1us until 2us", "until goes with"),
        ("at 0.5ps: chip c0 dead", "whole number of picoseconds"),
        ("at 5000s: chip c0 dead", "more than 1,000 s"),
        ("at run 0 of p0: chip c0 dead", "count from 1"),
        ("rank * slow by pareto(1, 0.5)", "no mean"),
        ("rank * slow by uniform(2, 1)", "least number first"),
        ("rank * slow by lognormal(0.3)", "two numbers"),
        ("rank * slow by exponential(20us)", "no number"),
        ("rank * late by exponential(20)", "no time"),
        ("at 1us: completion 5 of cc0.dma0 on rank 3 lost", "has no time"),
        ("bit 3 of element 1 of arg0 on rank 3 flips for 2us", "no duration"),
        ("rank ３ dead", "column 6, at '３'"),
        ("rank 3 slow to 5０%", "column 16"),
        ("at ３us: rank 3 dead", "column 4, at '３us:'.*a time"),
        ("bit 3 of byte 2310 of arg0 on rank 3 flips", "column 20, at 'of': expected on"),
        ("bit 3 of byte 2310 on rank 3 flips for 2us", "no duration"),
        ("x" * 2000, "at most 1000 letters"),
    ],
)
def test_a_mistake_has_its_column_and_a_remedy(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)


def drawn_fault(draw: random.Random) -> Fault:
    """Any fault that a text can say."""
    kind = draw.choice(list(Kind))
    subject, _, state = kind.value.partition(".")
    is_time = state == "late"
    places = {
        "rank": ["*", "3", "0-63"],
        "core": ["c5.core0"],
        "chip": ["c12"],
        "link": ["c0-c1", "c3>c1", "c0.W&E", "s1x-c3"],
        "adapter": ["*", "n0.efa3"],
        "instance": ["n7"],
    }
    words: dict[str, object] = {"place": draw.choice(places.get(subject, ["cc1.dma0"]))}
    if kind is Kind.BIT_MEMORY:
        words |= {"place": "arg0", "element": draw.randrange(10**9), "bit": draw.randrange(64)}
        if draw.random() < 0.5:
            words |= {"place": "", "element": None, "byte": draw.randrange(10**11)}
    if subject in ("dma", "bit"):
        words["rank"] = draw.randrange(1024)
    if kind in (Kind.DMA_LOST, Kind.DMA_LATE, Kind.DMA_DOUBLED, Kind.BIT_TRANSFER):
        words["nth"] = draw.randrange(10**6)
    if kind is Kind.BIT_TRANSFER:
        words["bit"] = draw.randrange(10**9)
    if state == "flaps":
        down = draw.randrange(1, 10**9)
        words["flap_ps"] = (down, down + draw.randrange(1, 10**9))
    if state == "loses":
        words["loss"] = draw.choice([0.001, 0.5, draw.random() / 2, 1e-9 * draw.random()])
    if state == "mtu":
        words["amount"] = draw.randrange(256, 65_537)
    if state in ("slow", "late"):
        is_drawn = subject in ("rank", "dma") and draw.random() < 0.5
        if is_drawn:
            words["draws"] = drawn_law(draw, is_time=is_time)
        elif is_time:
            words["amount"] = draw.randrange(10 ** draw.randrange(1, 15))
        elif subject in ("link", "adapter") and draw.random() < 0.5:
            words["amount"] = draw.choice([10**15, 10**6, draw.randrange(10**6, 10**15)])
        else:
            words["speed"] = draw.randrange(1, FULL_SPEED + 1)
    when = When()
    if "nth" not in words and kind is not Kind.RANK_LATE:
        lasts = None if kind is Kind.BIT_MEMORY else draw.choice([None, draw.randrange(1, 10**15)])
        if draw.random() < 0.3:
            when = When(run=draw.randrange(1, 99), collective="all-reduce.1", for_ps=lasts)
        else:
            when = When(draw.choice([0, draw.randrange(10 ** draw.randrange(1, 15))]), for_ps=lasts)
    return Fault(kind, when=when, **words)  # type: ignore[arg-type]


def drawn_law(draw: random.Random, *, is_time: bool) -> Draws:
    law = draw.choice(list(Law))
    if is_time:
        first, second = sorted(float(draw.randrange(1, 10**12)) for _ in range(2))
    else:
        first, second = sorted(10 ** draw.uniform(-8, 8) for _ in range(2))
    if law in (Law.LOGNORMAL, Law.PARETO):
        second = draw.uniform(1.001, 9)
    return Draws(law, first, second, 0.0 if is_time else 1.0)


def test_drawn_faults_read_back_as_they_were_printed() -> None:
    draw = random.Random(19)
    for _ in range(1500):
        fault = drawn_fault(draw)
        assert parse(str(fault)) == fault, str(fault)


def test_texts_that_are_cut_and_mixed_are_read_or_refused() -> None:
    draw = random.Random(7)
    lines = CANONICAL.splitlines()
    words = sorted({word for line in lines for word in line.split()})
    odd = [
        "",
        "²",
        "٣",
        "\0",
        "1e999%",
        "1e-99999999%",
        "-1",
        "(",
        "nan",
        "é",
        "\u2028",
        '"',
        "%",
        "$",
    ]
    for _ in range(3000):
        text = draw.choice(lines).split(" ")
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(text) + 1)
            text[at : at + draw.randrange(3)] = [draw.choice([*words, *odd])]
        line = " ".join(text)
        if draw.random() < 0.3:
            line = line[: draw.randrange(len(line) + 1)]
        with contextlib.suppress(InputError):
            fault = parse(line)
            assert parse(str(fault)) == fault, line


def test_the_documents_list_every_form() -> None:
    section = (ROOT / "docs/faults.md").read_text().split("\n## ")[1]
    forms = re.findall(r"^\| `([^`]+)` \|", section.split("\n| key |")[0], re.MULTILINE)
    assert [str(parse(form)) for form in forms] == forms
    assert {parse(form).kind for form in forms} == {*Kind}
