"""What XLA's parser takes and refuses, our reader takes and refuses."""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from ncc_compiler.diagnostics import CompileError, Source
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.ir.types import ArrayType
from tests.oracle.xla_parser import XlaParser
from tests.reference_runs import reference_outputs
from tests.xla_texts import TEXTS


@pytest.fixture(scope="module")
def parser() -> Iterator[XlaParser]:
    running = XlaParser()
    yield running
    running.close()


def ours(text: str) -> Module | None:
    with contextlib.suppress(CompileError):
        return load_module(Source("t.hlo", text))
    return None


def drawn_inputs(module: Module) -> list[np.ndarray]:
    entry, random = module.entry_computation, np.random.default_rng(0)
    kinds = [entry.nodes[position].type for position in entry.parameters()]
    return [
        random.standard_normal((module.ranks, *kind.shape)).astype(kind.dtype.numpy)
        for kind in kinds
        if isinstance(kind, ArrayType)
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_xla_reads_the_same_program(parser: XlaParser, name: str) -> None:
    printed = parser.printed(TEXTS[name])
    assert printed is not None
    mine, theirs = ours(TEXTS[name]), ours(printed)
    assert mine is not None
    assert theirs is not None
    inputs = drawn_inputs(mine)
    outputs = zip(reference_outputs(mine, inputs), reference_outputs(theirs, inputs), strict=True)
    for one, other in outputs:
        np.testing.assert_array_equal(one, other)
    assert parser.printed(print_module(mine)) is not None


BODY = "ENTRY e {{ p = f32[4,8]{0} parameter(0) ROOT r = f32[4,8] exponential({1}p){2} }}"


def with_parts(header: str = "", layout: str = "", before: str = "", behind: str = "") -> str:
    head = f", {header}" if header else ""
    tail = f", {behind}" if behind else ""
    return f"HloModule m{head}\n{BODY.format(layout, before, tail)}\n"


LAYOUTS = (
    "{0,1} {1,0:T(8,128)(2,1)} {1,0:T(*,4)} {1,0:T()} {1,0:} {1,0:E(4)S(1)} {1,0:L(2)} "
    "{1,0:#(u32)*(u8)} {1,0:D(D,C)} {1,0:SC(1:2,3)M(3)}"
)
NO_LAYOUTS = (
    "{0} {0,1,2} {1,0,} {,} {1,0:T(8,)} {:T(8)} {1,0:E()} {1,0:E(x)} {1,0:S()} {1,0:S(1)E(4)} "
    "{1,0:S(1)T(8)} {1,0:SC(x)} {1,0:Q(1)} {1,0:T(8)T(8)} {1,0:t(8)} {1,0:T(8),E(4)} {1,0:D(X)}"
)
TAKEN = [with_parts(layout=layout) for layout in LAYOUTS.split(" ")]
TAKEN += [
    with_parts(before="f32[4,8] "),
    with_parts(before="f32[4,8]{0,1:T(8)} "),
    with_parts(behind="result_accuracy={mode=HIGHEST}"),
    with_parts(behind="result_accuracy={tolerance={rtol=0.5,ulps=2}}"),
    with_parts(behind='frontend_attributes={a.b="x",c={{0,1},{"}"}}}'),
    with_parts(behind='metadata={op_name="x",source_line=3}'),
    with_parts("input_output_alias={ {}: (0, {}), }"),
    with_parts("buffer_donor={ (0, {}), }, is_scheduled=false"),
    with_parts("allow_spmd_sharding_propagation_to_output=true"),
    with_parts("entry_computation_layout={(f32[4,8])->f32[4,8]{0,1}}"),
]

REFUSED = [with_parts(layout=layout) for layout in NO_LAYOUTS.split(" ")]
REFUSED += [
    with_parts(before="s32[4,8] "),
    with_parts(before="f32[8,4] "),
    with_parts(behind="result_accuracy={mode=lowest}"),
    with_parts(behind="result_accuracy={}"),
    with_parts(behind="result_accuracy={tolerance={atol=0 rtol=0}}"),
    with_parts(behind="result_accuracy={tolerance={atol=0,}}"),
    with_parts(behind="frontend_attributes={a=b}"),
    with_parts(behind="metadata=x"),
    with_parts(behind="backend_config=3"),
    with_parts(behind="dimensions={0}"),
    with_parts(behind="control-predecessors={q}"),
    with_parts("input_output_alias={ {}: 0 }"),
    with_parts("input_output_alias={ {}: (0, {}, maybe-alias) }"),
    with_parts("input_output_alias={ {1}: (0, {}) }"),
    with_parts("input_output_alias={ {}: (-1, {}) }"),
    with_parts("buffer_donor={ 0 }"),
    with_parts("buffer_donor={ (0, {}, may-alias) }"),
    with_parts("is_scheduled=1"),
    with_parts("is_scheduled=true, is_scheduled=true"),
    with_parts("replica_cout=2"),
    with_parts("entry_computation_layout={x}"),
]
VALUES = [
    ("nan(0x1)", "f8e4m3fnuz"),
    ("nan(0x1)", "f8e5m2fnuz"),
    ("nan(0x1)", "f8e4m3b11fnuz"),
    ("nan(0x1)", "f8e8m0fnu"),
    ("nan(0x7)", "f8e4m3fn"),
    ("nan(0x4)", "f8e5m2"),
    ("nan(0x80)", "bf16"),
    ("nan(0x800000)", "f32"),
    ("nan(0x0)", "f64"),
    ("2.0", "pred"),
]
REFUSED += [
    f"HloModule m\nENTRY e {{ ROOT r = {kind}[] constant({value}) }}\n" for value, kind in VALUES
]


@pytest.mark.parametrize("text", TAKEN)
def test_both_take(parser: XlaParser, text: str) -> None:
    assert parser.printed(text) is not None
    assert ours(text) is not None


@pytest.mark.parametrize("text", REFUSED)
def test_both_refuse(parser: XlaParser, text: str) -> None:
    assert parser.printed(text) is None
    assert ours(text) is None
