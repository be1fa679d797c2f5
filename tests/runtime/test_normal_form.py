"""Collectives as functions of their operands: the bits of the descriptors, whatever they are."""

from collections.abc import Sequence

import attrs
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ncc_compiler
from ncc_runtime.bits.normal_forms import normal_forms
from ncc_runtime.errors import NccError
from ncc_runtime.execution.values import normal_form
from ncc_runtime.execution.values.kernels import loops
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction, is_defined
from ncc_runtime.report.run import Run
from ncc_runtime.runtime import Model, load
from tests.draws_collectives import DIVIDING, OF_FIXED_SIZE, pairs_of, some_groups
from tests.draws_placed_groups import MACHINES
from tests.kernel_ways import WAYS, compute_by
from tests.programs import collective_program

SETTINGS = {"clock": False}


def random_bits(dtype: DType, shape: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """Any bits that a type has: NaNs of all kinds, infinities, both zeros, subnormal numbers."""
    if dtype is DType.PRED:
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.bits < 8:
        return generator.integers(0, 2, shape).astype(dtype.numpy)
    raw = generator.integers(0, 256, (*shape, dtype.numpy.itemsize), np.uint8)
    tame = generator.standard_normal(shape).astype(np.float32)
    with np.errstate(all="ignore"):
        numbers = tame.astype(dtype.numpy)
    is_wild = generator.random(shape) < 0.1
    return np.where(is_wild, raw.view(dtype.numpy).reshape(shape), numbers)


def arrays_of(program: Program, seed: int) -> list[np.ndarray]:
    """Inputs of random bits."""
    generator = np.random.default_rng(seed)
    tensors = [program.tensors[tensor] for tensor in program.inputs]
    return [random_bits(one.dtype, (program.ranks, *one.shape), generator) for one in tensors]


def assert_same(one: Run, other: Run) -> None:
    """Bits of the outputs, and what was moved."""
    for mine, literal in zip(one.outputs, other.outputs, strict=True):
        assert mine.dtype == literal.dtype
        assert mine.tobytes() == literal.tobytes()
    for moved, by_rows in zip(one.traffic, other.traffic, strict=True):
        assert np.array_equal(moved.sent, by_rows.sent)


def assert_as_literal(model: Model, arrays: Sequence[np.ndarray], threads: int = 1) -> None:
    """By the normal form, and by a queue of descriptors; twice, since arrays are used again."""
    literal = model.run(*arrays, verify=False, **SETTINGS)
    assert set(literal.interpreters.values()) <= {"literal"}
    for _ in range(2):
        run = model.run(*arrays, threads=threads, **SETTINGS)
        assert_same(run, literal)


@attrs.frozen
class Case:
    """A collective, where it runs, by which algorithm, and with which blocks."""

    program: Program
    machine: tuple[str, int, int]
    algorithm: str | None
    block_bytes: int
    stacked_bytes: int
    way: str
    threads: int
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any operator of fixed size by any algorithm, on any type that it joins."""
    from ncc_runtime.collectives.choose import ALGORITHMS

    machine = draw(st.sampled_from(MACHINES))
    ranks = draw(st.sampled_from([1, 2, 3, 4, 6, 8])) * machine[1]
    op = draw(st.sampled_from(OF_FIXED_SIZE))
    groups = draw(some_groups(op, ranks))
    pairs = draw(pairs_of(ranks)) if op is CollectiveOp.PERMUTE else ()
    root = draw(st.integers(0, min(map(len, groups)) - 1)) if op.is_rooted else 0
    step = len(groups[0]) if op in DIVIDING else 1
    sizes = draw(
        st.lists(st.integers(0, 70) | st.sampled_from([256, 1000]), min_size=1, max_size=2)
    )
    reduction = draw(st.sampled_from(Reduction)) if op.reduces else Reduction.ADD
    dtype = draw(st.sampled_from([d for d in DType if is_defined(reduction, d)]))
    program = collective_program(
        op,
        ranks,
        [] if op is CollectiveOp.BARRIER else [size * step for size in sizes],
        groups=groups,
        pairs=pairs,
        root=root,
        dtype=dtype,
        reduction=reduction,
        repeat=draw(st.integers(1, 2)),
    )
    return Case(
        program,
        machine,
        draw(st.none() | st.sampled_from(sorted(ALGORITHMS.get(op, {"": None})))) or None,
        draw(st.sampled_from([64, 1024, 1 << 18])),
        draw(st.sampled_from([0, 1 << 14])),
        draw(st.sampled_from(WAYS)),
        draw(st.sampled_from([1, 2])),
        draw(st.integers(0, 1 << 20)),
    )


@settings(max_examples=60)
@given(case=cases())
def test_normal_forms_have_the_bits_of_descriptors(case: Case) -> None:
    name, nodes, lnc = case.machine
    op = case.program.placeholders[0].op
    algorithms = {} if case.algorithm is None else {op.value: case.algorithm}
    try:
        model = load(case.program, name, nodes=nodes, lnc=lnc, algorithms=algorithms)
    except NccError:
        assume(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normal_form, "BLOCK_BYTES", case.block_bytes)
        patch.setattr(normal_form, "STACKED_BYTES", case.stacked_bytes)
        compute_by(case.way, patch)
        assert_as_literal(model, arrays_of(case.program, case.seed), case.threads)


IN_PLACE = """HloModule m, replica_count={ranks}
op {{ a = {dtype}[] parameter(0)  b = {dtype}[] parameter(1)  ROOT c = {dtype}[] {op}(a, b) }}
ENTRY main {{
  x = {dtype}[{size}] parameter(0)
  s = {dtype}[{size}] add(x, x)
  y = {dtype}[{size}] all-reduce(s), replica_groups={groups}, to_apply=op
  ROOT z = {dtype}[{size}] multiply(y, y)
}}
"""


@pytest.mark.parametrize("algorithm", ["ring", "mesh", "rdh", None])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "s32"])
@pytest.mark.parametrize("groups", ["{}", "{{0,3,5,6},{1,2,4,7}}"])
def test_an_all_reduce_in_place_has_the_bits_of_descriptors(
    algorithm: str | None, dtype: str, groups: str
) -> None:
    text = IN_PLACE.format(ranks=8, dtype=dtype, op="add", size=40_001, groups=groups)
    neff = ncc_compiler.compile_text(text)
    try:
        model = load(neff, algorithms={"all-reduce": algorithm} if algorithm else {})
    except NccError:
        pytest.skip(f"{algorithm} does not run here")
    program = model.executable.program
    assert_as_literal(model, arrays_of(program, 0), threads=3)


@pytest.mark.parametrize("reduction", [Reduction.ADD, Reduction.AVERAGE, Reduction.MULTIPLY])
@pytest.mark.parametrize("stacked_bytes", [0, 1 << 14])
@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_is_rounded_at_every_hop_as_descriptors_do(
    reduction: Reduction, stacked_bytes: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties, overflow to infinity, subnormal numbers, NaNs of all bits."""
    monkeypatch.setattr(normal_form, "STACKED_BYTES", stacked_bytes)
    compute_by(way, monkeypatch)
    size, generator = 8000, np.random.default_rng(0)
    program = collective_program(
        CollectiveOp.ALL_REDUCE, 8, [size], dtype=DType.BF16, reduction=reduction
    )
    model = load(program, algorithms={"all-reduce": "ring"})
    ranges = ((0x3F00, 0x4200), (0x7E00, 0x7F80), (0, 0x200), (0, 0x8000))  # one for all ranks
    low, high = np.array(ranges)[generator.integers(0, 4, size)].T
    signs = generator.integers(0, 2, (8, size)) << 15
    words = (generator.integers(low, high, (8, size)) | signs).astype(np.uint16)
    assert_as_literal(model, [words.view(DType.BF16.numpy)])


NARROW = [d for d in DType if d.is_float and d not in (DType.F32, DType.F64)]


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.value)
def test_machine_code_joins_a_narrow_float_as_descriptors_do(
    dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any bits, steps whose parts are other steps, and for some types more than a tile."""
    compute_by("machine code", monkeypatch)
    is_long = dtype in (DType.BF16, DType.F16, DType.F8E4M3FN)
    size = 8 * (loops.TILE + 1 if is_long else 500)
    for reduction in (Reduction.ADD, Reduction.MULTIPLY, Reduction.AVERAGE, Reduction.MINIMUM):
        program = collective_program(
            CollectiveOp.ALL_REDUCE, 8, [size], dtype=dtype, reduction=reduction
        )
        for algorithm in ("ring", "rdh"):
            model = load(program, algorithms={"all-reduce": algorithm})
            arrays = arrays_of(program, 5)
            literal = model.run(*arrays, verify=False, **SETTINGS)
            assert_same(model.run(*arrays, threads=2, **SETTINGS), literal)


def test_machine_code_joins_chunks_of_one_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy gathers leaves of one element in the order of the indices' memory."""
    compute_by("machine code", monkeypatch)
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [8], dtype=DType.F16)
    model = load(program, algorithms={"all-reduce": "ring"})
    assert_as_literal(model, arrays_of(program, 5))


def test_operands_that_other_pieces_overwrite_are_copied_first() -> None:
    """A rotation in place: what one rank reads is what another one writes."""
    program = collective_program(
        CollectiveOp.PERMUTE, 4, [1000], pairs=((0, 1), (1, 2), (2, 3), (3, 0))
    )
    form = normal_forms(load(program).executable)[0]
    array = np.arange(4000, dtype=np.float32).reshape(4, 1000)
    wanted = np.roll(array, 1, axis=0)
    evaluation = normal_form.Evaluation(form, 1, in_place=True)
    for work in evaluation.tasks([array], [array]):
        work()
    assert np.array_equal(array, wanted)


def test_chunks_of_a_ring_are_one_class() -> None:
    """Rotations of one order: 16 pieces, one list of steps, no tree for each."""
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [16 * 64])
    form = normal_forms(load(program, algorithms={"all-reduce": "ring"}).executable)[0]
    (one,) = form.classes
    assert len(one.steps) == 1
    assert all(sorted(row) == list(range(16)) for row in one.leaves.tolist())
    assert one.size * len(one) == 16 * 64
    assert one.target_rank.shape == (len(one), 16)


def test_collectives_of_variable_size_and_products_of_complex_numbers_are_literal() -> None:
    counted = collective_program(CollectiveOp.ALL_GATHER_V, 4, [8], dtype=DType.F32)
    product = collective_program(
        CollectiveOp.ALL_REDUCE, 4, [8], dtype=DType.C64, reduction=Reduction.MULTIPLY
    )
    assert not normal_forms(load(counted).executable)
    assert not normal_forms(load(product).executable)


CROSSED = """HloModule m, replica_count=3
ENTRY main {
  x = f32[64] parameter(0)
  y = f32[64] collective-permute(x), source_target_pairs={{0,1},{1,2}}
  ROOT z = f32[64] collective-permute(y), source_target_pairs={{0,2}}
}
"""


def test_random_orders_and_checked_runs_are_literal() -> None:
    model = load(ncc_compiler.compile_text(CROSSED))
    arrays = arrays_of(model.executable.program, 1)
    pure = model.run(*arrays, **SETTINGS)
    assert set(pure.interpreters.values()) == {"normal form"}
    for how in ({"checked": True}, {"shuffle_seed": 3}, {"verify": False}):
        run = model.run(*arrays, **SETTINGS, **how)
        assert set(run.interpreters.values()) == {"literal"}
        assert_same(pure, run)


def test_loops_perform_collectives_at_once_in_every_trip() -> None:
    text = """HloModule m, replica_count=4
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
cond { p = (s32[], f32[300]) parameter(0)  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)  ROOT l = pred[] compare(i, n), direction=LT }
body { p = (s32[], f32[300]) parameter(0)  i = s32[] get-tuple-element(p), index=0
  x = f32[300] get-tuple-element(p), index=1
  one = s32[] constant(1)  j = s32[] add(i, one)
  y = f32[300] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=add
  ROOT t = (s32[], f32[300]) tuple(j, y) }
ENTRY main { x = f32[300] parameter(0)  zero = s32[] constant(0)
  t = (s32[], f32[300]) tuple(zero, x)
  w = (s32[], f32[300]) while(t), condition=cond, body=body
  ROOT r = f32[300] get-tuple-element(w), index=1 }
"""
    model = load(ncc_compiler.compile_text(text))
    arrays = arrays_of(model.executable.program, 2)
    run = model.run(*arrays, **SETTINGS)
    assert set(run.interpreters.values()) == {"normal form"}
    assert_same(run, model.run(*arrays, verify=False, **SETTINGS))


def test_what_a_caller_holds_is_not_written_again() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 2, [1 << 16])
    model = load(program)
    ones = np.ones((2, 1 << 16), np.float32)
    held = [model.run(ones * factor, **SETTINGS).outputs[0][1:] for factor in (1, 2, 3, 4)]
    assert [float(one[0, 0]) for one in held] == [2, 4, 6, 8]


def test_inputs_are_left_as_they_are() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 2, [1 << 16])
    model = load(program)
    whole = np.arange(1 << 16, dtype=np.float32)
    whole.flags.writeable = False  # one for all ranks
    (output,) = model.run(whole, **SETTINGS).outputs
    assert np.array_equal(output, np.stack([whole * 2] * 2))
    columns = np.asfortranarray(np.ones((2, 1 << 16), np.float32))  # rows with gaps are copied
    (output,) = model.run(columns, **SETTINGS).outputs
    assert (output == 2).all()
