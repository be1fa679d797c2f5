"""Instructions of generated programs: engines, waits, placeholders, costs, origins."""

import pytest

from ncc_compiler.codegen.select import HANDLED_OPS, SELECTORS
from ncc_compiler.diagnostics import CompileError
from ncc_compiler.ir.ops import OPS
from ncc_runtime.neff.isa import OPCODES, WAIT, Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.reductions import Reduction
from tests.compiler.small_modules import SUM
from tests.compiler.small_programs import REDUCED, compiled, rows


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("%r = f32[2,2] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "Tensor"),
        ("%r = f32[2,2] add(%x, %x)", "Vector"),
        ("%r = f32[2] reduce(%x, %s), dimensions={1}, to_apply=%sum", "Vector"),
        ("%r = f32[2] reduce(%x, %s), dimensions={1}, to_apply=%odd", "GpSimd"),
        ("%r = f32[3,2,2] broadcast(%x), dimensions={1,2}", "Vector"),
        ("%r = f32[2,2] tanh(%x)", "Scalar"),
        ("%r = f32[2,2] rsqrt(%x)", "Scalar"),
        ("%r = s32[4] iota(), iota_dimension=0", "GpSimd"),
        ("%r = u32[] partition-id()", "GpSimd"),
        ("%r = f32[2,2] transpose(%x), dimensions={1,0}", "Sync"),
        ("%r = f32[1,2] slice(%x), slice={[0:1],[0:2]}", "Sync"),
        ("%r = f32[4,2] concatenate(%x, %x), dimensions={0}", "Sync"),
        (f"%r = f32[2,2] all-reduce(%x), {REDUCED}", "GpSimd"),
    ],
)
def test_every_op_has_its_engine(line, engine):
    odd = "%odd { %a = f32[] parameter(0) %b = f32[] parameter(1) %c = f32[] add(%a, %b) "
    odd += "ROOT %r = f32[] negate(%c) }\n"
    program = compiled(
        "%x = f32[2,2] parameter(0)", "%s = f32[] parameter(1)", line, before=SUM + odd
    )
    assert [queue.value for queue, table in program.queues.items() if len(table)] == [engine]


def test_every_op_of_the_graph_is_handled():
    assert set(OPS) == HANDLED_OPS


def test_every_selected_opcode_is_in_the_instruction_set():
    assert {selection.opcode for selection in SELECTORS.values()} <= set(OPCODES)


def test_a_second_wait_is_an_instruction_before():
    program = compiled(
        "%x = f32[4] parameter(0)",
        "%a = f32[4] tanh(%x)",
        "%b = f32[4] copy(%x)",
        "%c = f32[4] add(%a, %b)",
    )
    wait, add = rows(program, Engine.VECTOR)
    assert (wait.opcode, add.opcode) == (WAIT, "add")
    owners = [program.semaphores[row.wait_sem].owner for row in (wait, add)]
    assert owners == ["Sync", "Scalar"]


def test_what_a_wait_implies_is_not_awaited_again():
    program = compiled(
        "%x = f32[4] parameter(0)",
        "%a = f32[4] tanh(%x)",
        "%b = f32[4] copy(%a)",
        "%c = f32[4] add(%a, %b)",  # %b is done after %a
    )
    (add,) = rows(program, Engine.VECTOR)
    assert program.semaphores[add.wait_sem].owner == "Sync"


def test_only_awaited_instructions_post():
    program = compiled(
        "%x = f32[4] parameter(0)",
        "%a = f32[4] negate(%x)",
        "%b = f32[4] abs(%a)",
        "%c = f32[4] tanh(%b)",
    )
    assert [row.post_sem for row in rows(program, Engine.VECTOR)] == [-1, 0]


def test_results_of_a_collective_wait_for_its_stream():
    program = compiled(
        "%x = f32[4] parameter(0)",
        f"%a = f32[4] all-reduce(%x), {REDUCED}",
        f"%b = f32[4] all-reduce(%x), {REDUCED}",
        "%c = f32[4] negate(%b)",
    )
    (negate,) = rows(program, Engine.VECTOR)
    assert program.semaphores[negate.wait_sem].owner == "stream 0"
    assert negate.wait_value == 2


def test_a_placeholder_says_what_the_program_says():
    program = compiled(
        "%x = f32[4] parameter(0)",
        "%a = f32[4] all-reduce(%x), channel_id=7, replica_groups=[2,2]<=[4], to_apply=%sum, "
        'use_global_device_ids=true, frontend_attributes={has_token="1",stream_id="2"}',
    )
    (placeholder,) = program.placeholders
    assert placeholder.op is CollectiveOp.ALL_REDUCE
    assert placeholder.reduction is Reduction.ADD
    assert placeholder.groups == ((0, 1), (2, 3))
    assert (placeholder.stream, placeholder.channel_id, placeholder.name) == (2, 7, "a")


def test_a_permute_has_pairs_of_ranks():
    program = compiled(
        "%x = f32[4] parameter(0)",
        "%a = f32[4] collective-permute(%x), channel_id=1, source_target_pairs={{0,1},{3,2}}",
    )
    (placeholder,) = program.placeholders
    assert (placeholder.pairs, placeholder.groups) == (((0, 1), (3, 2)), ())


def test_several_operands_are_one_placeholder():
    program = compiled(
        "%x = f32[4] parameter(0)",
        "%y = f32[2,3] parameter(1)",
        f"%a = (f32[4], f32[2,3]) all-reduce(%x, %y), {REDUCED}",
    )
    (placeholder,) = program.placeholders
    assert placeholder.operands == program.inputs
    assert placeholder.results == program.outputs


def test_a_stream_that_does_not_exist_is_refused():
    with pytest.raises(CompileError, match="stream_id is 4, there are 4 streams"):
        compiled(
            "%x = f32[4] parameter(0)",
            f'%a = f32[4] all-reduce(%x), {REDUCED}, frontend_attributes={{stream_id="4"}}',
        )


def test_regions_that_say_the_same_are_one():
    program = compiled(
        "%x = f32[4] parameter(0)",
        "%s = f32[] constant(0)",
        "%a = f32[] reduce(%x, %s), dimensions={0}, to_apply=%sum",
        "%b = f32[] reduce(%x, %s), dimensions={0}, to_apply=%other",
        "%c = f32[] add(%a, %b)",
        before=SUM + SUM.replace("%sum", "%other"),
    )
    assert [region.name for region in program.regions] == ["sum"]


def test_a_region_keeps_the_dtypes_and_values_of_its_body():
    body = (
        "%clip { %a = s32[] parameter(0) %b = s32[] parameter(1) %k = s32[] constant(-5) "
        "%m = s32[] maximum(%b, %k) %f = pred[] compare(%a, %m), direction=GT "
        "ROOT %r = s32[] select(%f, %a, %m) }\n"
    )
    program = compiled(
        "%x = s32[4] parameter(0)",
        "%s = s32[] constant(0)",
        "%a = s32[] reduce(%x, %s), dimensions={0}, to_apply=%clip",
        before=body,
    )
    (region,) = program.regions
    assert [row.opcode for row in region.body] == ["constant", "maximum", "compare", "select"]
    assert region.body[0].constant == "-5"
    assert [row.operands for row in region.body[1:]] == [(1, 2), (0, 3), (4, 0, 3)]
    assert region.results == (5,)


def test_costs_of_a_dot_are_its_multiplications_and_additions():
    program = compiled(
        "%x = f32[3,5,2] parameter(0)",
        "%y = f32[3,5,7] parameter(1)",
        "%d = f32[3,2,7] dot(%x, %y), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    )
    (dot,) = rows(program, Engine.TENSOR)
    assert dot.flops == 2 * 3 * 2 * 7 * 5
    assert (dot.bytes_in, dot.bytes_out) == (4 * (30 + 105), 4 * 42)


def test_a_ragged_dot_costs_what_the_product_of_each_row_with_its_own_group_costs():
    ragged, sizes = "lhs_ragged_dims={%s}", "%z = s32[4] parameter(2)"
    rows_in_groups = compiled(
        "%x = f32[6,5] parameter(0)",
        "%y = f32[4,5,7] parameter(1)",
        sizes,
        "%d = f32[6,7] ragged-dot(%x, %y, %z), lhs_contracting_dims={1}, "
        f"rhs_contracting_dims={{1}}, {ragged % 0}, rhs_group_dims={{0}}",
    )
    sums_in_groups = compiled(
        "%x = f32[6,5] parameter(0)",
        "%y = f32[5,7] parameter(1)",
        sizes,
        "%d = f32[4,6,7] ragged-dot(%x, %y, %z), lhs_contracting_dims={1}, "
        f"rhs_contracting_dims={{0}}, {ragged % 1}",
    )
    for program in (rows_in_groups, sums_in_groups):
        (dot,) = rows(program, Engine.TENSOR)
        assert (dot.opcode, dot.flops) == ("ragged-dot", 2 * 6 * 5 * 7)


def test_a_ragged_dot_of_batches_is_a_dot():
    program = compiled(
        "%x = f32[3,5,2] parameter(0)",
        "%y = f32[3,5,7] parameter(1)",
        "%z = s32[2] parameter(2)",
        "%d = f32[3,2,7] ragged-dot(%x, %y, %z), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}",
    )
    (dot,) = rows(program, Engine.TENSOR)
    assert (dot.opcode, dot.flops) == ("dot", 2 * 3 * 2 * 7 * 5)


def test_a_product_with_too_many_operations_to_count_is_refused():
    with pytest.raises(CompileError, match="codegen-C4"):
        compiled(
            "%x = s8[4194304,4194304] parameter(0)",
            "%d = s8[4194304,4194304] dot(%x, %x), lhs_contracting_dims={1}, "
            "rhs_contracting_dims={0}",
        )


def test_a_fold_counts_the_elements_that_it_reads():
    program = compiled(
        "%x = f32[4,6] parameter(0)",
        "%s = f32[] constant(0)",
        "%a = f32[4] reduce(%x, %s), dimensions={1}, to_apply=%sum",
    )
    (fold,) = rows(program, Engine.VECTOR)
    assert (fold.elements, fold.bytes_out) == (24, 16)


@pytest.mark.parametrize(
    ("metadata", "place"),
    [
        ('metadata={op_name="n" source_file="a.py" source_line=7}', "a.py:7"),
        ('metadata={op_name="n" source_file="a.py"}', "a.py"),
        ('metadata={op_name="n"}', ""),
    ],
)
def test_an_instruction_knows_the_users_line(metadata, place):
    program = compiled("%x = f32[] parameter(0)", f"%n = f32[] negate(%x), {metadata}")
    (negate,) = rows(program, Engine.VECTOR)
    assert program.origins[negate.origin].node == "n"
    assert program.origins[negate.origin].place == place


@pytest.mark.parametrize(
    ("metadata", "place", "op_name"),
    [
        (
            r'op_name="jit(f)/layer_0/neg" source_file="m.py" source_line=3',
            "m.py:3",
            "jit(f)/layer_0/neg",
        ),
        (r'op_name="jit(f)/x[\"a\"]"', "", 'jit(f)/x["a"]'),
        (r'source_file="m.py"', "m.py", ""),
    ],
)
def test_an_instruction_knows_its_named_scopes(metadata, place, op_name):
    program = compiled("%x = f32[] parameter(0)", f"%n = f32[] negate(%x), metadata={{{metadata}}}")
    (negate,) = rows(program, Engine.VECTOR)
    origin = program.origins[negate.origin]
    assert (origin.place, origin.op_name) == (place, op_name)


def test_compilation_is_deterministic():
    lines = ["%x = f32[8] parameter(0)", *(f"%v{k} = f32[8] tanh(%x)" for k in range(9))]
    assert compiled(*lines) == compiled(*lines)
