"""MSCCL files of the usual kinds are proved, run, and give numpy's values."""

from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.reductions import Reduction
from ncc_runtime.runtime import Model, load, program_of
from tests import msccl_files
from tests.msccl_files import ALL, File
from tests.programs import collective_program

IN_PLACE = """
sum { a = s32[] parameter(0)  b = s32[] parameter(1)  ROOT c = s32[] add(a, b) }
ENTRY main {
  x = s32[35] parameter(0)
  twice = s32[35] add(x, x)
  total = s32[35] all-reduce(twice), replica_groups={{GROUP}}, to_apply=sum
  ROOT negated = s32[35] negate(total)
}
"""

KINDS = [
    pytest.param(CollectiveOp(op), make, id=f"{op}-{make().name}-{make().gpus}-{number}")
    for op, kinds in ALL.items()
    for number, make in enumerate(kinds)
]


def loaded(file: File, program: Program, tmp_path: Path, target: str = "") -> Model:
    """The program, its collectives filled by a file."""
    path = tmp_path / "plan.xml"
    path.write_text(file.xml(), encoding="utf-8")
    return load(program, plans=[f"{target}{path}"])


def given(shape: tuple[int, ...], dtype: type = np.int32) -> np.ndarray:
    return np.random.default_rng(7).integers(-9, 9, shape).astype(dtype)


def wanted(op: CollectiveOp, values: np.ndarray) -> np.ndarray:
    """By rank what numpy says of one group of all ranks."""
    ranks = len(values)
    match op:
        case CollectiveOp.ALL_REDUCE:
            return np.tile(values.sum(0), (ranks, 1))
        case CollectiveOp.REDUCE_SCATTER:
            return values.sum(0).reshape(ranks, -1)
        case CollectiveOp.ALL_GATHER:
            return np.tile(values.reshape(-1), (ranks, 1))
    return values.reshape(ranks, ranks, -1).swapaxes(0, 1).reshape(ranks, -1)


def whole(op: CollectiveOp, file: File, part: int) -> int:
    """Elements of an operand of so many a chunk, and some more."""
    is_cut = op in (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_TO_ALL)
    return part * file.gpus if is_cut else part


@pytest.mark.parametrize(("op", "make"), KINDS)
@pytest.mark.parametrize("part", [96, 35])
def test_a_file_gives_numpys_values_for_sizes_that_chunks_divide_and_others(
    op: CollectiveOp, make, part: int, tmp_path: Path
):
    check(op, make, part, tmp_path)


@pytest.mark.parametrize(("op", "make"), KINDS[::3])
@pytest.mark.parametrize("part", [1, 3])
def test_buffers_may_have_fewer_elements_than_chunks(
    op: CollectiveOp, make, part: int, tmp_path: Path
):
    check(op, make, part, tmp_path)


def check(op: CollectiveOp, make, part: int, tmp_path: Path) -> None:
    """Run a file in checked mode, in a random order, and compare."""
    file = make()
    elements = whole(op, file, part)
    model = loaded(file, collective_program(op, file.gpus, [elements], dtype=DType.S32), tmp_path)
    values = given((file.gpus, elements))
    run = model.run([values], checked=True, shuffle_seed=3)
    np.testing.assert_array_equal(run.outputs[0], wanted(op, values))
    assert {proof.name for proof in run.proofs if proof.holds} >= {"semantics", "races", "deadlock"}
    assert model.executable.filled[0].name == f"msccl:{file.name}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: msccl_files.ring_all_reduce(32, 4),
        lambda: msccl_files.all_pairs_all_reduce(32),
        lambda: msccl_files.hierarchical_all_reduce(4, 8, 1),
        lambda: msccl_files.halving_doubling_all_reduce(64),
    ],
    ids=["ring", "all-pairs", "hierarchical", "halving-doubling"],
)
def test_files_of_many_ranks_run(make, tmp_path: Path):
    file = make()
    program = collective_program(CollectiveOp.ALL_REDUCE, file.gpus, [512], dtype=DType.S32)
    values = given((file.gpus, 512))
    run = loaded(file, program, tmp_path).run([values], clock=False)
    np.testing.assert_array_equal(run.outputs[0], wanted(CollectiveOp.ALL_REDUCE, values))


def test_every_group_of_the_files_size_is_filled(tmp_path: Path):
    groups = ((0, 2, 4, 6), (7, 5, 3, 1))
    program = collective_program(
        CollectiveOp.ALL_REDUCE, 8, [21, 8], groups=groups, dtype=DType.S32, repeat=2
    )
    values = [given((8, 21)), given((8, 8))] * 2
    run = loaded(msccl_files.ring_all_reduce(4, 2), program, tmp_path).run(values)
    for number, one in enumerate(values):
        for group in groups:
            for rank in group:
                np.testing.assert_array_equal(run.outputs[number][rank], one[list(group)].sum(0))


@pytest.mark.parametrize("make", ALL["all-reduce"])
def test_averages_are_divided_once_where_the_sum_is_complete(make, tmp_path: Path):
    file = make()
    program = collective_program(
        CollectiveOp.ALL_REDUCE, file.gpus, [37], reduction=Reduction.AVERAGE
    )
    values = given((file.gpus, 37), np.float32)
    run = loaded(file, program, tmp_path).run([values])
    np.testing.assert_allclose(run.outputs[0], np.tile(values.mean(0), (file.gpus, 1)), rtol=1e-6)


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("coll", ["broadcast", "reduce", "gather", "scatter"])
def test_files_with_a_root_run(coll: str, root: int, tmp_path: Path):
    if coll == "broadcast":
        file = msccl_files.chain_broadcast(4, 4, root)
    else:
        file = msccl_files.direct_rooted(coll, 4, 2, root)
    op = CollectiveOp("collective-broadcast" if coll == "broadcast" else f"ncc.{coll}")
    program = collective_program(op, 4, [20], root=root, dtype=DType.S32)
    values = given((4, 20))
    (found,) = loaded(file, program, tmp_path).run([values], checked=True).outputs
    expected = np.zeros_like(found)
    match coll:
        case "broadcast":
            expected[:] = values[root]
        case "reduce":
            expected[root] = values.sum(0)
        case "gather":
            expected[root] = values.reshape(-1)
        case "scatter":
            expected[:] = values[root].reshape(4, -1)
    np.testing.assert_array_equal(found, expected)


def test_a_custom_file_fills_what_it_is_said_to(tmp_path: Path):
    pairs = tuple((rank, (rank + 1) % 4) for rank in range(4))
    program = collective_program(CollectiveOp.PERMUTE, 4, [9], pairs=pairs, dtype=DType.S32)
    values = given((4, 9))
    model = loaded(msccl_files.shifted_copy(4), program, tmp_path, "collective-permute=")
    np.testing.assert_array_equal(model.run([values]).outputs[0], np.roll(values, 1, axis=0))


def test_what_msccl_tools_prints_as_source_of_a_join_may_be_the_senders(tmp_path: Path):
    file = msccl_files.File("reduce", "reduce", 2, 1)
    file.scratch = {1: 1}
    copy = file.block(1).add("cpy", ("i", 0), ("s", 0))
    file.block(1, send=0).add("s", ("s", 0), ("o", 0), deps=[copy])
    own = file.block(0).add("cpy", ("i", 0), ("o", 0))
    file.scratch[0] = 1
    file.block(0, recv=1).add("rrc", ("s", 0), ("o", 0), deps=[own])
    program = collective_program(CollectiveOp.REDUCE, 2, [5], dtype=DType.S32)
    values = given((2, 5))
    run = loaded(file, program, tmp_path).run([values])
    np.testing.assert_array_equal(run.outputs[0][0], values.sum(0))


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_slots_are_used_again_with_credits(protocol: str, tmp_path: Path):
    file = msccl_files.ring_reduce_scatter(4, 1)
    file.chunks, file.protocol, file.blocks = 4 * 16, protocol, {}
    for gpu in range(4):
        block = file.block(gpu, (gpu + 1) % 4, (gpu - 1) % 4)
        for chunk in range(16):
            for step in range(1, 4):
                piece = ("i", (gpu - step) % 4 * 16 + chunk)
                block.add("s" if step == 1 else "rrs", piece, piece)
            block.add("rrc", ("i", gpu * 16 + chunk), ("o", chunk))
    program = collective_program(CollectiveOp.REDUCE_SCATTER, 4, [4 * 16], dtype=DType.S32)
    values = given((4, 64))
    model = loaded(file, program, tmp_path)
    run = model.run([values], shuffle_seed=1)
    np.testing.assert_array_equal(run.outputs[0], values.sum(0).reshape(4, -1))
    slots = {"Simple": 4}.get(protocol, 8)
    assert model.executable.streams[0].scratch_bytes == slots * 64


def test_a_connection_gets_more_slots_where_it_would_else_be_a_deadlock(tmp_path: Path):
    file = msccl_files.File("both", "reduce_scatter", 2, 24)
    for gpu in range(2):
        block, other = file.block(gpu, 1 - gpu, 1 - gpu), 1 - gpu
        for chunk in range(12):
            block.add("s", ("i", 12 * other + chunk), ("o", chunk))
        for chunk in range(12):
            block.add("rrc", ("i", 12 * gpu + chunk), ("o", chunk))
    program = collective_program(CollectiveOp.REDUCE_SCATTER, 2, [24], dtype=DType.S32)
    values = given((2, 24))
    run = loaded(file, program, tmp_path).run([values])
    np.testing.assert_array_equal(run.outputs[0], values.sum(0).reshape(2, -1))


@pytest.mark.parametrize("apart", [False, True])
def test_a_file_for_buffers_in_place_and_apart_is_read_as_is_right(apart: bool, tmp_path: Path):
    file = msccl_files.ring_all_reduce(4, in_place=not apart)
    text = file.xml().replace(f'inplace="{int(not apart)}"', 'inplace="1" outofplace="1"')
    path = tmp_path / "plan.xml"
    path.write_text(text)
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16], dtype=DType.S32)
    values = given((4, 16))
    run = load(program, plans=[str(path)]).run([values])
    np.testing.assert_array_equal(run.outputs[0][1], values.sum(0))


@pytest.mark.parametrize("part", [16, 7])
def test_in_place_what_is_copied_to_itself_stays_where_it_is(part: int, tmp_path: Path):
    file = msccl_files.ring_all_gather(4)
    path = tmp_path / "plan.xml"
    path.write_text(file.xml().replace('inplace="0"', 'inplace="1"'))
    program = collective_program(CollectiveOp.ALL_GATHER, 4, [part], dtype=DType.S32)
    values = given((4, part))
    run = load(program, plans=[str(path)]).run([values], checked=True)
    np.testing.assert_array_equal(run.outputs[0][2], values.reshape(-1))


def test_what_a_reduction_in_place_leaves_beside_the_root_is_cleared(tmp_path: Path):
    file = msccl_files.File("chain", "reduce", 4, 2, in_place=True)
    for gpu in range(4):
        block = file.block(gpu, gpu - 1, -1 if gpu == 3 else gpu + 1, 0)
        for chunk in range(2):
            ref = ("i", chunk)
            block.add("s" if gpu == 3 else "rrcs" if gpu else "rrc", ref, ref)
    program = collective_program(CollectiveOp.REDUCE, 4, [9], dtype=DType.S32)
    values = given((4, 9))
    run = loaded(file, program, tmp_path).run([values], checked=True, shuffle_seed=1)
    np.testing.assert_array_equal(run.outputs[0][0], values.sum(0))
    assert not run.outputs[0][1:].any()


def test_a_single_gpu_may_have_no_steps(tmp_path: Path):
    program = collective_program(CollectiveOp.ALL_REDUCE, 1, [5], dtype=DType.S32)
    values = given((1, 5))
    run = loaded(msccl_files.File("none", "allreduce", 1, 2, in_place=True), program, tmp_path)
    np.testing.assert_array_equal(run.run([values]).outputs[0], values)


@pytest.mark.parametrize("make", ALL["all-reduce"])
def test_a_program_in_place_is_right_for_sizes_that_chunks_do_not_divide(make, tmp_path: Path):
    file = make()
    groups = ",".join(map(str, range(file.gpus)))
    program = program_of(ncc_compiler.compile_text(IN_PLACE.replace("GROUP", groups)))
    assert program.placeholders[0].in_place
    values = given((file.gpus, 35))
    run = loaded(file, program, tmp_path).run([values], checked=True, clock=False)
    np.testing.assert_array_equal(run.outputs[0][1], -2 * values.sum(0))
