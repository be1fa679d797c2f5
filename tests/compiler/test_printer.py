"""Printing: what is printed reads back as an equal graph."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.attributes import read_attribute, spell_attribute
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.op_tables.op_row import AttrKind
from ncc_compiler.ir.text.printer import print_module
from tests import draws, draws_graphs
from tests.compiler.reading import SUM, load
from tests.example_count import examples


def reread(module: Module) -> Module:
    return load_module(Source("printed.ir", print_module(module)))


@pytest.mark.parametrize("name", ["mlp_train_dp2_tp4", "collective_zoo"])
def test_real_program_survives_being_printed_and_read(name: str) -> None:
    module = load((draws.HLO / f"{name}.hlo").read_text())
    assert reread(module) == module


@given(draws.modules())
def test_any_text_a_module_can_hold_survives(module: Module) -> None:
    assert reread(module) == module


@given(draws_graphs.cases())
@settings(max_examples=examples(50))
def test_any_drawn_program_survives(case: draws_graphs.Case) -> None:
    assert reread(case.module) == case.module


CANONICAL = """HloModule main, replica_count=4, num_partitions=1

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4,2]) -> f32[2] {
  %x = f32[4,2] parameter(0)
  %k = f32[4] constant({ 1, 2.5, -inf, nan })
  %y = f32[4,2] all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%sum
  %z = f32[2,2] slice(%y), slice={[0:2], [0:2]}
  %s = f32[] constant(0)
  ROOT %r = f32[2] reduce(%z, %s), dimensions={0}, to_apply=%sum, metadata={op_name="r"}
}
"""


def test_canonical_text_is_printed_unchanged() -> None:
    assert print_module(load(CANONICAL)) == CANONICAL


def test_bare_text_becomes_canonical() -> None:
    text = SUM + "x = f32[2] parameter(0)\ny = f32[2] all-reduce(x), to_apply=sum\n"
    assert print_module(load(text, ranks=2)).splitlines()[-4:] == [
        "ENTRY %main (x: f32[2]) -> f32[2] {",
        "  %x = f32[2] parameter(0)",
        "  ROOT %y = f32[2] all-reduce(%x), to_apply=%sum",
        "}",
    ]


integers = st.lists(st.integers(-9, 9), max_size=3).map(tuple)
VALUES = [
    (AttrKind.INTEGER, st.integers(-(10**9), 10**9)),
    (AttrKind.BOOLEAN, st.booleans()),
    (AttrKind.WORD, st.sampled_from(["EQ", "FLOAT"])),
    (AttrKind.INTEGERS, integers),
    (AttrKind.SLICES, st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1).map(tuple)),
    (AttrKind.GROUPS, draws.replica_groups()),
    (AttrKind.PAIRS, draws.pairs),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[kind.name for kind, _ in VALUES])
def test_attribute_survives_being_spelt_and_read(kind: AttrKind, values) -> None:
    @given(values)
    def survives(value) -> None:
        assert read_attribute(kind, spell_attribute(value)) == value

    survives()
