"""The reference on programs that XLA partitioned, against the numbers that XLA computed."""

from pathlib import Path

import numpy as np
import pytest

from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.ops import OPS
from ncc_compiler.reference import MEANINGS
from tests.reference_runs import assert_close, reference_outputs

HLO = Path(__file__).parent.parent / "data" / "hlo"
SAMPLES = [
    *("collective_zoo", "mlp_train_dp2_tp4"),
    *("fsdp_scan_layers", "moe_all_to_all", "ring_attention"),
]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_reference_agrees_with_xla(name):
    module = load_module(Source(name, (HLO / f"{name}.hlo").read_text()), None)
    given, wanted = np.load(HLO / f"{name}.in.npz"), np.load(HLO / f"{name}.out.npz")
    outputs = reference_outputs(module, [given[f"arg{k}"] for k in range(len(given.files))])
    assert len(outputs) == len(wanted.files)
    for k, output in enumerate(outputs):
        assert output.dtype == wanted[f"out{k}"].dtype
        assert_close(output, wanted[f"out{k}"])


def test_every_op_of_the_table_has_a_meaning():
    assert set(MEANINGS) == set(OPS)
