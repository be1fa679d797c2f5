"""MSCCL files of the usual kinds are proved, run, and give numpy's values."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import ncc_compiler
from ncc_runtime.lowering.executable import DmaQueue
from ncc_runtime.lowering.listing import list_executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
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
    assert model.executable.lowered[0].name == f"msccl:{file.name}"


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
    model = loaded(file, program, tmp_path)
    run = model.run([values])
    np.testing.assert_array_equal(run.outputs[0][0], values.sum(0))
    (said,) = [line.message for line in model.warnings if line.code == "plan"]
    assert said.startswith(f"plan {tmp_path}/plan.xml: gpu 0, tb 1 step 0: rrc, rrs and rrcs join ")
    assert "MSCCL's executors would join it to the sources that they name" in said


def test_joins_that_are_read_otherwise_than_written_are_named_by_gpus_alike(tmp_path: Path):
    """Gpus 1 to 3 send from scratch to gpu 0, whose joins name that scratch as their source."""
    file = msccl_files.File("reduce", "reduce", 4, 2, protocol="LL")
    file.scratch = dict.fromkeys(range(4), 2)
    for chunk in range(2):
        last = file.block(0).add("cpy", ("i", chunk), ("o", chunk))
        for gpu in (1, 2, 3):
            copy = file.block(gpu).add("cpy", ("i", chunk), ("s", chunk))
            file.block(gpu, send=0).add("s", ("s", chunk), ("o", chunk), deps=[copy])
            block = file.block(0, recv=gpu)
            last = block.add("rrc", ("s", chunk), ("o", chunk), deps=[last])
    program = collective_program(CollectiveOp.REDUCE, 4, [6], dtype=DType.S32)
    values, model = given((4, 6)), loaded(file, program, tmp_path)
    np.testing.assert_array_equal(model.run([values]).outputs[0][0], values.sum(0))
    (said,) = [line.message for line in model.warnings if line.code == "plan"]
    assert "plan.xml: gpu 0, tb 1 steps 0-1, tb 2 steps 0-1, tb 3 steps 0-1: rrc, rrs and " in said
    assert not [
        line
        for line in loaded(
            msccl_files.ring_reduce_scatter(4),
            collective_program(CollectiveOp.REDUCE_SCATTER, 4, [16], dtype=DType.S32),
            tmp_path,
        ).warnings
        if line.code == "plan"
    ]


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
    slots = {"Simple": 2}.get(protocol, 8)
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
    model = loaded(file, program, tmp_path)
    np.testing.assert_array_equal(model.run([values]).outputs[0], values.sum(0).reshape(2, -1))
    (said,) = [line.message for line in model.warnings if line.code == "plan"]
    assert "jams on a GPU, where a connection of Simple holds 2 chunks: " in said
    assert said.endswith(
        "gpu 0, tb 0, step 2 waits for the slot that is emptied by gpu 1, tb 0, step 12, which "
        "comes behind gpu 1, tb 0, step 2; gpu 1, tb 0, step 2 waits for the slot that is emptied "
        "by gpu 0, tb 0, step 12, which comes behind gpu 0, tb 0, step 2"
    )


@pytest.mark.parametrize(
    ("protocol", "chunks", "jams"),
    [
        ("Simple", 2, False),
        ("Simple", 3, True),
        ("LL", 8, False),
        ("LL128", 9, True),
    ],
)
def test_what_jams_on_a_gpu_is_said(protocol: str, chunks: int, jams: bool, tmp_path: Path):
    """Both send all before they receive: a connection holds as many chunks as it has slots."""
    program = collective_program(CollectiveOp.ALL_TO_ALL, 2, [4 * chunks], dtype=DType.S32)
    for is_one_step in (False, True):
        file = msccl_files.File("swap", "alltoall", 2, 2 * chunks, protocol=protocol)
        count = chunks if is_one_step else 1
        for gpu in range(2):
            block, other = file.block(gpu, 1 - gpu, 1 - gpu), 1 - gpu
            for kind in "sr":
                for chunk in range(0, chunks, count):
                    source, target = ("i", chunks * other + chunk), ("o", chunks * gpu + chunk)
                    if kind == "r":
                        target = "o", chunks * other + chunk
                    block.add(kind, source, target, count)
            file.copies[gpu] = [(chunks * gpu + k, chunks * gpu + k) for k in range(chunks)]
        said = [line for line in loaded(file, program, tmp_path).warnings if "jams" in line.message]
        assert len(said) == jams
        if jams and is_one_step:
            assert (
                "jams on a GPU with buffers so large that chunks go one by one, where a "
                f"connection of {protocol} holds {chunks - 1} chunks: gpu 0, tb 0, step 0 sends "
                f"{chunks}, and gpu 1, tb 0, step 1 waits before it receives them"
                in said[0].message
            )


def with_copies(file: File) -> File:
    """The same, where thread blocks that only copy are copies of the gpu."""
    for gpu, its in file.blocks.items():
        for key, block in list(its.items()):
            if all(step.kind == "cpy" for step in block.steps):
                del its[key]
                file.copies.setdefault(gpu, []).extend(
                    (step.source[1] + k, step.target[1] + k)
                    for step in block.steps
                    for k in range(step.count)
                )
    return file


@pytest.mark.parametrize("part", [16, 7])
@pytest.mark.parametrize(
    ("op", "make"),
    [
        (CollectiveOp.ALL_GATHER, lambda: msccl_files.ring_all_gather(4, 2)),
        (CollectiveOp.ALL_TO_ALL, lambda: msccl_files.direct_all_to_all(4, 2)),
    ],
)
def test_copies_outside_of_thread_blocks_are_made(op: CollectiveOp, make, part: int, tmp_path):
    file = with_copies(make())
    assert sum(map(len, file.copies.values())) == 8
    check(op, lambda: file, part, tmp_path)


def test_a_copy_to_itself_in_place_moves_nothing(tmp_path: Path):
    file = msccl_files.ring_all_gather(4, 2, in_place=True)
    program = collective_program(CollectiveOp.ALL_GATHER, 4, [8], dtype=DType.S32)
    without = loaded(file, program, tmp_path).executable
    file.copies = {gpu: [(0, 2 * gpu), (1, 2 * gpu + 1)] for gpu in range(4)}
    assert 'i_off="1" o_off="7"' in file.xml()
    check(CollectiveOp.ALL_GATHER, lambda: file, 8, tmp_path)
    within = loaded(file, program, tmp_path).executable
    moved = [
        [len(queue.opcode) for queue in one.queues if isinstance(queue, DmaQueue)]
        for one in (without, within)
    ]
    assert moved[0] == moved[1] != []


@pytest.mark.parametrize("seed", range(4))
def test_steps_that_use_a_copys_chunks_follow_it(seed: int, tmp_path: Path):
    """The first send reads what the copy writes, the last receive overwrites what it reads."""
    file = msccl_files.File("swap", "allreduce", 2, 2)
    for gpu in range(2):
        file.copies[gpu] = [(0, 0), (1, 1)]
        for chunk in range(2):
            block = file.block(gpu, 1 - gpu, 1 - gpu, chunk)
            block.add("s", ("o", chunk), ("i", chunk))
            came = block.add("r", ("o", chunk), ("i", chunk))
            file.block(gpu, chan=chunk).add("re", ("i", chunk), ("o", chunk), deps=[came])
    program = collective_program(CollectiveOp.ALL_REDUCE, 2, [10], dtype=DType.S32)
    values = given((2, 10))
    run = loaded(file, program, tmp_path).run([values], checked=True, shuffle_seed=seed)
    np.testing.assert_array_equal(run.outputs[0], np.tile(values.sum(0), (2, 1)))


def test_a_file_without_coll_fills_what_it_is_said_to(tmp_path: Path):
    path = tmp_path / "plan.xml"
    path.write_text(msccl_files.ring_all_reduce(4).xml().replace('coll="allreduce"', ""))
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16], dtype=DType.S32)
    values = given((4, 16))
    run = load(program, plans=[f"all-reduce={path}"]).run([values])
    np.testing.assert_array_equal(run.outputs[0], wanted(CollectiveOp.ALL_REDUCE, values))


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


def test_gpus_may_stand_in_any_order(tmp_path: Path):
    file, path = msccl_files.all_pairs_all_reduce(4), tmp_path / "turned.xml"
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [64])
    root = ElementTree.fromstring(file.xml())
    root[:] = [root[k] for k in (2, 0, 3, 1)]
    path.write_bytes(ElementTree.tostring(root))
    turned, straight = load(program, plans=[str(path)]), loaded(file, program, tmp_path)
    for rank in range(4):
        expected = list_executable(straight.executable, rank)
        assert list_executable(turned.executable, rank) == expected


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
