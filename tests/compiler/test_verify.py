"""Each rule of the op table broken once, with the exact place of the complaint."""

import re
from pathlib import Path

import attrs
import pytest

from ncc_compiler.ir.graph import Callee, Computation, Module, Node, NodeId
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.rules import FAMILIES, sentence
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.ir.verify import verify
from ncc_runtime.neff.shared.dtypes import DType
from tests.compiler.broken_indexing import WRONG_INDEXING
from tests.compiler.broken_windows import WRONG_WINDOWS
from tests.compiler.reading import SUM, complaints, load
from tests.compiler.test_control_rules import WRONG as WRONG_CONTROL
from tests.compiler.test_counted_rules import TWO_KINDS_OF_IDS
from tests.compiler.test_counted_rules import WRONG as WRONG_COUNTED
from tests.compiler.test_ncc_collectives import WRONG as WRONG_NCC
from tests.compiler.test_permuted_slices import WRONG as WRONG_SLICES
from tests.compiler.test_pipelined_transfers import SENT_LATER
from tests.compiler.test_sized_work import WRONG_WORK
from tests.compiler.test_transfers import WRONG as WRONG_TRANSFERS

PARAMETERS = """x = f32[2,3] parameter(0)
y = f32[3,4] parameter(1)
p = pred[2,3] parameter(2)
s = f32[] parameter(3)
c = c64[2] parameter(4)
i = s32[2,3] parameter(5)
t = (f32[], s32[]) parameter(6)
b = pred[1,3] parameter(7)
u = u32[2,3] parameter(8)
d = f32[2,3]{0,1} parameter(9)
g = f32[5,3,4] parameter(10)
z = s32[5] parameter(11)
n5 = f32[5] parameter(12)
"""
REGIONS = (
    SUM
    + """mean {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] add(a, b)
  ROOT d = f32[] multiply(c, c)
}
take {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] subtract(a, b)
}
"""
)
LINE = (REGIONS + PARAMETERS).count("\n") + 1

DOT = "lhs_contracting_dims={%s}, rhs_contracting_dims={%s}"
WRONG = [
    ("f32[2,3] add(x)", "op-C2", 10),
    ("f32[2,3] negate(x, x)", "op-C2", 20),
    ("f32[] negate(t)", "op-C4", 14),
    ("f32[3,2] negate(x)", "op-C5", 1),
    ("f32[] get-tuple-element(s), index=0", "get-tuple-element-C1", 25),
    ("f32[] get-tuple-element(t), index=2", "get-tuple-element-C2", 29),
    ("f32[] call(s), to_apply=sum", "call-C1", 16),
    ("f32[] call(s, x), to_apply=sum", "call-C2", 15),
    ("f32[2,3] add(x, y)", "add-C1", 17),
    ("f32[2,3] and(x, x)", "and-C2", 14),
    ("s32[2,3] mulhi(i, u)", "mulhi-C1", 19),
    ("f32[2,3] mulhi(x, x)", "mulhi-C2", 16),
    ("pred[2,3] negate(p)", "negate-C1", 18),
    ("pred[2,3] compare(x, i), direction=EQ", "compare-C1", 22),
    ("pred[2,3] compare(x, x), direction=XX", "compare-C2", 26),
    ("pred[2,3] compare(x, x), direction=LT, type=SIGNED", "compare-C3", 40),
    ("f32[2,3] select(x, x, x)", "select-C1", 17),
    ("f32[2,3] select(p, x, i)", "select-C2", 23),
    ("f32[2,3] select(b, x, x)", "select-C1", 17),
    ("f32[2,3] clamp(s, x, y)", "clamp-C1", 22),
    ("c64[2] complex(i, i)", "complex-C2", 16),
    ("f32[3] bitcast(x)", "bitcast-C1", 1),
    ("f32[7]{0} bitcast(d)", "bitcast-C1", 1),
    ("f32[3,2]{0,1:T(2,2)} bitcast(x)", "bitcast-C2", 1),
    ("pred[24] bitcast(x)", "bitcast-C1", 1),
    ("f6e2m3fn[2,3] bitcast-convert(x)", "bitcast-convert-C1", 1),
    ("u64[2] bitcast-convert(c)", "bitcast-convert-C2", 1),
    ("s32[2,3] reduce-precision(i), exponent_bits=5, mantissa_bits=2", "reduce-precision-C1", 27),
    ("f32[2,3] reduce-precision(x), exponent_bits=0, mantissa_bits=2", "reduce-precision-C2", 31),
    ("u8[2,3] stochastic-convert(x, u)", "stochastic-convert-C1", 1),
    ("s8[2,3] stochastic-convert(x, i)", "stochastic-convert-C2", 31),
    ("f32[2,3] map(x, y), dimensions={0,1}, to_apply=sum", "map-C1", 17),
    ("f32[2,3] map(x, x), dimensions={1,0}, to_apply=sum", "map-C2", 21),
    ("f32[2,3] map(x, i), dimensions={0,1}, to_apply=sum", "map-C3", 39),
    ("s32[2] iota(), iota_dimension=1", "iota-C1", 16),
    ("pred[2] iota(), iota_dimension=0", "iota-C2", 1),
    ("f32[2,3] broadcast(x), dimensions={0}", "broadcast-C1", 24),
    ("f32[2,3] broadcast(x), dimensions={0,0}", "broadcast-C2", 24),
    ("f32[2,4] broadcast(x), dimensions={0,1}", "broadcast-C3", 24),
    ("f32[7] reshape(x)", "reshape-C1", 1),
    ("f32[3,2] transpose(x), dimensions={1,1}", "transpose-C1", 24),
    ("f32[2] slice(x), slice={[0:2]}", "slice-C1", 18),
    ("f32[2,3] slice(x), slice={[0:2], [0:4]}", "slice-C2", 20),
    ("f32[2,3] slice(x), slice={[0:2], [0:3:0]}", "slice-C2", 20),
    ("f32[4,3] concatenate(x, x), dimensions={2}", "concatenate-C1", 29),
    ("f32[4,3] concatenate(x, i), dimensions={0}", "concatenate-C2", 25),
    ("f32[5,3] concatenate(x, y), dimensions={0}", "concatenate-C3", 25),
    ("f32[2,4] dot(x, y), " + DOT % ("2", "0"), "dot-C1", 21),
    ("f32[2,3,4] dot(x, y), " + DOT % ("1", ""), "dot-C2", 49),
    ("f32[3,3] dot(x, y), " + DOT % ("1", "1"), "dot-C3", 47),
    ("f32[2,2] dot(x, p), " + DOT % ("1", "1"), "dot-C4", 17),
    ("s32[2,2] dot(x, x), " + DOT % ("1", "1"), "dot-C5", 1),
    (
        "f32[2,4] ragged-dot(x, y, z), " + DOT % ("2", "0") + ", lhs_ragged_dims={0}, "
        "rhs_group_dims={}",
        "ragged-dot-C1",
        31,
    ),
    (
        "f32[2,4] ragged-dot(x, g, z), " + DOT % ("1", "1") + ", lhs_ragged_dims={0}, "
        "rhs_group_dims={1}",
        "ragged-dot-C1",
        57,
    ),
    (
        "f32[2,4] ragged-dot(x, g, z), " + DOT % ("1", "") + ", lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        "ragged-dot-C2",
        57,
    ),
    (
        "f32[2,4] ragged-dot(x, g, z), " + DOT % ("1", "2") + ", lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        "ragged-dot-C3",
        57,
    ),
    (
        "f32[2,4] ragged-dot(p, g, z), " + DOT % ("1", "1") + ", lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        "ragged-dot-C4",
        24,
    ),
    (
        "s32[2,4] ragged-dot(x, g, z), " + DOT % ("1", "1") + ", lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        "ragged-dot-C5",
        1,
    ),
    (
        "f32[2,4] ragged-dot(x, g, z), " + DOT % ("1", "1") + ", lhs_ragged_dims={2}, "
        "rhs_group_dims={0}",
        "ragged-dot-C6",
        83,
    ),
    (
        "f32[2,4] ragged-dot(x, y, z), " + DOT % ("1", "0") + ", lhs_ragged_dims={0}",
        "ragged-dot-C7",
        10,
    ),
    (
        "f32[5,2,4] ragged-dot(x, y, z), " + DOT % ("1", "0") + ", lhs_ragged_dims={1}, "
        "rhs_group_dims={1}",
        "ragged-dot-C7",
        106,
    ),
    (
        "f32[2,4] ragged-dot(x, g, k), " + DOT % ("1", "1") + ", lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        "ragged-dot-C8",
        27,
    ),
    (
        "f32[5,2,4] ragged-dot(x, y, n5), " + DOT % ("1", "0") + ", lhs_ragged_dims={1}",
        "ragged-dot-C8",
        29,
    ),
    ("f32[2] reduce(x, x, s), dimensions={1}, to_apply=sum", "reduce-C1", 21),
    ("f32[2] reduce(x, y, s, s), dimensions={1}, to_apply=sum", "reduce-C2", 18),
    ("f32[2] reduce(x, s), dimensions={2}, to_apply=sum", "reduce-C3", 22),
    ("f32[2] reduce(x, x), dimensions={1}, to_apply=sum", "reduce-C4", 18),
    ("s32[] reduce(i, k), dimensions={0,1}, to_apply=sum", "reduce-C5", 39),
    ("f32[2,3] all-reduce(x), replica_groups={{0,1,1},{2,3}}, to_apply=sum", "all-reduce-C1", 46),
    ("f32[2,3] all-reduce(x), replica_groups={{0,1},{2,3,4}}, to_apply=sum", "all-reduce-C2", 52),
    ("f32[2,3] all-reduce(x), replica_groups={{0,1},{3}}, to_apply=sum", "all-reduce-C3", 25),
    ("f32[2,3] all-reduce(x), replica_groups={{0,1,2,3},{}}, to_apply=sum", "all-reduce-C4", 25),
    ("f32[2,3] all-reduce(x), use_global_device_ids=true, to_apply=sum", "all-reduce-C5", 25),
    ("s32[2,3] all-reduce(i), to_apply=sum", "all-reduce-C6", 25),
    ("f32[2,3] all-reduce(x), to_apply=mean", "all-reduce-C7", 25),
    ("f32[2,3] all-reduce(x), to_apply=take", "all-reduce-C7", 25),
    ("f32[8,3] all-gather(x), dimensions={0}, replica_groups={{0,1,2},{3}}", "all-gather-C6", 41),
    ("f32[8,3] all-gather(x), dimensions={2}", "all-gather-C7", 37),
    ("f32[8,3] all-gather(x), dimensions={0,1}", "all-gather-C7", 25),
    (
        "f32[3,1] reduce-scatter(y), dimensions={1}, to_apply=sum, replica_groups={{0,1,2},{3}}",
        "reduce-scatter-C8",
        59,
    ),
    ("f32[3,1] reduce-scatter(y), dimensions={4}, to_apply=sum", "reduce-scatter-C9", 41),
    ("f32[1,4] reduce-scatter(y), dimensions={0}, to_apply=sum", "reduce-scatter-C10", 25),
    ("f32[3,4] all-to-all(y), dimensions={1}, replica_groups={{0,1,2},{3}}", "all-to-all-C6", 41),
    ("f32[3,4] all-to-all(y), dimensions={2}", "all-to-all-C7", 37),
    ("f32[3,4] all-to-all(y), dimensions={0}", "all-to-all-C8", 21),
    ("(f32[], f32[]) all-to-all(s, s)", "all-to-all-C9", 16),
    (
        "f32[2,3] collective-permute(x), source_target_pairs={{0,1},{0,2}}",
        "collective-permute-C1",
        61,
    ),
    (
        "f32[2,3] collective-permute(x), source_target_pairs={{0,1},{2,1}}",
        "collective-permute-C2",
        63,
    ),
    (
        "f32[2,3] collective-permute(x), source_target_pairs={{0,1},{2,4}}",
        "collective-permute-C3",
        63,
    ),
]
HEADER = "HloModule m, replica_count=4\n"


@pytest.mark.parametrize(("line", "rule", "column"), WRONG, ids=[rule for _, rule, _ in WRONG])
def test_broken_rule_is_found_at_its_place(line: str, rule: str, column: int) -> None:
    start = "k = s32[] constant(0)\nROOT r = "
    text = f"{HEADER}{REGIONS}{PARAMETERS}{start}{line}\n"
    assert complaints(text) == [f"{LINE + 2}:{column + 9} {rule}"]


def test_every_rule_of_the_op_table_is_broken_by_a_text() -> None:
    shared = {
        f"{op.name}-C{number}"
        for op in OPS.values()
        for number in range(1, len(op.rules) + 1)
        if sentence(f"{op.name}-C{number}") not in BY_SENTENCE
    }
    assert shared == {"constant-C1"}


BROKEN = (*WRONG, *WRONG_COUNTED, *WRONG_CONTROL, *WRONG_INDEXING, *WRONG_WINDOWS)
RULES_OF_TRANSFERS = {wanted.split()[1] for *_, wanted in WRONG_TRANSFERS}
RULES_OF_SLICES = {f"collective-permute-{rule}" for _, _, rule, _ in WRONG_SLICES if rule}
BROKEN_RULES = (
    *(rule for _, rule, _ in BROKEN),
    *RULES_OF_TRANSFERS,
    *RULES_OF_SLICES,
    *(rule for *_, rule in WRONG_WORK if rule.startswith("ncc.work")),
    TWO_KINDS_OF_IDS,
    SENT_LATER,
)
BY_SENTENCE = {sentence(rule) for rule in BROKEN_RULES} | {
    sentence(rule) for _, _, rule, _ in WRONG_NCC
}


def test_several_rules_are_reported_in_program_order() -> None:
    lines = "a = f32[2,3] add(x, y)\nm = f32[9] negate(x)\nn = f32[2,3] and(x, x)\n"
    found = complaints(REGIONS + PARAMETERS + lines)
    assert found == [f"{LINE}:21 add-C1", f"{LINE + 1}:5 op-C5", f"{LINE + 2}:18 and-C2"]


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ((0, 0), "2:19 computation-C6"),
        ((0, 2), "2:19 computation-C6"),
        ((1, 2), "2:19 computation-C6"),
    ],
)
def test_parameters_are_numbered_without_gaps(numbers: tuple[int, int], wrong: str) -> None:
    text = f"a = f32[] parameter({numbers[0]})\nb = f32[] parameter({numbers[1]})\n"
    assert wrong.replace("19", "21") in complaints(text)


@pytest.mark.parametrize(
    ("body", "dtype"),
    [("add", "pred"), ("multiply", "pred"), ("or", "pred"), ("and", "s32"), ("minimum", "bf16")],
)
def test_known_reductions_are_accepted_in_either_order(body: str, dtype: str) -> None:
    region = f"f {{\n a = {dtype}[] parameter(0)\n b = {dtype}[] parameter(1)\n"
    region += f" ROOT c = {dtype}[] {body}(b, a)\n}}\n"
    text = f"{region}x = {dtype}[2] parameter(0)\ny = {dtype}[2] all-reduce(x), to_apply=f\n"
    assert complaints(text, ranks=2) == []


def test_partition_ids_are_checked_against_partitions() -> None:
    text = "HloModule m, replica_count=4, num_partitions=2\nx = f32[2] parameter(0)\n"
    text += "y = f32[2] collective-permute(x), channel_id=1, source_target_pairs={{0,3}}\n"
    assert complaints(text) == ["3:73 collective-permute-C3"]


F32 = ArrayType(DType.F32)


def module_of(*nodes: Node, root: int = 0, **more: Computation) -> Module:
    main = Computation("main", nodes, NodeId(root))
    return Module("m", {"main": main, **more}, "main")


def codes(module: Module) -> list[str]:
    return [diagnostic.code for diagnostic in verify(module)]


X = Node("x", "parameter", F32, (), {"parameter_number": 0})


class TestBrokenByAPass:
    """Graphs without text: what a pass could do wrong."""

    def test_operand_behind_its_user(self) -> None:
        assert codes(module_of(Node("y", "negate", F32, (NodeId(1),)), X)) == ["graph-C1"]

    def test_root_that_is_no_node(self) -> None:
        assert codes(module_of(X, root=3)) == ["graph-C1"]

    def test_callee_behind_its_caller(self) -> None:
        call = Node("y", "call", F32, (NodeId(0),), {"to_apply": Callee("f")})
        module = module_of(X, call, root=1, f=Computation("f", (X,), NodeId(0)))
        assert codes(module) == ["graph-C2"]

    def test_callee_that_does_not_exist(self) -> None:
        call = Node("y", "call", F32, (NodeId(0),), {"to_apply": Callee("f")})
        assert codes(module_of(X, call)) == ["computation-C2"]

    def test_two_nodes_of_one_name(self) -> None:
        assert codes(module_of(X, Node("x", "negate", F32, (NodeId(0),)))) == ["name-C2"]

    def test_op_that_is_not_in_the_table(self) -> None:
        assert codes(module_of(X, Node("y", "?", F32))) == ["op-C1"]

    def test_attribute_that_is_missing(self) -> None:
        assert codes(module_of(X, Node("y", "iota", F32))) == ["op-C3"]

    def test_constant_whose_value_has_another_shape(self) -> None:
        module = load("k = f32[2] constant({1, 2})\n")
        node = attrs.evolve(module.entry_computation.nodes[0], type=ArrayType(DType.F32, (3,)))
        assert codes(module_of(node)) == ["constant-C1"]

    def test_computation_without_nodes(self) -> None:
        assert codes(module_of()) == ["computation-C7"]

    def test_entry_that_does_not_exist(self) -> None:
        assert codes(attrs.evolve(module_of(X), entry="f")) == ["computation-C1"]

    def test_correct_graph(self) -> None:
        kind = TupleType((F32, F32))
        nodes = (X, Node("t", "tuple", kind, (NodeId(0), NodeId(0))))
        assert codes(module_of(*nodes, root=1)) == []


def test_rules_are_numbered_from_one() -> None:
    assert sentence("op-C1") == FAMILIES["op"][0]
    with pytest.raises(KeyError):
        sentence("op-C99")


def test_every_rule_has_its_sentence_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "ir.md").read_text(encoding="utf-8")
    rules = {op.name: op.rules for op in OPS.values()} | dict(FAMILIES)
    for family, sentences in rules.items():
        for number, words in enumerate(sentences, 1):
            line = (
                rf"^- (?:.*, )?{re.escape(f'{family}-C{number}')}(?:, .*)?: {re.escape(words)}\.$"
            )
            assert re.search(line, text, re.MULTILINE), f"{family}-C{number}: {words}"


def test_every_op_has_its_row_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "ir.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w.-]+)` \|", text, re.MULTILINE) == list(OPS)
