"""Buffers of generated programs: inputs, outputs, constants, reuse, and work in place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_compiler.codegen import placement
from ncc_compiler.diagnostics import CompileError
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import BufferKind
from tests.compiler.small_programs import REDUCED, compiled, kinds, rows
from tests.example_count import examples


def test_reshapes_and_tuples_are_no_instructions():
    program = compiled(
        "%x = f32[2,3] parameter(0)",
        "%n = f32[2,3] negate(%x)",
        "%r = f32[6] reshape(%n)",
        "%t = (f32[6], f32[2,3]) tuple(%r, %x)",
        "%e = f32[6] get-tuple-element(%t), index=0",
    )
    assert [row.opcode for row in rows(program, Engine.VECTOR)] == ["negate"]
    (output,) = program.outputs
    assert program.tensors[output].shape == (6,)
    assert kinds(program) == [BufferKind.INPUT, BufferKind.OUTPUT]


@pytest.mark.parametrize(
    ("root", "copies"),
    [("%p", 1), ("%c", 1), ("%n", 0), ("%n, %n", 1), ("%n, %v", 1), ("%p, %p", 2), ("%i", 0)],
)
def test_results_that_have_no_buffer_of_their_own_are_copied(root, copies):
    shapes = ", ".join("f32[6]" if "v" in name else "f32[2,3]" for name in root.split(", "))
    program = compiled(
        "%p = f32[2,3] parameter(0)",
        "%c = f32[2,3] constant({{1,2,3},{4,5,6}})",
        "%n = f32[2,3] negate(%p)",
        "%v = f32[6] reshape(%n)",
        "%i = f32[2,3] iota(), iota_dimension=1",
        f"%t = ({shapes}) tuple({root})",
    )
    assert [row.opcode for row in rows(program, Engine.SYNC)] == ["copy"] * copies
    homes = [program.tensors[tensor].buffer for tensor in program.outputs]
    assert len(set(homes)) == len(homes)
    assert all(program.buffers[home].kind is BufferKind.OUTPUT for home in homes)


def test_inputs_are_numbered_as_parameters_whatever_their_lines_order():
    program = compiled(
        "%b = f32[3] parameter(1)",
        "%a = s32[2] parameter(0)",
        "%t = (s32[2], f32[3]) tuple(%a, %b)",
    )
    assert [program.tensors[tensor].name for tensor in program.inputs] == ["a", "b"]


def test_a_parameter_that_is_a_tuple_is_several_inputs():
    program = compiled(
        "%p = (f32[2], (s32[3], pred[])) parameter(0)",
        "%q = (s32[3], pred[]) get-tuple-element(%p), index=1",
        "%r = s32[3] get-tuple-element(%q), index=0",
        "%n = s32[3] negate(%r)",
    )
    assert [program.tensors[tensor].dtype.value for tensor in program.inputs] == [
        "f32",
        "s32",
        "pred",
    ]
    assert rows(program, Engine.VECTOR)[0].operands == (program.inputs[1],)


def test_equal_constants_are_stored_once():
    program = compiled(
        "%a = f32[2] constant({1, 2})",
        "%b = f32[2] constant({1, 2})",
        "%c = f32[2] constant({1, 3})",
        "%d = f32[2] add(%a, %b)",
        "%e = f32[2] add(%d, %c)",
    )
    assert kinds(program).count(BufferKind.CONSTANT) == 2


def test_memory_is_reused_once_its_values_are_dead():
    lines = [f"%v{k} = f32[1024] reverse(%v{k - 1}), dimensions={{0}}" for k in range(1, 40)]
    program = compiled("%v0 = f32[1024] parameter(0)", *lines)
    assert program.hbm_bytes == 3 * 4096  # the output's memory is one of two


def test_an_elementwise_chain_works_in_place() -> None:
    lines = [f"%v{k} = f32[1024] negate(%v{k - 1})" for k in range(1, 40)]
    program = compiled("%v0 = f32[1024] parameter(0)", *lines)
    assert program.hbm_bytes == 2 * 4096


def test_memory_is_not_reused_before_another_queue_is_known_to_be_done():
    program = compiled(
        "%x = f32[16] parameter(0)",
        "%a = f32[16] negate(%x)",
        "%b = f32[16] tanh(%a)",  # on Scalar, which nobody awaits before %d is written
        "%c = f32[16] abs(%x)",
        "%d = f32[16] negate(%c)",
        "%e = f32[16] add(%d, %b)",
    )
    addresses = {buffer.name: buffer.address for buffer in program.buffers}
    assert addresses["a"] not in (addresses["c"], addresses["d"])


def test_an_array_that_no_memory_can_hold_is_refused():
    with pytest.raises(CompileError, match=r"test\.ir:5:.*codegen-C3"):
        compiled(
            "%x = f32[] parameter(0)", "%b = f32[4194304,4194304] broadcast(%x), dimensions={}"
        )


def test_zero_sized_arrays_are_legal():
    program = compiled(
        "%x = f32[0,3] parameter(0)",
        "%a = f32[0,3] negate(%x)",
        f"%b = f32[0,3] all-reduce(%a), {REDUCED}",
        "%c = f32[0,3] abs(%b)",
    )
    assert program.hbm_bytes == 0


ALL_REDUCE = f"%r = f32[4] all-reduce(%a), {REDUCED}"


@pytest.mark.parametrize(
    ("lines", "in_place"),
    [
        (["%a = f32[4] negate(%x)", ALL_REDUCE, "%z = f32[4] abs(%r)"], True),
        (["%a = f32[4] copy(%x)", ALL_REDUCE, "%z = f32[4] add(%r, %a)"], False),  # read later
        (
            [
                "%a = f32[4] negate(%x)",
                "%t = f32[4] tanh(%a)",
                ALL_REDUCE,
                "%z = f32[4] add(%r, %t)",
            ],
            False,
        ),
        (
            [
                "%a = f32[4] negate(%x)",
                "%b = f32[4] abs(%a)",
                ALL_REDUCE,
                "%z = f32[4] add(%r, %b)",
            ],
            False,
        ),
        (["%a = f32[4] negate(%x)", ALL_REDUCE], False),  # the result is an output
        ([ALL_REDUCE.replace("%a", "%x"), "%z = f32[4] abs(%r)"], False),  # a parameter
        (
            [
                "%a = f32[4] negate(%x)",
                f"%r = (f32[4], f32[4]) all-reduce(%a, %a), {REDUCED}",
                "%y = f32[4] get-tuple-element(%r), index=0",
                "%z = f32[4] abs(%y)",
            ],
            False,
        ),
        (
            [
                "%b = f32[4] negate(%x)",
                "%s = f32[2,2] reshape(%b)",
                "%a = f32[4] reshape(%s)",
                ALL_REDUCE,
                "%z = f32[4] abs(%r)",
            ],
            True,
        ),
    ],
)
def test_an_all_reduce_is_in_place_only_if_its_operand_is_dead(lines, in_place):
    program = compiled("%x = f32[4] parameter(0)", *lines)
    (placeholder,) = program.placeholders
    assert placeholder.in_place == in_place
    homes = [program.tensors[t].buffer for t in (*placeholder.operands, *placeholder.results)]
    assert (len(set(homes)) == 1) == in_place


def test_other_collectives_are_never_in_place():
    program = compiled(
        "%x = f32[4] parameter(0)",
        "%a = f32[4] negate(%x)",
        "%r = f32[4] collective-permute(%a), channel_id=1, source_target_pairs={{0,1}}",
        "%z = f32[4] abs(%r)",
    )
    assert not program.placeholders[0].in_place


class SlowArena:
    """First fit by a look at every byte: each has the frontier of its last owner."""

    def __init__(self, queues: int) -> None:
        self.bytes: list[tuple[int, ...]] = []
        self.queues = queues

    def take(self, size: int, known: tuple[int, ...], frontier: tuple[int, ...]) -> int:
        start = next(at for at in range(len(self.bytes) + 1) if self._is_free(at, size, known))
        self.bytes += [frontier] * (start + size - len(self.bytes))
        self.bytes[start : start + size] = [frontier] * size
        return start

    def _is_free(self, at: int, size: int, known: tuple[int, ...]) -> bool:
        return all(
            count <= seen
            for byte in self.bytes[at : at + size]
            for count, seen in zip(byte, known, strict=True)
        )


@settings(max_examples=examples(150))
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), st.integers(1, 9)),
        max_size=60,
    ),
    block=st.sampled_from([1, 2, 3, 256]),
)
def test_a_buffer_lies_at_the_lowest_address_that_is_free(rows, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "_BLOCK", block)
        arena, slow = placement._Heap(0, 2), SlowArena(2)
        known = [0, 0]
        for size, one, other, life in rows:
            known = [known[0] + one, known[1] + other]
            frontier = (known[0] + life, known[1] + life // 2)
            found = arena.take(size, tuple(known), np.array(frontier))
            assert found == slow.take(size, tuple(known), frontier)
            assert arena.end == len(slow.bytes)


def test_every_all_reduce_of_a_long_chain_is_in_place():
    lines = ["%x = f32[4] parameter(0)", "%n0 = f32[4] sine(%x)"]
    for k in range(1, 300):
        reduced = REDUCED.replace("channel_id=1", f"channel_id={k}")
        lines.append(f"%n{k} = f32[4] all-reduce(%n{k - 1}), {reduced}")
    program = compiled(*lines, "%r = f32[4] negate(%n299)")
    assert all(one.in_place for one in program.placeholders)


def test_an_all_reduce_of_what_is_read_later_is_not_in_place():
    lines = ["%x = f32[4] parameter(0)", "%n0 = f32[4] sine(%x)"]
    lines += [f"%a = f32[4] all-reduce(%n0), {REDUCED}", f"%b = f32[4] all-reduce(%a), {REDUCED}"]
    lines = [line.replace("channel_id=1", f"channel_id={k + 1}") for k, line in enumerate(lines)]
    for late, expected in (("%n0", [False, True]), ("%a", [True, False]), ("%b", [True, True])):
        program = compiled(*lines, f"%s = f32[4] sine({late})", "%r = f32[4] add(%s, %b)")
        assert [one.in_place for one in program.placeholders] == expected
