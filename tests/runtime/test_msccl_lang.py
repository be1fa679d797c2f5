"""Programs over chunks, lowered as msccl-tools does it, give numpy's values in and out of place."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.runtime import load
from tests.msccl_lang import Lang
from tests.programs import collective_program
from tests.runtime.test_msccl_files import given, wanted


def ring(gpus: int, *, in_place: bool) -> Lang:
    """Every chunk around, joined, and around once more."""
    lang = Lang("allreduce", gpus, gpus, in_place=in_place)
    for gpu in range(gpus):
        lang.chunk(gpu, "i", 0, gpus).copy(gpu, "o", 0)
    for first in range(gpus):
        chunk = lang.chunk((first + 1) % gpus, "o", first)
        for step in range(2, gpus + 1):
            chunk = lang.chunk((first + step) % gpus, "o", first).reduce(chunk, first % 2)
        for step in range(1, gpus):
            chunk = chunk.copy((first + step) % gpus, "o", first, first % 2)
    return lang


def all_pairs(gpus: int, *, in_place: bool) -> Lang:
    """Everything to everybody's scratch at once, joined there, and back."""
    lang = Lang("allreduce", gpus, gpus, in_place=in_place)
    for gpu in range(gpus):
        lang.chunk(gpu, "i", 0, gpus).copy(gpu, "o", 0)
    pairs = [(one, other) for one in range(gpus) for other in range(gpus) if one != other]
    for one, other in pairs:
        lang.chunk(one, "i", other).copy(other, "s", one)
    for one, other in pairs:
        lang.chunk(one, "o", one).reduce(lang.chunk(one, "s", other))
    for one, other in pairs:
        lang.chunk(one, "o", one).copy(other, "o", one)
    return lang


def two_levels(gpus: int, *, in_place: bool) -> Lang:
    """All pairs of a node of two, a ring of the same places, all pairs again; a channel each."""
    lang, nodes = Lang("allreduce", gpus, 2, in_place=in_place), gpus // 2
    for gpu in range(gpus):
        lang.chunk(gpu, "i", 0, 2).copy(gpu, "o", 0)
    for gpu in range(gpus):
        lang.chunk(gpu, "o", 1 - gpu % 2).copy(gpu ^ 1, "s", 0)
    for gpu in range(gpus):
        lang.chunk(gpu, "o", gpu % 2).reduce(lang.chunk(gpu, "s", 0))
    for place in range(2):
        chunk = lang.chunk(place, "o", place)
        for node in range(1, nodes):
            chunk = lang.chunk(2 * node + place, "o", place).reduce(chunk, 1)
        for node in range(nodes - 1):
            chunk = chunk.copy(2 * node + place, "o", place, 1)
    for gpu in range(gpus):
        lang.chunk(gpu, "o", gpu % 2).copy(gpu ^ 1, "o", gpu % 2, 2)
    return lang


def doubling(gpus: int, *, in_place: bool) -> Lang:
    """All of it across every distance, a place of scratch for each."""
    lang = Lang("allreduce", gpus, 1, in_place=in_place)
    for gpu in range(gpus):
        lang.chunk(gpu, "i", 0).copy(gpu, "o", 0)
    for level in range((gpus - 1).bit_length()):
        for gpu in range(gpus):
            lang.chunk(gpu, "o", 0).copy(gpu ^ 1 << level, "s", level)
        for gpu in range(gpus):
            lang.chunk(gpu, "o", 0).reduce(lang.chunk(gpu, "s", level))
    return lang


def two_trees(gpus: int, *, in_place: bool) -> Lang:
    """A binary tree up and down for one chunk, its mirror image for the other."""
    lang = Lang("allreduce", gpus, 2, in_place=in_place)
    for gpu in range(gpus):
        lang.chunk(gpu, "i", 0, 2).copy(gpu, "o", 0)
    edges = [((kid - 1) // 2, kid) for kid in range(1, gpus)]
    for tree in range(2):
        for parent, kid in edges[::-1]:
            ends = [gpus - 1 - gpu if tree else gpu for gpu in (parent, kid)]
            lang.chunk(ends[0], "o", tree).reduce(lang.chunk(ends[1], "o", tree), tree)
        for parent, kid in edges:
            ends = [gpus - 1 - gpu if tree else gpu for gpu in (parent, kid)]
            lang.chunk(ends[0], "o", tree).copy(ends[1], "o", tree, tree)
    return lang


def ring_gather(gpus: int, *, in_place: bool) -> Lang:
    lang = Lang("allgather", gpus, 2, in_place=in_place)
    for first in range(2 * gpus):
        gpu, channel = divmod(first, 2)
        chunk = lang.chunk(gpu, "i", channel).copy(gpu, "o", first)
        for step in range(1, gpus):
            chunk = chunk.copy((gpu + step) % gpus, "o", first, channel)
    return lang


def pairs_scatter(gpus: int, *, in_place: bool) -> Lang:
    lang = Lang("reduce_scatter", gpus, 1, in_place=in_place)
    for gpu in range(gpus):
        others = [one for one in range(gpus) if one != gpu]
        for one in others:
            lang.chunk(one, "i", gpu).copy(gpu, "s", one)
        own = lang.chunk(gpu, "i", gpu).copy(gpu, "o", 0)
        for one in others:
            own.reduce(lang.chunk(gpu, "s", one))
    return lang


def three_steps(gpus: int, *, in_place: bool) -> Lang:
    """To the gpu of one's node that talks to the other node, at once across, and from there on."""
    assert not in_place
    lang, local = Lang("alltoall", gpus, 1), gpus // 2
    pairs = [(one, other) for one in range(gpus) for other in range(gpus)]
    across = [(one, other) for one, other in pairs if one // local != other // local]
    for one, other in pairs:
        if one // local == other // local:
            lang.chunk(one, "i", other).copy(other, "o", one)
    for one, other in across:
        slot = one % local * local + other % local
        lang.chunk(one, "i", other).copy(one // local * local, "s", slot, 1)
    for gpu in (0, local):
        lang.chunk(gpu, "s", 0, local**2).copy(local - gpu, "s", local**2, 2)
    for one, other in across:
        slot = local**2 + one % local * local + other % local
        lang.chunk(other // local * local, "s", slot).copy(other, "o", one, 3)
    return lang


KINDS = {
    CollectiveOp.ALL_REDUCE: (ring, all_pairs, two_levels, doubling, two_trees),
    CollectiveOp.ALL_GATHER: (ring_gather,),
    CollectiveOp.REDUCE_SCATTER: (pairs_scatter,),
    CollectiveOp.ALL_TO_ALL: (three_steps,),
}
CASES = [
    pytest.param(op, make, in_place, id=f"{make.__name__}-{'in place' if in_place else 'apart'}")
    for op, kinds in KINDS.items()
    for make in kinds
    for in_place in (False, True)
    if not (in_place and op is CollectiveOp.ALL_TO_ALL)
]


@pytest.mark.parametrize(("op", "make", "in_place"), CASES)
@pytest.mark.parametrize(("gpus", "instances"), [(4, 2), (8, 1)])
def test_a_program_over_chunks_gives_numpys_values(
    op: CollectiveOp,
    make: Callable[..., Lang],
    in_place: bool,
    gpus: int,
    instances: int,
    tmp_path: Path,
):
    path = tmp_path / "plan.xml"
    instances = 1 if make in (all_pairs, three_steps) else instances  # of one length in all
    path.write_text(make(gpus, in_place=in_place).file(instances, "LL").xml())
    is_cut = op in (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_TO_ALL)
    elements = 35 * gpus if is_cut else 35
    program = collective_program(op, gpus, [elements], dtype=DType.S32)
    values = given((gpus, elements))
    run = load(program, plans=[str(path)]).run([values], checked=True, clock=False)
    np.testing.assert_array_equal(run.outputs[0], wanted(op, values))
