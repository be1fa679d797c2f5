"""Which steps of a plan are before which, at any speed: against the closure of all waits."""

import numpy as np
import pytest

from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.plans import msccl_checks, msccl_file
from ncc_runtime.plans.chunk_places import ChunkCounts
from ncc_runtime.plans.msccl_file import KINDS
from ncc_runtime.plans.msccl_graph import NONE, Graph, graph_of
from tests import msccl_files
from tests.msccl_draws import random_all_reduce


def closure(graph: Graph) -> np.ndarray:
    """(steps, steps) bool: whether a chain of waits leads from one to another."""
    found: np.ndarray = np.zeros((len(graph.steps),) * 2, bool)
    for number in graph.order:
        for other in {int(column[number]) for column in graph.waits} - {NONE}:
            found[:, number] |= found[:, other]
            found[other, number] = True
    return found


def graph(seed: int) -> Graph:
    file = random_all_reduce(seed) if seed else msccl_files.hierarchical_all_reduce(2, 3)
    algo = msccl_file.read(file.xml().encode())
    return graph_of(algo, ChunkCounts.of(algo, CollectiveOp.ALL_REDUCE))


@pytest.mark.parametrize("bits", [1, 1 << 30])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_before_is_what_chains_of_waits_lead_from(
    seed: int, bits: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(msccl_checks, "MOST_BITS", bits)
    monkeypatch.setattr(msccl_checks, "LEAST_WIDTH", 7)
    its = graph(seed)
    first, second = (one.ravel() for one in np.indices((len(its.steps),) * 2))
    others = first != second
    found = msccl_checks.is_before(its, first[others], second[others])
    np.testing.assert_array_equal(found, closure(its)[first[others], second[others]])
    assert found.any()
    assert not found.all()


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_receive_is_straight_if_all_that_uses_its_target_is_before_its_send(seed: int):
    its = graph(seed)
    before, straight = closure(its), msccl_checks.ordered(its).straight[""]
    uses: dict[int, list[int]] = {}
    expected = {}
    for number in its.order:
        kind = KINDS[its.steps.kind[number]]
        sources, targets = (
            [int(first[number]) + k for k in range(its.steps.count[number])]
            for first in (its.source, its.target)
        )
        if kind.receives and kind.writes:
            earlier = [one for target in targets for one in uses.get(target, ())]
            is_free = all(before[one, its.sent[number]] for one in earlier if one != number)
            expected[number] = is_free and not kind.joins
        for chunk in (sources if kind.reads else []) + (targets if kind.writes else []):
            uses.setdefault(chunk, []).append(number)
    assert {number: straight[number] for number in expected} == expected
    assert len(set(expected.values())) == 2
