"""Plans of collectives whose counts a tensor has, saved and loaded back."""

from pathlib import Path

import numpy as np
import pytest

from ncc_compiler.driver import compile_text
from ncc_runtime.lowering.choices import ProgramChooser, job_of
from ncc_runtime.plans.document import described, encoded
from ncc_runtime.runtime import load, program_of
from tests.counted_programs import Shape, buffers_of, counts_of, text_of


@pytest.mark.parametrize(
    "op", ["ragged-all-to-all", "ncc.all_gather_v", "ncc.reduce_scatter_v", "ncc.all_to_all_v"]
)
def test_a_counted_plan_is_saved_and_loaded_back(op: str, tmp_path: Path):
    shape, path = Shape(groups=((0, 1, 2, 3),), element="s32"), tmp_path / "plan.json"
    program = program_of(compile_text(text_of(op, shape)).data)
    one = load(program)
    (chosen,) = ProgramChooser(program, one.executable.placement).choose()
    job = job_of(program, program.placeholders[0])
    path.write_bytes(encoded([described(job, chosen.choice.chosen.replica_groups)]))
    two = load(program, plans=[str(path)])
    given = [*buffers_of(op, shape, 1), *counts_of(op, shape, 1)]
    given = given if len(given) == len(one.executable.program.inputs) else [given[0], *given[2:]]
    for ours, theirs in zip(one.run(given).outputs, two.run(given).outputs, strict=True):
        np.testing.assert_array_equal(ours, theirs)
