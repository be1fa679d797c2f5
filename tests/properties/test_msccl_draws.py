"""Random MSCCL files that are right give numpy's values, those that lack a wait are refused."""

import random

import numpy as np
import pytest

from ncc_runtime.errors import PlanError
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.runtime import load
from tests.msccl_draws import random_all_reduce
from tests.programs import collective_program


@pytest.mark.parametrize("seed", [*range(30), 150])  # 150: two transfers of a ring and round
def test_random_trees_give_numpys_values(seed: int, tmp_path):
    file, path = random_all_reduce(seed), tmp_path / "plan.xml"
    path.write_text(file.xml())
    elements = random.Random(seed).randint(1, 40)
    program = collective_program(CollectiveOp.ALL_REDUCE, file.gpus, [elements], dtype=DType.S32)
    values = np.random.default_rng(seed).integers(-9, 9, (file.gpus, elements)).astype(np.int32)
    run = load(program, plans=[str(path)]).run([values], checked=True, shuffle_seed=seed)
    np.testing.assert_array_equal(run.outputs[0], np.tile(values.sum(0), (file.gpus, 1)))


@pytest.mark.parametrize("seed", range(30))
def test_random_trees_that_lack_a_dependence_are_refused_or_right(seed: int, tmp_path):
    file, path = random_all_reduce(seed), tmp_path / "plan.xml"
    draw = random.Random(seed)
    waiting = [
        step
        for its in file.blocks.values()
        for block in its.values()
        for step in block.steps
        if step.deps
    ]
    if not waiting:
        return
    draw.choice(waiting).deps.pop()
    path.write_text(file.xml())
    program = collective_program(CollectiveOp.ALL_REDUCE, file.gpus, [12], dtype=DType.S32)
    values = np.random.default_rng(seed).integers(-9, 9, (file.gpus, 12)).astype(np.int32)
    try:
        model = load(program, plans=[str(path)])
    except PlanError:
        return
    run = model.run([values], shuffle_seed=seed, clock=False)
    np.testing.assert_array_equal(run.outputs[0], np.tile(values.sum(0), (file.gpus, 1)))
