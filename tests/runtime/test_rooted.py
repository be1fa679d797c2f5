"""Operators with a root, averages and barriers: their rules, their text, what they do and when."""

import attrs
import ml_dtypes
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.neff.check import check
from ncc_runtime.neff.document import files_of, program_from
from ncc_runtime.neff.listing import parse_program, print_program
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.options import LoadOptions
from ncc_runtime.placement import PlaceOptions
from ncc_runtime.runtime import load_on
from tests.programs import LINK_DOWN, collective_program

ROOTED = [op for op in CollectiveOp if op.is_rooted]
NEW = [*ROOTED, CollectiveOp.BARRIER]
TWO_GROUPS = ((2, 0), (3, 1))


def program_of(op: CollectiveOp, **more: object) -> Program:
    sizes = [] if op is CollectiveOp.BARRIER else [4]
    return collective_program(op, 4, sizes, groups=TWO_GROUPS, **more)


def changed(program: Program, **columns: object) -> Program:
    placeholders = tuple(attrs.evolve(one, **columns) for one in program.placeholders)
    return attrs.evolve(program, placeholders=placeholders)


@pytest.mark.parametrize("op", NEW)
def test_a_program_obeys_the_rules_and_its_listing_reads_back(op: CollectiveOp) -> None:
    program = program_of(op, root=1)
    assert check(program) == ()
    assert parse_program(print_program(program)) == program
    assert program_from(files_of(program)) == program


@pytest.mark.parametrize(
    ("op", "columns", "complaint"),
    [
        (CollectiveOp.REDUCE, {"root": None}, "neff-P9 placeholder p0 (ncc.reduce): has no root"),
        (CollectiveOp.GATHER, {"root": 2}, "neff-P9 placeholder p0 (ncc.gather): root 2, a group"),
        (CollectiveOp.SCATTER, {"root": -1}, "neff-P9 placeholder p0 (ncc.scatter): root -1,"),
        (CollectiveOp.BARRIER, {"root": 0}, "neff-P9 placeholder p0 (ncc.barrier): has a root"),
        (CollectiveOp.BARRIER, {"groups": ((0, 1),)}, "neff-P3 placeholder p0 (ncc.barrier): 2 of"),
        (CollectiveOp.BROADCAST, {"groups": ((0, 0),)}, "neff-P3 placeholder p0 (collective-broad"),
        (CollectiveOp.REDUCE, {"reduction": None}, "neff-P2 placeholder p0 (ncc.reduce): no reduc"),
        (
            CollectiveOp.BROADCAST,
            {"operands": (), "results": ()},
            "neff-P1 placeholder p0 (collect",
        ),
    ],
)
def test_a_breach_is_reported_under_its_rule(
    op: CollectiveOp, columns: dict[str, object], complaint: str
) -> None:
    found = check(changed(program_of(op), **columns))
    assert any(one.startswith(complaint) for one in found), found


def test_integers_have_no_average() -> None:
    program = program_of(CollectiveOp.ALL_REDUCE, dtype=DType.S32, reduction=Reduction.AVERAGE)
    (found,) = check(program)
    assert found == "neff-P2 placeholder p0 (all-reduce): average is not defined on s32"


def test_an_average_is_rounded_behind_its_division() -> None:
    """256 + 4 + 1 is 261, a third of it 87; bfloat16 has no 261, and a third of 260 is 86.5."""
    program = collective_program(
        CollectiveOp.REDUCE, 3, [1], dtype=DType.BF16, reduction=Reduction.AVERAGE
    )
    values = np.array([[1], [4], [256]]).astype(ml_dtypes.bfloat16)
    (result,) = ncc_runtime.load(program).run([values]).outputs
    assert result.astype(np.float32).ravel().tolist() == [87, 0, 0]


@pytest.mark.parametrize("op", [CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER])
def test_only_the_descriptor_that_completes_an_average_divides(op: CollectiveOp) -> None:
    program = collective_program(op, 4, [64], reduction=Reduction.AVERAGE)
    model = ncc_runtime.load(program, algorithms={op.value: "ring"})
    for queue in model.executable.queues:
        if hasattr(queue, "divisor"):
            completes = (queue.peer == np.arange(4)).any(axis=1)  # at home, in a ring
            assert ((queue.divisor == 4) == completes).all()


REDUCING = [
    (op, name)
    for op in (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER)
    for name in ALGORITHMS[op]
]


@pytest.mark.parametrize(("op", "name"), REDUCING)
def test_every_algorithm_averages(op: CollectiveOp, name: str) -> None:
    """Where it can: on some chips of an instance, on all of it, on two, joined by Z, or damaged."""
    places = [
        (4, PlaceOptions("trn2")),
        (64, PlaceOptions("trn2")),
        (32, PlaceOptions("trn2", 2)),
        (64, PlaceOptions("trn2-ultraserver", placement="spread")),
        (64, PlaceOptions(LINK_DOWN)),
    ]
    found = [_averages(op, name, *place) for place in places]
    assert any(found)


def _averages(op: CollectiveOp, name: str, ranks: int, place: PlaceOptions) -> bool:
    """Whether the algorithm runs there; then it must be right."""
    program = collective_program(op, ranks, [2 * ranks], reduction=Reduction.AVERAGE)
    given = np.random.default_rng(0).integers(0, 99, (ranks, 2 * ranks)).astype(np.float32)
    try:
        model = load_on(program, place, LoadOptions(algorithms={op.value: name}))
    except LoweringError as error:
        if "cannot run by" not in str(error):
            raise
        return False
    (result,) = model.run([given], clock=False).outputs
    wanted = np.broadcast_to(given.sum(axis=0) / np.float32(ranks), given.shape)
    if op is CollectiveOp.REDUCE_SCATTER:
        wanted = wanted[0].reshape(ranks, 2)
    np.testing.assert_array_equal(result, wanted)
    return True


def test_everybody_leaves_a_barrier_after_the_last_has_come() -> None:
    """Ranks 0 and 1 are held up by a large all-reduce of theirs."""
    program = collective_program(
        CollectiveOp.ALL_REDUCE, 5, [1 << 16], groups=((0, 1), (2,), (3,), (4,))
    )
    (first,) = program.placeholders
    barrier = attrs.evolve(
        first, op=CollectiveOp.BARRIER, operands=(), results=(), reduction=None,
        groups=((4, 1, 0, 2, 3),),
    )  # fmt: skip
    both = attrs.evolve(program, placeholders=(first, barrier))
    table = collective_program(CollectiveOp.BARRIER, 5, [], repeat=2).queues
    run = ncc_runtime.load(attrs.evolve(both, queues=table)).run(seed=0)
    assert run.trace is not None
    (_, _, reduced), (_, came, left) = run.trace.spans(0), run.trace.spans(1)
    assert came.max() > reduced.min()
    assert left.min() >= came.max()


@pytest.mark.parametrize("op", ROOTED)
@pytest.mark.parametrize("elements", [0, 1, 3, 100_003])
def test_any_size_works_on_every_root(op: CollectiveOp, elements: int) -> None:
    members = 3
    size = elements * members if op is CollectiveOp.SCATTER else elements
    for root in range(members):
        program = collective_program(op, members, [size, 1 * members], root=root, dtype=DType.S32)
        given = [
            np.arange(members * count, dtype=np.int32).reshape(members, count)
            for count in (size, members)
        ]
        run = ncc_runtime.load(program).run(given, checked=True)
        for operand, result in zip(given, run.outputs, strict=True):
            np.testing.assert_array_equal(result, _expected(op, operand, root))


def _expected(op: CollectiveOp, operand: np.ndarray, root: int) -> np.ndarray:
    members = len(operand)
    if op is CollectiveOp.BROADCAST:
        return np.broadcast_to(operand[root], operand.shape)
    if op is CollectiveOp.SCATTER:
        return operand[root].reshape(members, -1)
    whole = operand.sum(axis=0, dtype=operand.dtype)
    whole = operand.ravel() if op is CollectiveOp.GATHER else whole
    result: np.ndarray = np.zeros((members, whole.size), operand.dtype)
    result[root] = whole
    return result
