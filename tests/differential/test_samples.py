"""Programs that XLA partitioned, compiled and placed, against the numbers that XLA computed."""

from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from tests.reference_runs import assert_close

HLO = Path(__file__).parent.parent / "data" / "hlo"
PLACES = [
    {"topology": "trn2.48xlarge"},
    {"topology": "trn1.32xlarge"},
    {"topology": "trn1.32xlarge", "nodes": 2},
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(map(str, place.values())))
@pytest.mark.parametrize("name", ["fsdp_scan_layers", "moe_all_to_all", "ring_attention"])
def test_a_placed_program_agrees_with_xla(name, place):
    assert_agrees(name, CompileOptions(), place)


SAMPLES = sorted(path.name.removesuffix(".in.npz") for path in HLO.glob("*.in.npz"))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_program_that_is_compiled_thoroughly_agrees_with_xla(name):
    assert_agrees(name, CompileOptions(level=2), PLACES[0])


def assert_agrees(name: str, options: CompileOptions, place: dict) -> None:
    neff = ncc_compiler.compile_text((HLO / f"{name}.hlo").read_text(), options)
    given, wanted = np.load(HLO / f"{name}.in.npz"), np.load(HLO / f"{name}.out.npz")
    run = ncc_runtime.load(neff, **place).run([given[key] for key in given.files])
    for actual, key in zip(run.outputs, wanted.files, strict=True):
        assert actual.dtype == wanted[key].dtype
        assert_close(actual, wanted[key])
