"""What XLA's parser takes: types, names and headings left out, things written in place."""

import re

import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.driver import compile_text
from ncc_compiler.ir.text.desugar import NOT_INFERRED
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.syntax.tree import MAX_INLINE_DEPTH
from tests.compiler.reading import SUM, complaints, load, messages, node
from tests.draws import HLO
from tests.reference_runs import assert_close, reference_outputs
from tests.xla_texts import TEXTS

X = "x = f32[4] parameter(0)\n"


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_in_the_style_of_xlas_tests_is_compiled(name: str) -> None:
    module = load(TEXTS[name])
    assert load(print_module(module)) == module
    assert compile_text(TEXTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_runtime_and_reference_agree_on_it(name: str) -> None:
    module = load(TEXTS[name])
    entry, random = module.entry_computation, np.random.default_rng(0)
    inputs = []
    for position in entry.parameters():
        kind = entry.nodes[position].type
        assert isinstance(kind, ArrayType)
        inputs.append(random.standard_normal((module.ranks, *kind.shape)).astype(kind.dtype.numpy))
    model = ncc_runtime.load(compile_text(TEXTS[name]), topology="trn2")
    for found, expected in zip(
        model.run(inputs).outputs, reference_outputs(module, inputs), strict=True
    ):
        assert_close(found, expected)


_TYPED = re.compile(r"^(\s*(?:ROOT )?%[\w.\-]+ = )(?:\([^=]*?\)|\S+) ([a-z\-]+)\(", re.MULTILINE)


def without_types(text: str) -> str:
    """The text without every result type that follows from the rest."""
    return _TYPED.sub(
        lambda found: found[0] if found[2] in NOT_INFERRED else f"{found[1]}{found[2]}(", text
    )


@pytest.mark.parametrize("name", ["collective_zoo", "mlp_train_dp2_tp4", "moe_all_to_all"])
def test_types_that_are_left_out_are_those_that_were_there(name: str) -> None:
    text = print_module(load((HLO / f"{name}.hlo").read_text()))
    bare = without_types(text)
    assert len(bare) < 0.98 * len(text)
    assert load(bare) == load(text)


def test_a_type_follows_through_calls_written_below() -> None:
    text = "ENTRY m {\n x = f32[4] parameter(0)\n r = call(x), to_apply=f\n}\n"
    text += "f {\n y = f32[4] parameter(0)\n c = call(y), to_apply=g\n}\n"
    text += "g {\n z = f32[4] parameter(0)\n p = is-finite(z)\n}\n"
    assert str(node(load(text), "r").type) == "pred[4]"


@pytest.mark.parametrize("op", sorted(NOT_INFERRED - {"constant", "parameter"}))
def test_a_type_that_does_not_follow_is_asked_for(op: str) -> None:
    operands = "" if op == "iota" else "x"
    assert complaints(f"{X}y = {op}({operands})\nz = negate(y)\n") == ["2:5 op-C8"]


def test_types_of_constants_and_parameters_are_asked_for() -> None:
    assert complaints("x = parameter(0)\ny = constant({1, 2})\n") == ["1:5 op-C8", "2:5 op-C8"]


def test_a_type_that_follows_has_the_limits_of_one_that_is_written() -> None:
    text = "x = f32[4000000000000000000,0] parameter(0)\n"
    assert complaints(text.replace("4000000000000000000", "1000000000")) == []
    assert complaints(text)[0].endswith("type-C4")
    half = "x = f32[1500000000000000000,0] parameter(0)\n"
    assert complaints(f"{half}y = concatenate(x, x), dimensions={{0}}\nz = copy(y)\n") == [
        "2:5 type-C4"
    ]


def test_what_is_wrong_with_operands_is_told_where_the_type_is_left_out() -> None:
    assert complaints(f"{X}y = f32[5] parameter(1)\nz = add(x, y)\nw = negate(z)\n") == [
        "3:12 add-C1"
    ]


@pytest.mark.parametrize(
    ("operand", "wrong"),
    [
        ("f32[4] x", []),
        ("f32[4]{0:T(128)} x", []),
        ("s32[4] x", ["2:19 op-C7"]),
        ("f32[5] x", ["2:19 op-C7"]),
        ("(f32[4]) x", ["2:19 op-C7"]),
        ("f33[4] x", ["2:19 type-C1"]),
    ],
)
def test_a_type_before_an_operand_is_that_of_its_definition(operand: str, wrong: list[str]) -> None:
    assert complaints(f"{X}y = f32[4] negate({operand})\n") == wrong


def test_an_operation_in_place_is_one_with_a_name() -> None:
    inline = f"{X}r = f32[4] add(f32[4] negate(x), exponential(negate(x)))\n"
    plain = f"{X}negate = f32[4] negate(x)\nnegate.1 = f32[4] negate(x)\n"
    plain += "exponential = f32[4] exponential(negate.1)\nr = f32[4] add(negate, exponential)\n"
    assert load(inline) == load(plain)


def test_computations_in_place_are_found_in_loops_and_in_each_other() -> None:
    text = (
        "x = s32[] parameter(0)\n"
        "w = while(x), condition={\n a = s32[] parameter(0)\n"
        "  ROOT c = compare(a, s32[] constant(9)), direction=LT\n}, body={\n"
        "  a = s32[] parameter(0)\n  ROOT n = call(a), to_apply={\n"
        "    b = s32[] parameter(0)\n    ROOT m = add(b, s32[] constant(1)) }\n}\n"
    )
    module = load(text)
    assert list(module.computations) == ["w.condition", "n.to_apply", "w.body", "main"]
    assert int(reference_outputs(module, [np.zeros(1, np.int32)])[0][0]) == 9


def test_faults_of_what_is_in_place_are_found_at_their_place() -> None:
    body = "{\n  a = f32[4] parameter(0)\n  b = f32[4] negate(c)\n}"
    assert complaints(f"{X}r = f32[4] call(x), to_apply={body}\n") == ["4:21 name-C1"]
    assert complaints(f"{X}r = f32[4] negate(negate(y))\n") == ["2:26 name-C1"]


def test_what_nests_too_deep_is_refused() -> None:
    deep = "negate(" * MAX_INLINE_DEPTH + "x" + ")" * MAX_INLINE_DEPTH
    assert complaints(f"{X}r = f32[4] {deep}\n") == []
    assert complaints(f"{X}r = f32[4] negate(negate({deep}))\ns = f32[4] negate(r)\n") == [
        "2:12 syntax-C2"
    ]
    deep = "call(x), to_apply={ x = f32[4] parameter(0) r = " * 200
    assert [line.split()[1] for line in complaints(f"{X}r = {deep}negate(x){'}' * 200}\n")] == [
        "syntax-C2"
    ]


def test_one_number_stands_for_all_elements() -> None:
    (splat,) = reference_outputs(load("r = f32[2,3]{1,0} constant(1.5)\n"), [])
    assert splat.tolist() == [[[1.5] * 3] * 2]
    assert compile_text("k = f32[1000000,1000000] constant(0)\nr = f32[] constant(1)\n")
    assert complaints("r = f32[4] constant(one)\n") == ["1:21 literal-C2"]


def test_attributes_of_other_ops_are_no_attributes_of_this_one() -> None:
    assert complaints(f"{X}y = f32[4] copy(x), dimensions={{0}}\n") == ["2:21 attribute-C3"]
    assert complaints(f"{X}y = f32[4] copy(x), result_accuracy={{mode=highest}}\n") == [
        "2:21 attribute-C3"
    ]
    assert complaints(f"{X}y = f32[4] copy(x), of_another_xla={{0}}\n") == []


@pytest.mark.parametrize(
    "attribute",
    [
        "result_accuracy={mode=lowest}",
        "result_accuracy={}",
        "result_accuracy=highest",
        "result_accuracy={tolerance={atol=0,rtol=0,ulps=-1}}",
        "result_accuracy={tolerance={atol=nan,rtol=0,ulps=1}}",
        "result_accuracy={tolerance={atol=0,atol=0}}",
        "result_accuracy={tolerance={atol=0 rtol=0}}",
        "result_accuracy={tolerance={atol=0,}}",
        "result_accuracy={tolerance={other=0}}",
        "result_accuracy={mode=highest,tolerance={ulps=1}}",
        "frontend_attributes={a=b}",
        "frontend_attributes={a=3}",
        'frontend_attributes={a="b",}',
        'frontend_attributes={a="b" c="d"}',
        'frontend_attributes={"b"}',
        "metadata=x",
        "metadata={op_name=x}",
        'metadata={source_line="x"}',
        "backend_config=3",
        "sharding=replicated",
        "statistics=3",
        "parameter_replication={1}",
        "origin=3",
        "control-predecessors=x",
    ],
)
def test_attributes_that_change_nothing_have_their_form(attribute: str) -> None:
    text = f"{X}y = f32[4] exponential(x), {attribute}\n"
    key = attribute.partition("=")[0]
    assert complaints(text) == [f"2:{29 + len(key)} attribute-C1"]
    assert "is not of the form" in messages(text)


def test_control_predecessors_are_instructions() -> None:
    assert complaints(f"{X}y = f32[4] negate(x), control-predecessors={{z}}\n") == ["2:45 name-C1"]
    assert complaints(f"{X}y = f32[4] negate(x), control-predecessors={{%x}}\n") == []


@pytest.mark.parametrize(
    "layout",
    ["{}", "{0}", "{0,0}", "{2,1}", "{0,1,2}", "{1,0,}", "{-1,0}", "{1 0}", "{:T(8)}"]
    + [f"{{1,0:{rest}}}" for rest in ("T(8,)", "T(8", "T(0)", "T(-8)", "T(8 128)", "T(x)", "t(8)")]
    + [f"{{1,0:{rest}}}" for rest in ("T(8),E(4)", "S(1)E(4)", "S(1)T(8)", "E()", "E(x)", "S()")]
    + [f"{{1,0:{rest}}}" for rest in ("Q(1)", "T(8)T(8)", "#(f32)", "SC(x)", "D(X)", "S(-1)")],
)
def test_layouts_that_are_none_are_refused(layout: str) -> None:
    assert complaints(f"x = f32[4,8]{layout} parameter(0)\n") == ["1:13 type-C6"]
    assert complaints(f"x = (f32[4,8]{layout}, s32[]) parameter(0)\n") == ["1:14 type-C6"]


@pytest.mark.parametrize(
    "layout",
    ["", "{0,1}", " {1,0}", "{1,0:}", "{ 1 , 0 }", "{1,0:T(8,128)(2,1)E(4)S(1)}", "{1,0:T(*,4)}"]
    + [f"{{1,0:{rest}}}" for rest in ("L(2)#(u32)*(u8)", "D(D,C+)T(2)", "SC(1:200,3)M(3)", "T()")],
)
def test_layouts_that_xla_prints_are_read(layout: str) -> None:
    assert complaints(f"x = f32[4,8]{layout} parameter(0)\n") == []


PROGRAM = (
    "ENTRY e {\n  p = f32[4] parameter(0)\n  q = s32[2] parameter(1)\n"
    "  t = (f32[4], s32[2]) parameter(2)\n  ROOT r = (f32[4], s32[2]) tuple(p, q)\n}\n"
)


@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        ("input_output_alias={ {0}: (0, {}, may-alias), {1}: (2, {1}) }", None),
        ("input_output_alias={ {0}: (2, {0}, must-alias), }", None),
        ("input_output_alias={ }, buffer_donor={ (0, {}), (2, {1}), }", None),
        ("input_output_alias=x", "header-C1"),
        ("input_output_alias={ {0}: 0 }", "header-C1"),
        ("input_output_alias={ {0}: (0) }", "header-C1"),
        ("input_output_alias={ {0}: (0, {}, maybe-alias) }", "header-C1"),
        ("input_output_alias={ {-1}: (0, {}) }", "header-C1"),
        ("input_output_alias={ {0}: (0, {}) {1}: (1, {}) }", "header-C1"),
        ("input_output_alias={ {}: (0, {}) }", "header-C2"),
        ("input_output_alias={ {2}: (0, {}) }", "header-C2"),
        ("input_output_alias={ {0,0}: (0, {}) }", "header-C2"),
        ("input_output_alias={ {0}: (7, {}) }", "header-C2"),
        ("input_output_alias={ {0}: (0, {0}) }", "header-C2"),
        ("input_output_alias={ {0}: (2, {}) }", "header-C2"),
        ("input_output_alias={ {0}: (1, {}) }", "header-C2"),
        ("input_output_alias={ {0}: (0, {}), {0}: (2, {0}) }", "header-C2"),
        ("buffer_donor={ (0, {}, may-alias) }", "header-C1"),
        ("buffer_donor={ 0 }", "header-C1"),
        ("buffer_donor={ (3, {}) }", "header-C3"),
        ("buffer_donor={ (2, {}) }", "header-C3"),
        ("buffer_donor={ (0, {1}) }", "header-C3"),
        ("input_output_alias={ {0}: (0, {}) }, buffer_donor={ (0, {}) }", "header-C3"),
        ("is_scheduled=1", "header-C1"),
        ("alias_passthrough_params=x", "header-C1"),
        ("allow_spmd_sharding_propagation_to_output={maybe}", "header-C1"),
        ("frontend_attributes={a=b}", "header-C1"),
        ("entry_computation_layout={x}", "header-C1"),
        ("entry_computation_layout={(f32[4])}", "header-C1"),
        ("entry_computation_layout={(f32[4],s32[2])->(f32[4],s32[2])}", "header-C4"),
        (
            "entry_computation_layout={(f32[4]{0}, s32[2]{0}, (f32[4],s32[2]))->"
            "(f32[4]{0:T(4)}, /*index=1*/s32[2])}",
            None,
        ),
        ("entry_computation_layout={(f32[4], s32[2], (f32[4],s32[2]))->f32[4]}", "header-C4"),
        (
            "entry_computation_layout={(f32[4]{1}, s32[2], (f32[4],s32[2]))->(f32[4], s32[2])}",
            "type-C6",
        ),
        ("entry_computation_layout={(" + "(" * 50 + ")" * 50 + ")->f32[]}", "header-C1"),
    ],
)
def test_the_header_fits_the_program(header: str, wrong: str | None) -> None:
    found = [line.split()[1] for line in complaints(f"HloModule m, {header}\n{PROGRAM}")]
    assert found == ([wrong] if wrong else [])


def test_an_entry_of_the_header_is_blamed_where_it_stands() -> None:
    header = "HloModule m, input_output_alias={ {0}: (0, {}), {1}: (9, {}) }\n"
    assert complaints(header + PROGRAM) == ["1:49 header-C2"]


def test_memory_given_twice_is_refused() -> None:
    same = PROGRAM.replace("s32[2]", "f32[4]")
    header = "HloModule m, input_output_alias={ {0}: (0, {}), {1}: (0, {}) }\n"
    assert complaints(header + same) == ["1:49 header-C2"]


def test_without_entry_the_last_that_nobody_calls_is_it() -> None:
    text = SUM + SUM.replace("sum", "two") + SUM.replace("sum", "three")
    assert load(text).entry == "three"


@pytest.mark.parametrize(
    "groups",
    [
        "{{0,,1}}",
        "{{0,1,}}",
        "{{0 1}}",
        "[1,,2]<=[2]",
        "mesh['a'=2,'b'x1] {'a'}",
        "mesh['a'=2] {'a}",
        "mesh['a'=2,] {'a'}",
        "mesh['a'=2] {'a' 'a'}",
    ],
)
def test_groups_that_are_none_are_refused(groups: str) -> None:
    text = f"{SUM}{X}y = f32[4] all-reduce(x), replica_groups={groups}, to_apply=sum\n"
    assert complaints(text)[0].endswith(("attribute-C1", "syntax-C1"))


def test_keywords_name_nothing() -> None:
    assert complaints(f"{X}ROOT = f32[4] negate(x)\n")[0].endswith("syntax-C1")


def test_rows_of_tables_hold_numbers() -> None:
    table = "FileLocations\n1 {file_name_id=1 line48122 column=1}\n"
    assert complaints(f"HloModule m\n{table}{X}") == ["3:1 frames-C2"]


def test_a_body_in_place_that_is_never_closed_hides_nothing_else() -> None:
    text = f"{X}y = f32[4] conditional(i, x, x), branch_computations={{\n"
    text += "  { q = f32[4] parameter0) ROOT n = negate(q) },\n  same }}\nz = f32[4] negate(w)\n"
    assert "3:26 syntax-C1" in complaints(text)


def test_regions_of_the_tests_helpers_may_lack_their_types() -> None:
    bare = SUM.replace("c = f32[] add", "c = add")
    assert load(bare + X) == load(SUM + X)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{X}y = f32[4] copy(x), replica_count=8\n", "2:21"),
        (f"{X}y = f32[4] copy(x), is_scheduled=true\n", "2:21"),
        (f"HloModule m, to_apply=add\n{X}", "1:14"),
        (f"HloModule m, metadata={{}}\n{X}", "1:14"),
        (f"ENTRY e {{ {X} }}, to_apply=add\n", "2:5"),
        (f"ENTRY e {{ {X} }}, num_partitions=2\n", "2:5"),
    ],
)
def test_an_attribute_in_a_place_of_others_is_refused(text: str, place: str) -> None:
    assert complaints(text) == [f"{place} attribute-C3"]


def test_attributes_of_computations_have_the_form_that_xla_asks_for() -> None:
    assert complaints(f'ENTRY e {{ {X} }}, execution_thread="main"\n') == []
    assert complaints(f"ENTRY e {{ {X} }}, execution_thread=main\n") == ["2:22 attribute-C1"]


def test_a_missing_predecessor_is_shown_where_it_stands() -> None:
    text = f"{X}n10 = f32[4] negate(x)\nr = f32[4] copy(x), control-predecessors={{n10, n1}}\n"
    assert complaints(text) == ["3:48 name-C1"]
