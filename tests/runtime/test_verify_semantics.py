"""Proof of what collectives compute: all algorithms pass, and what is wrong is named."""

import functools
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pytest
from hypothesis import given, settings

import ncc_compiler
import ncc_runtime
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.options import LoadOptions
from ncc_runtime.order import Batch
from ncc_runtime.placement import PlaceOptions
from ncc_runtime.runtime import load_on
from ncc_runtime.verify.deadlock import greedy
from ncc_runtime.verify.proof import Proof
from ncc_runtime.verify.segments import Segment, segments
from ncc_runtime.verify.semantics import results, semantics
from ncc_runtime.verify.semantics.cells import MemoryCells
from ncc_runtime.verify.semantics.fingerprints import Powers
from ncc_runtime.verify.semantics.semantics import prove_semantics
from tests.draws_collectives import Case, cases
from tests.example_count import examples
from tests.programs import LINK_DOWN, collective_program

ALL = [(op, name) for op, names in ALGORITHMS.items() for name in names]
COLUMNS = [
    "opcode", "divisor", "peer", "sources", "target", "size_bytes", "source_rank", "second_peer",
    "second_target",
]  # fmt: skip

Columns = dict[str, np.ndarray]


def proof_of(executable: Executable) -> Proof:
    return prove_semantics(executable, segments(executable), greedy(executable))


def executable_of(
    program: Program, name: str | None = None, place: PlaceOptions | None = None
) -> Executable:
    op = program.placeholders[0].op.value
    options = LoadOptions(algorithms={} if name is None else {op: name})
    return load_on(program, place or PlaceOptions("trn2", 1), options).executable


def edited(executable: Executable, edit: Callable[[Columns], None], lane: int = 0) -> Executable:
    """The same with columns of one DMA ring changed in place by `edit`."""
    queues = list(executable.queues)
    for number, queue in enumerate(queues):
        if isinstance(queue, DmaQueue) and queue.lane == lane:
            there = {name: getattr(queue, name) for name in COLUMNS}
            columns = {name: column.copy() for name, column in there.items() if column is not None}
            edit(columns)
            queues[number] = attrs.evolve(queue, **columns)
    return attrs.evolve(executable, queues=tuple(queues))


def complaint(executable: Executable) -> str:
    """All that is said, and it is said twice alike."""
    proof = proof_of(executable)
    assert not proof.holds
    assert proof_of(executable).texts == proof.texts
    return "\n".join(proof.texts)


TWICE = """
HloModule twice, num_partitions=4
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
ENTRY main {
  x = f32[64] parameter(0)
  y = f32[64] all-reduce(x), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true,
    to_apply=sum
  ROOT z = f32[64] all-reduce(y), channel_id=2, replica_groups=[1,4]<=[4],
    use_global_device_ids=true, to_apply=sum
}"""


def test_placeholders_whose_rows_differ_in_one_cell_are_proved_apart() -> None:
    neff = ncc_compiler.compile_text(TWICE)
    alike = ncc_runtime.load(neff, algorithms={"all-reduce": "ring"}).executable

    def shorten_the_last(columns: Columns) -> None:
        columns["size_bytes"][-1, -1] -= 4

    assert [one.numbers for one in segments(alike)] == [(0, 1)]
    apart = segments(edited(alike, shorten_the_last))
    assert [one.numbers for one in apart] == [(0,), (1,)]


def suited(op: CollectiveOp, name: str) -> list[Executable]:
    """The algorithm where it can run: on some chips of an instance, on two, else on a whole one.

    What runs on none of these is for instances joined by links, or with links down.
    """
    found: list[Executable] = []
    places = [(4, PlaceOptions("trn2")), (16, PlaceOptions("trn2")), (16, PlaceOptions("trn2", 2))]
    whole = [PlaceOptions("trn2-ultraserver", placement="spread"), PlaceOptions(LINK_DOWN)]
    for ranks, place in (*places, (64, PlaceOptions("trn2")), *((64, one) for one in whole)):
        if ranks == 64 and found:
            continue
        sizes = [] if op is CollectiveOp.BARRIER else [3 * ranks, ranks]
        sizes = sizes[:1] if op.is_counted else sizes
        pairs = tuple((rank, (3 * rank) % ranks) for rank in range(1, ranks, 2))
        program = collective_program(
            op, ranks, sizes, root=1, pairs=pairs if op is CollectiveOp.PERMUTE else ()
        )
        try:
            found.append(executable_of(program, name, place))
        except LoweringError as error:
            if "cannot run by" not in str(error):
                raise
    return found


@pytest.mark.parametrize(("op", "name"), ALL)
def test_every_algorithm_is_proved_wherever_it_runs(op: CollectiveOp, name: str) -> None:
    found = suited(op, name)
    assert found
    for executable in found:
        assert proof_of(executable).texts == ()


@settings(max_examples=examples(40))
@given(case=cases())
def test_there_is_no_false_alarm_on_random_collectives(case: Case) -> None:
    """Any operator, groups, sizes, dtype, reduction and placement."""
    topology, nodes, placement, lnc = case.place
    on = PlaceOptions(topology, nodes, placement, lnc)
    proof = proof_of(load_on(case.program, on, LoadOptions()).executable)
    assert proof.texts == ()


def ring(elements: int = 16, ranks: int = 4, **more: object) -> Executable:
    """Rounds 0 to 2 reduce into slots, round 3 into the result at home, 4 to 6 gather."""
    return executable_of(
        collective_program(CollectiveOp.ALL_REDUCE, ranks, [elements], **more), "ring"
    )


def gather() -> Executable:
    return executable_of(collective_program(CollectiveOp.ALL_GATHER, 4, [4]), "ring")


def drop(columns: Columns) -> None:
    columns["size_bytes"][1, 2] = 0


def shift_source(columns: Columns) -> None:
    columns["sources"][0, 1, 0] += 4


def shift_target(columns: Columns) -> None:
    columns["target"][5, 1] += 4


def swap(columns: Columns) -> None:
    for name in ("sources", "target", "opcode"):
        columns[name][[1, 2]] = columns[name][[2, 1]]


def join_twice(columns: Columns) -> None:
    columns["sources"][2, 0, 0] = columns["sources"][2, 0, 1]


def redirect(columns: Columns) -> None:
    columns["peer"][4, 0] = 2


def copy_only(columns: Columns) -> None:
    columns["opcode"][1] = DmaOpcode.COPY


def skip_division(columns: Columns) -> None:
    columns["divisor"][3] = 1


def divide_by_two(columns: Columns) -> None:
    columns["divisor"][3] = 2


def divide_early(columns: Columns) -> None:
    columns["divisor"][2] = 4


def read_far_away(columns: Columns) -> None:
    columns["sources"][4, 0, 0] = 1 << 20


def write_operand(columns: Columns) -> None:
    columns["target"][4, 0] = 0


def write_beyond(columns: Columns) -> None:
    columns["target"][6, 1] = 0x40 + 0x34


def split_element(columns: Columns) -> None:
    columns["sources"][4, 0, 0] += 2


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (drop, "rank 0, result 0, bytes 0x0..0x10: also holds what was never written (rank 3's"),
        (drop, "the contributions of ranks 1, 2 are missing"),
        (shift_source, "holds rank 1's operand 0 at 0x4 instead of rank 1's operand 0 at 0x0"),
        (shift_target, "rank 2, result 0, bytes 0x0..0x14: holds what was never written"),
        (shift_target, "no transfer writes there"),
        (swap, "wrong on 4 of 4 ranks"),
        (join_twice, "contribution of rank 0 is counted twice, the contributions of ranks 2, 3"),
        (redirect, "wrong on 3 of 4 ranks"),
        (copy_only, "the contribution of rank 2 is missing"),
        (copy_only, "last written in round 3 by rank 0, queue cc0.dma0, pc 3 (p0 all-reduce.0)"),
        (read_far_away, "rank 0, queue cc0.dma0, pc 4 (p0 all-reduce.0): reads 0x100000..0x100010"),
        (write_operand, "pc 4 (p0 all-reduce.0): writes 0x0..0x10 of rank 1, which it must not"),
        (write_beyond, "writes 0x74..0x84 of rank 2, which it must not write"),
        (split_element, "pc 4 (p0 all-reduce.0): cuts elements of 4 bytes apart"),
    ],
)
def test_a_broken_ring_is_refuted_in_these_words(
    edit: Callable[[Columns], None], words: str
) -> None:
    assert words in complaint(edited(ring(), edit))


def test_breaches_are_records_of_rows_ranks_and_placeholders() -> None:
    executable = ring()
    first, *_, result = proof_of(edited(executable, write_operand)).breaches
    (cell,) = first.cells
    assert executable.queues[cell.queue].name == "cc0.dma0"
    assert (first.rule, cell.row, cell.rank, first.placeholders) == (
        "semantics.transfer",
        4,
        0,
        {0},
    )
    assert (result.rule, result.placeholders) == ("semantics.result", {0})
    assert len(result.ranks) == int(result.text.split("wrong on ")[1].split()[0])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (skip_division, "the contributions of ranks 0, 1, 2, 3 are not divided by 4"),
        (divide_by_two, "the contributions of ranks 0, 1, 2, 3 are divided by 2 instead of by 4"),
        (divide_early, "the contributions of ranks 1, 2, 3 are divided by 16 instead of by 4"),
    ],
)
def test_an_average_is_divided_once_by_the_size_of_its_group(
    edit: Callable[[Columns], None], words: str
) -> None:
    average = ring(reduction=Reduction.AVERAGE)
    assert proof_of(average).holds
    assert words in complaint(edited(average, edit))


def averaged_in_steps(name: str, first: int, last: int) -> Executable:
    """An average over 8 ranks that divides in its first round of joins, then in its last."""
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [64], reduction=Reduction.AVERAGE)
    executable = executable_of(program, name)
    queues = list(executable.queues)
    for number, queue in enumerate(queues):
        if isinstance(queue, DmaQueue):
            joins = queue.opcode == DmaOpcode.REDUCE
            divisor = np.where(joins, np.where(queue.round == 0, first, last), 1).astype(np.int32)
            queues[number] = attrs.evolve(queue, divisor=divisor)
    return attrs.evolve(executable, queues=tuple(queues))


@pytest.mark.parametrize("name", ["mesh", "rdh"])
def test_a_sum_of_quotients_is_no_average(name: str) -> None:
    """It has the fingerprint of one, and is rounded otherwise."""
    assert proof_of(averaged_in_steps(name, 1, 8)).holds
    assert "joins or divides what is divided" in complaint(averaged_in_steps(name, 8, 1))


def test_an_average_that_is_divided_in_two_steps_says_so() -> None:
    found = complaint(averaged_in_steps("mesh", 2, 4))
    assert "joins or divides what is divided" in found
    assert "is made of the right bytes, by transfers that must not be" in found


def test_a_gather_that_joins_is_refuted() -> None:
    def join(columns: Columns) -> None:
        columns["sources"] = np.repeat(columns["sources"], 2, axis=2)
        columns["opcode"][1] = DmaOpcode.REDUCE

    found = complaint(edited(gather(), join))
    assert "joins values, which nobody asked for" in found
    assert "holds 2 x rank 0's operand 0 at 0x0 instead of rank 0's operand 0 at 0x0" in found


def test_a_gather_of_the_wrong_chunk_is_refuted() -> None:
    def repeat(columns: Columns) -> None:
        columns["sources"][-1] = columns["sources"][-2]

    found = complaint(edited(gather(), repeat))
    assert "rank 0, result 0, bytes 0x10..0x20: holds rank 2's operand 0 at 0x0 instead of" in found


def of_other_owner(columns: Columns) -> tuple[int, ...]:
    """The first source that lies in another rank's memory."""
    owner = columns["source_rank"]
    own = np.arange(owner.shape[1])[None, :, None]
    return tuple(np.argwhere((owner != own) & (owner != IDLE))[0].tolist())


def kangaring() -> Executable:
    return executable_of(collective_program(CollectiveOp.ALL_REDUCE, 8, [32]), "kangaring")


def test_reading_the_wrong_neighbour_is_refuted() -> None:
    def redirect(columns: Columns) -> None:
        columns["source_rank"][of_other_owner(columns)] = 3

    found = complaint(edited(kangaring(), redirect))
    assert "the contribution of rank 3 is counted twice" in found


def test_only_operands_are_read_in_the_memory_of_others() -> None:
    def take_its_slot(columns: Columns) -> None:
        at = of_other_owner(columns)
        columns["sources"][at] = columns["target"][at[:2]]

    assert "of rank 1, which it must not read" in complaint(edited(kangaring(), take_its_slot))


def test_the_second_target_of_a_transfer_counts() -> None:
    def shift(columns: Columns) -> None:
        row, rank = np.argwhere(columns["second_peer"] != IDLE)[3]
        columns["second_target"][row, rank] -= 4

    assert "last written in round" in complaint(edited(kangaring(), shift))


def test_a_rank_that_is_given_nothing_must_have_zeros() -> None:
    program = collective_program(CollectiveOp.BROADCAST, 4, [16], groups=((2, 0),), root=1)

    def shorten(columns: Columns) -> None:
        row, rank = np.argwhere(
            (columns["opcode"] == DmaOpcode.FILL)[:, None] & (columns["peer"] != IDLE)
        )[0]
        columns["size_bytes"][row, rank] -= 4

    broken = edited(executable_of(program), shorten)
    assert "bytes 0x3c..0x40: holds what was never written" in complaint(broken)
    assert "instead of zeros" in complaint(broken)


def test_a_copy_of_nothing_is_no_fill() -> None:
    program = collective_program(CollectiveOp.GATHER, 4, [16], root=1)

    def copy(columns: Columns) -> None:
        columns["opcode"][columns["opcode"] == DmaOpcode.FILL] = DmaOpcode.COPY

    found = complaint(edited(executable_of(program), copy))
    assert "has no source, and fills no zeros" in found


def test_zeros_are_no_operand_of_a_product() -> None:
    """Fingerprints add, so they alone would take zeros for nothing."""

    def fill_and_join(columns: Columns) -> None:
        columns["opcode"][0] = DmaOpcode.FILL

    program = collective_program(
        CollectiveOp.ALL_REDUCE, 4, [16], dtype=DType.S32, reduction=Reduction.MULTIPLY
    )
    found = complaint(edited(executable_of(program, "ring"), fill_and_join))
    assert "joins zeros that a fill has written" in found


@pytest.mark.parametrize("dtype", [DType.PRED, DType.S8, DType.BF16, DType.C128])
@pytest.mark.parametrize("elements", [1, 6, 4099])
def test_chunks_of_any_size_are_proved_element_by_element(dtype: DType, elements: int) -> None:
    def shift(columns: Columns) -> None:
        row, rank = np.argwhere(columns["size_bytes"] > 0)[-1]
        columns["sources"][row, rank, 0] += dtype.size_bytes

    reduction = Reduction.MAXIMUM if dtype is DType.PRED else Reduction.ADD
    right = ring(elements, dtype=dtype, reduction=reduction)
    assert proof_of(right).holds
    assert not proof_of(edited(right, shift)).holds


def test_buffers_without_bytes_hold_what_they_must() -> None:
    proof = proof_of(ring(0))
    assert proof.holds
    assert proof.size == "28 transfers into 0 byte ranges of 1 collectives (1 distinct)"


def in_place() -> Executable:
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16, 5])
    (placeholder,) = program.placeholders
    program = attrs.evolve(
        program,
        placeholders=(attrs.evolve(placeholder, results=placeholder.operands, in_place=True),),
        outputs=placeholder.operands,
    )
    return executable_of(program, "ring")


def test_in_place_results_are_proved() -> None:
    assert proof_of(in_place()).holds


def test_in_place_an_operand_that_stays_is_no_result() -> None:
    found = complaint(edited(in_place(), lambda columns: columns["size_bytes"].__setitem__(-1, 0)))
    assert "the contributions of ranks" in found


def test_the_second_tensor_is_named() -> None:
    right = executable_of(collective_program(CollectiveOp.ALL_REDUCE, 4, [16, 8]), "ring")

    def shift(columns: Columns) -> None:
        columns["sources"][-1, 1, 0] -= 8

    assert "result 1, bytes" in complaint(edited(right, shift))


def test_alike_collectives_are_proved_once() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16], repeat=3)
    proof = proof_of(executable_of(program, "ring"))
    assert proof.holds
    assert proof.size == "84 transfers into 48 byte ranges of 3 collectives (1 distinct)"


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("edit", [None, drop, shift_source, shift_target, swap, join_twice])
def test_it_does_not_matter_how_memory_is_cut(
    even: bool, edit: Callable[[Columns], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = ring(18) if edit is None else edited(ring(18), edit)
    expected = proof_of(executable).texts
    evenly = functools.partial(results.outcome_of, even=even)
    monkeypatch.setattr(semantics, "outcome_of", evenly)
    assert proof_of(executable).texts == expected


def test_a_cell_that_is_written_from_two_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,003 elements are 12 cells; a chunk read one element late ends with another's first."""

    def shift(columns: Columns) -> None:
        columns["sources"][4, 1, 0] += 4

    runs = []
    perform = results._run

    def counted(segment: Segment, batches: Sequence[Batch], cells: MemoryCells) -> object:
        runs.append(len(cells))
        return perform(segment, batches, cells)

    monkeypatch.setattr(results, "_run", counted)
    executable = edited(ring(100_003), shift)
    (found,) = proof_of(executable).texts
    assert runs == [12, 13]
    assert "holds rank 0's operand 0 at 0x186a8 instead of rank 0's operand 0 at 0x186a4" in found


def test_powers_of_large_exponents_are_products_of_two_that_are_looked_up() -> None:
    exponents = np.array([0, 1, 2**14 - 1, 2**14, 2**14 + 1, 2**22])
    powers = Powers.up_to(2**22)
    base = int(powers(np.array([1]))[0])
    assert powers(exponents).tolist() == [pow(base, int(one), 2**64) for one in exponents]
