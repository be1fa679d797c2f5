"""Collectives on fabrics that users describe give what numpy gives, checked while they run.

Files are drawn: levels of any kinds on top of each other, few cores, DMA engines or CC-cores.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.topology.graph import build
from tests.draws_collectives import Case
from tests.draws_topology import user_files
from tests.programs import collective_program
from tests.properties.test_collectives import expected, inputs_of, loaded

MOST_RANKS = 12

OPERATORS = (
    CollectiveOp.ALL_REDUCE,
    CollectiveOp.ALL_GATHER,
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_TO_ALL,
)


def case_of(op: CollectiveOp, ranks: int, place: tuple[str, int, str, int]) -> Case:
    """Twelve elements for every rank, of one group of all."""
    groups = (tuple(range(ranks)),)
    program = collective_program(op, ranks, [12 * ranks], groups=groups)
    return Case(program, place, op, program.placeholders[0].reduction, groups, (), 0)


def assert_values(case: Case) -> None:
    inputs = inputs_of(case, 3)
    run = loaded(case).run(inputs, checked=True)
    for operand, result in zip(inputs, run.outputs, strict=True):
        wanted = np.stack(expected(case, operand))
        np.testing.assert_array_equal(np.asarray(result).reshape(wanted.shape), wanted)


def assert_right_on(text: str, ops: tuple[CollectiveOp, ...], spread: bool) -> None:
    """Every operator over as many ranks as there are, on one or two instances."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.toml"
        file.write_text(text)
        topology = build(str(file))
        nodes = 2 if topology.ranks_per_node < MOST_RANKS // 2 else 1
        ranks = min(MOST_RANKS, topology.ranks_per_node * nodes)
        place = (str(file), nodes, "spread" if spread else "linear", topology.lnc)
        for op in ops if ranks > 1 else ():
            assert_values(case_of(op, ranks, place))


@given(text=user_files(), op=st.sampled_from(OPERATORS), spread=st.booleans())
@settings(max_examples=12)
def test_a_drawn_fabric_computes_what_numpy_does(text: str, op: CollectiveOp, spread: bool) -> None:
    assert_right_on(text, (op,), spread)


@pytest.mark.slow
@given(text=user_files(), spread=st.booleans())
@settings(max_examples=200)
def test_every_operator_on_many_drawn_fabrics_computes_what_numpy_does(
    text: str, spread: bool
) -> None:
    assert_right_on(text, OPERATORS, spread)


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.value)
@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("trn2-ultraserver", 2),
        ("trn3-gen1-ultraserver", 3),
        ("trn3", 2),
        ("tpu-v4-cube", 2),
        ("dgx-h100", 3),
    ],
)
def test_clusters_of_large_instances_compute_what_numpy_does(
    name: str, nodes: int, op: CollectiveOp
) -> None:
    assert_values(case_of(op, 4 * nodes, (name, nodes, "spread", build(name).lnc)))
