"""Reducers of narrow floats that compute in f32, as XLA writes them for backends without bf16."""

import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.driver import compile_text
from ncc_compiler.ir.collectives import reduction_of
from ncc_runtime.neff.shared.dtypes import DType
from tests.compiler.reading import complaints, load
from tests.reference_runs import reference_outputs

PLAIN = """sum {{ x = {0}[] parameter(0) y = {0}[] parameter(1) ROOT z = {0}[] {1}(x, y) }}
"""
WIDENED = """sum {{
  x = {0}[] parameter(0)
  wide_x = f32[] convert(x)
  y = {0}[] parameter(1)
  wide_y = f32[] convert(y)
  both = f32[] {1}(wide_y, wide_x)
  ROOT z = {0}[] convert(both)
}}
"""
ENTRY = """ENTRY e {{
  p = {0}[4,64] parameter(0)
  a = {0}[4,64] all-reduce(p), replica_groups={{}}, to_apply=sum
  s = {0}[1,64] reduce-scatter(p), replica_groups={{}}, dimensions={{0}}, to_apply=sum
  ROOT r = ({0}[4,64], {0}[1,64]) tuple(a, s)
}}
"""


def program(region: str, dtype: str, op: str = "add", ranks: int = 4) -> str:
    head = f"HloModule m, replica_count={ranks}\n"
    rows = ENTRY.replace("[1,64]", f"[{4 // ranks},64]")
    return head + region.format(dtype, op) + rows.format(dtype)


def drawn(dtype: DType, ranks: int) -> np.ndarray:
    """Numbers whose sums are rounded, and tiny and huge ones."""
    random = np.random.default_rng(1)
    spread = np.exp2(random.integers(-9, 9, (ranks, 4, 64)))
    wide = random.standard_normal((ranks, 4, 64)) * spread
    wide[..., :2] = np.finfo(np.float32).tiny
    wide[..., 2:4] = 3e38
    with np.errstate(over="ignore"):
        return wide.astype(dtype.numpy)


@pytest.mark.parametrize("op", ["add", "multiply", "minimum", "maximum"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e5m2"])
def test_a_reducer_that_widens_gives_what_the_plain_one_gives(dtype: str, op: str) -> None:
    region = load(program(WIDENED, dtype, op)).computations["sum"]
    plain = load(program(PLAIN, dtype, op)).computations["sum"]
    assert reduction_of(region) is reduction_of(plain) is not None
    x = drawn(DType(dtype), 4)
    runs = [
        ncc_runtime.load(compile_text(program(one, dtype, op))).run([x]).outputs
        for one in (WIDENED, PLAIN)
    ]
    for found, expected in zip(*runs, strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_sum_of_two_ranks_is_rounded_as_the_reference_rounds_it(dtype: str) -> None:
    text = program(WIDENED, dtype, ranks=2)
    x = drawn(DType(dtype), 2)
    model = ncc_runtime.load(compile_text(text))
    outputs = zip(model.run([x]).outputs, reference_outputs(load(text), [x]), strict=True)
    for found, expected in outputs:
        assert found.tobytes() == expected.tobytes()
    assert model.proofs


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("wide_y = f32[] convert(y)", "wide_y = f32[] negate(wide_x)"),
        ("add(wide_y, wide_x)", "add(wide_x, wide_x)"),
        ("f32[] add", "f32[] subtract"),
        ("f32[]", "f16[]"),  # has fewer bits of exponent
    ],
)
def test_a_reducer_that_is_more_than_its_op_is_refused(old: str, new: str) -> None:
    text = program(WIDENED, "bf16")
    assert old in text
    codes = {line.split()[1] for line in complaints(text.replace(old, new))}
    assert codes == {"all-reduce-C7", "reduce-scatter-C7"}
