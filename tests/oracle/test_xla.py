"""XLA's CPU backend runs the same HLO text: drawn graphs, spellings of groups, seldom ops."""

import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.graph import Computation, Node
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import parse_groups
from tests.draws_graphs import Case, cases
from tests.oracle.closeness import assert_close
from tests.oracle.xla import CannotRunError, Xla
from tests.reference_runs import reference_outputs

patient = settings(
    max_examples=200,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def xla_has_an_answer(case: Case) -> bool:
    """Not if it folds single elements, where it drops initial values, pads or scatters scalars, nor
    if it computes with integers of one bit, which it takes for pred: 1 + 1 is 1 there.

    An initial value that is no identity may be used any number of times, says the specification;
    padding of no dimension has no text that XLA's parser takes; and of several updates without
    an index its expander keeps the last.
    """
    return not any(
        is_of_nothing(computation, node)
        for computation in case.module.computations.values()
        for node in computation.nodes
    )


def is_of_nothing(computation: Computation, node: Node) -> bool:
    """Whether a fold gives as many elements as it takes, there is no dimension to act on, or no
    more than a bit.
    """
    if isinstance(node.type, ArrayType) and node.type.dtype in (DType.S1, DType.U1):
        return True
    if node.op == "pad":
        return not node.attributes["padding"].dimensions
    if node.op == "scatter":
        return not node.attributes["scatter_dims_to_operand_dims"]
    if node.op not in ("reduce", "reduce-window"):
        return False
    result = node.type.elements[0] if isinstance(node.type, TupleType) else node.type
    return computation.nodes[node.operands[0]].type.elements == result.elements


@patient
@given(case=cases(most_ops=10).filter(xla_has_an_answer))
def test_xla_reads_what_we_print_and_computes_the_same(case, xla: Xla) -> None:
    text = print_module(case.module)
    try:
        theirs = xla.run(text, case.inputs)
    except CannotRunError:  # it has gaps of its own, a window without dimensions for one
        reject()
    run = ncc_runtime.load(ncc_compiler.compile_text(text), topology="trn2").run(list(case.inputs))
    means = reference_outputs(case.module, case.inputs)
    for ours, meant, right, allowed in zip(
        run.outputs, means, theirs, case.tolerances, strict=True
    ):
        assert_close(ours, right, allowed)
        assert_close(meant, right, allowed)


@pytest.mark.parametrize("channel", ["", ", channel_id=0", ", channel_id=-3", ", channel_id=3"])
@pytest.mark.parametrize(
    "op",
    [
        "collective-permute(x), source_target_pairs={{0,1}}",
        "all-to-all(x), replica_groups={{1,0}}, dimensions={0}",
        "all-reduce(x), replica_groups={{1,0}}, to_apply=sum",
    ],
)
def test_a_channel_says_to_xla_what_it_says_to_us(op: str, channel: str, xla: Xla) -> None:
    text = f"""HloModule m, replica_count=2, num_partitions=2
sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
ENTRY main {{
  x = f32[4] parameter(0)
  ROOT r = f32[4] {op}{channel}
}}
"""
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    (theirs,) = xla.run(text, [x])
    run = ncc_runtime.load(ncc_compiler.compile_text(text), topology="trn2").run([x])
    assert_close(run.outputs[0], theirs)


GATHER = """HloModule groups, num_partitions=8

ENTRY %main (x: s32[1]) -> s32[{size}] {{
  %x = s32[1] parameter(0)
  ROOT %y = s32[{size}] all-gather(%x), channel_id=1, replica_groups={groups}, \
use_global_device_ids=true, dimensions={{0}}
}}
"""


ORDERS = ["[8]", "[2,4]T(1,0)", "[4,2]T(1,0)", "[2,2,2]T(2,0,1)"]


@st.composite
def spellings(draw) -> str:
    """Groups of eight devices, all of one size."""
    kind = draw(st.sampled_from(["listed", "count", "mesh"]))
    size = draw(st.sampled_from([1, 2, 4, 8]))
    if kind == "listed":
        ids = draw(st.permutations(range(8)))
        rows = [",".join(map(str, ids[k : k + size])) for k in range(0, 8, size)]
        return "{" + ",".join(f"{{{row}}}" for row in rows) + "}"
    if kind == "count":
        order = draw(st.sampled_from(ORDERS))
        return f"[{8 // size},{size}]<={order}"
    axes, groups = draw(
        st.sampled_from(
            [
                ("'a'=2,'b'=4", ["'a'", "'b'", "'a','b'", "'b','a'", "'b':(1)2", "'b':(2)2"]),
                ("'a'=2,'b'=2,'c'=2", ["'a'", "'c','a'", "'b'", "'a','b'"]),
                ("'x'=8", ["'x'", "'x':(2)2", "'x':(1)4", "'x':(4)2"]),
            ]
        )
    )
    return f"mesh[{axes}] {{{draw(st.sampled_from(groups))}}}"


@patient
@given(groups=spellings())
def test_a_spelling_of_groups_means_what_it_means_to_xla(groups: str, xla: Xla) -> None:
    expanded = parse_groups(groups).expand()
    text = GATHER.format(groups=parse_groups(groups), size=len(expanded[0]))
    gathered = xla.run(text, [np.arange(8, dtype=np.int32)[:, None]])[0]
    assert {rank: tuple(gathered[rank].tolist()) for rank in range(8)} == {
        rank: group for group in expanded for rank in group
    }


@pytest.mark.parametrize("order", ORDERS)
def test_the_devices_of_a_mesh_stand_where_xla_puts_them(order: str) -> None:
    """Asked of a sharding: the way into the backend forgets the order that a mesh gives."""
    (members,) = parse_groups(f"mesh['a'=4,'b'=2], device_ids=({order}) {{'a','b'}}").expand()
    question = f"print(_hlo.HloSharding.from_string('{{devices=[8]<={order}}}')"
    asked = f"from jaxlib import _hlo; {question}.tile_assignment_devices())"
    command = [sys.executable, "-c", asked]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert list(members) == [int(number) for number in re.findall(r"\d+", answer)]


SELDOM = {
    "cholesky": "%t = f32[5,5] transpose(%x), dimensions={1,0}\n"
    "%p = f32[5,5] dot(%x, %t), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "%i = s32[5,5] iota(), iota_dimension=0\n%j = s32[5,5] iota(), iota_dimension=1\n"
    "%e = pred[5,5] compare(%i, %j), direction=EQ\n%n = f32[5,5] convert(%e)\n"
    "%s = f32[5,5] add(%p, %n)\nROOT %r = f32[5,5] cholesky(%s), lower=true",
    "triangular solve from the left": "%i = s32[5,5] iota(), iota_dimension=0\n"
    "%j = s32[5,5] iota(), iota_dimension=1\n%e = pred[5,5] compare(%i, %j), direction=EQ\n"
    "%n = f32[5,5] convert(%e)\n%m = f32[5,5] add(%n, %n)\n%s = f32[5,5] add(%x, %m)\n"
    "%a = f32[5,5] abs(%s)\n"
    "ROOT %r = f32[5,5] triangular-solve(%a, %x), left_side=true, lower=true, "
    "transpose_a=NO_TRANSPOSE",
    "triangular solve with a unit diagonal": "ROOT %r = f32[5,5] triangular-solve(%x, %x), "
    "left_side=false, lower=false, unit_diagonal=true, transpose_a=TRANSPOSE",
    "topk": "ROOT %r = (f32[5,3], s32[5,3]) topk(%x), k=3, largest=true",
    "fft of a real array": "%f = c64[5,3] fft(%x), fft_type=RFFT, fft_length={5}\n"
    "ROOT %r = f32[5,5] fft(%f), fft_type=IRFFT, fft_length={5}",
    "reduce-precision": "ROOT %r = f32[5,5] reduce-precision(%x), exponent_bits=4, mantissa_bits=3",
    "interior and negative padding": "%z = f32[] constant(-2.5)\n"
    "ROOT %r = f32[10,3] pad(%x, %z), padding=2_-1_1x-1_-1_0",
    "rounding": "%h = f32[] constant(2)\n%b = f32[5,5] broadcast(%h), dimensions={}\n"
    "%d = f32[5,5] multiply(%x, %b)\n%a = f32[5,5] round-nearest-afz(%d)\n"
    "%e = f32[5,5] round-nearest-even(%d)\nROOT %r = (f32[5,5], f32[5,5]) tuple(%a, %e)",
    "total order": "ROOT %r = pred[5,5] compare(%x, %x), direction=LT, type=TOTALORDER",
}


@pytest.mark.parametrize("name", SELDOM)
def test_a_seldom_op_computes_what_xla_computes(name: str, xla: Xla) -> None:
    body = SELDOM[name]
    root = body.rpartition("ROOT %r = ")[2]
    type_ = root[: root.index(")") + 1] if root.startswith("(") else root.split()[0]
    head = f"HloModule m, replica_count=2\n\nENTRY %main (x: f32[5,5]) -> {type_} {{\n"
    text = f"{head}%x = f32[5,5] parameter(0)\n{body}\n}}\n"
    x = np.random.default_rng(7).standard_normal((2, 5, 5)).astype(np.float32)
    theirs = xla.run(print_module(load_module(Source("m.hlo", text))), [x])
    run = ncc_runtime.load(ncc_compiler.compile_text(text), topology="trn2").run([x])
    meant = reference_outputs(load_module(Source("m.hlo", text)), [x])
    for ours, means, right in zip(run.outputs, meant, theirs, strict=True):
        assert_close(ours, right)
        assert_close(means, right)
