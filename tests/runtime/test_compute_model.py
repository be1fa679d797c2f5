"""Work in picoseconds on a topology: the arithmetic of docs/timing.md, and what always holds."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kernels import EXPONENTIAL, PRODUCT, RMSNORM_QUANT, program_of, work_of
from ncc_runtime.machine_model.compute import compute_costs
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.durations import duration_of
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.work.work import Mode, Work
from ncc_runtime.topology.graph import Topology, build
from tests.draws_topology import topologies


def model_of(name: str, lnc: int | None = None) -> TimingModel:
    return TimingModel.from_topology(build(name, lnc=lnc))


def us(text: str, name: str, lnc: int | None = None) -> float:
    """The time of a program of one instruction."""
    program, model = program_of(text), model_of(name, lnc)
    costs = (compute_costs(program, model, *queue).ps.sum() for queue in program.queues.items())
    return float(sum(costs)) / 1e6


def test_a_large_product_takes_the_passes_of_the_array() -> None:
    # 64 x 64 tiles of 128 x 128, 4,096 columns through each: 16,777,216 cycles of 32,768 flops at
    # 86 % of 92 Tflops; a 1,024th of the 805 MB that DMA moves at 272 GB/s beside it
    passes = 64 * 64 * 4096 * 32_768 / (0.86 * 92e12)
    tile = 805_306_368 / 272e9 / 1024
    fixed = 60 / 2.8e9 + 2 * 1.3e-6 + 300 / 2.8e9
    assert us(PRODUCT.format(t="bf16"), "trn1") == pytest.approx(1e6 * (passes + tile + fixed))


def test_a_product_with_a_vector_waits_for_its_weights() -> None:
    text = """ENTRY e {
  x = bf16[1,4096] parameter(0)
  y = bf16[4096,344] parameter(1)
  ROOT d = bf16[1,344] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    weights = (4096 * 344 + 4096) * 2 / 272e9
    store, passes = 0.85e-6, 32 * 3 * 64 * 32_768 / (0.86 * 92e12)
    tile = 128 * 512 / (4096 * 344)
    fixed = 60 / 2.8e9 + 2 * 1.3e-6 + 300 / 2.8e9
    assert us(text, "trn1") == pytest.approx(1e6 * (weights + store + passes * tile + fixed), 1e-4)


def test_an_activation_takes_a_cycle_an_element_behind_its_load() -> None:
    # 128 elements a partition: 107 ns, 250 ns for what it waits, and two DMAs of 2.15 us
    work = 128 / 1.2e9 + 2 * 0.85e-6
    fixed = 60 / 1.2e9 + 300 / 1.2e9 + 2 * 1.3e-6
    assert us(EXPONENTIAL.format(n=128), "trn2", 1) == pytest.approx(1e6 * (work + fixed), 1e-4)


def test_phases_of_a_tile_come_one_after_the_other() -> None:
    # 2,048 rows of 8,192: squares and sums by Scalar; 2 cycles to scale and weigh, 1 for sizes and
    # 1 for the largest by Vector; then 1, half as long in the 2x mode, on two cores
    elements = 2048 * 8192 / 128 / 2
    scalar, vector = elements / 1.2e9, elements * 4.5 / 0.96e9
    moved = (2048 * 8192 * 3 + 2 * 8192 + 4 * 2048) / 725e9
    fixed = 60 / 0.96e9 + 2 * 1.3e-6 + 300 * (1 / 1.2e9 + 3 / 0.96e9 + 1 / 1.2e9 + 2 / 0.96e9)
    whole = scalar + vector + moved / 16 + fixed
    assert us(RMSNORM_QUANT.format(r=2048, c=8192), "trn2", 2) == pytest.approx(1e6 * whole, 1e-3)


@pytest.mark.parametrize(
    ("lnc", "dtype", "teraflops"),
    [
        (1, "bf16", 79),
        (2, "bf16", 158),
        (1, "f32", 20),
        (2, "f8e4m3fn", 316),
        (2, "f4e2m1fn", 316),
        (1, "f64", 10),
    ],
)
def test_products_run_at_the_peak_of_their_dtype(lnc: int, dtype: str, teraflops: int) -> None:
    assert model_of("trn2", lnc).speeds.flops_per_s[DType(dtype)] == teraflops * 10**12


@pytest.mark.parametrize(("dtype", "percent"), [("bf16", 86), ("f8e4m3fn", 86), ("f32", 100)])
def test_products_take_longer_where_they_were_measured_below_the_peak(
    dtype: str, percent: int
) -> None:
    model, kind = model_of("trn1"), DType(dtype)
    peak = model.work_per_s(Engine.TENSOR, kind)
    assert model.speeds.flops_per_s[kind] == peak * percent // 100


@pytest.mark.parametrize(
    ("name", "engine", "factors"),
    [
        ("trn1", Engine.VECTOR, (1, 1)),
        ("trn2", Engine.VECTOR, (4, 2)),
        ("trn2", Engine.SCALAR, (1, 1)),
        ("trn3", Engine.SCALAR, (2, 2)),
    ],
)
def test_narrow_floats_are_quicker_where_a_generation_says_so(
    name: str, engine: Engine, factors: tuple[int, int]
) -> None:
    speeds = model_of(name, 1).speeds.elements_per_s
    full = speeds[engine, Mode.FULL]
    assert (speeds[engine, Mode.NARROW], speeds[engine, Mode.NARROW_PAIR]) == tuple(
        full * factor for factor in factors
    )


WORKS = st.builds(
    Work,
    phases=st.just(()),
    bytes_read=st.integers(0, 2**40),
    bytes_written=st.integers(0, 2**40),
    dma_read=st.integers(0, 2**40),
    dma_written=st.integers(0, 2**40),
    tile=st.fractions(0, 1),
    starts=st.integers(0, 2),
)


@given(topology=topologies(), work=WORKS)
def test_dma_takes_what_its_rate_takes_and_no_less_than_one_transfer(
    topology: Topology, work: Work
) -> None:
    speeds = TimingModel.from_topology(topology).speeds
    rate = speeds.dma_bytes_per_s
    assert rate <= topology.hbm.stack_bandwidth_bytes_per_s
    time = duration_of(work, speeds)
    parts = [work.dma_read, work.dma_written]
    if work.starts == 1:
        parts = [sum(parts)]
    exact = sum(max(Fraction(size * 10**12, rate), speeds.dma_least_ps) for size in parts if size)
    assert ceil(exact) <= time.work_ps <= ceil(exact) + 1
    assert time.start_ps == work.starts * speeds.dma_start_ps


def test_equal_instructions_are_priced_once() -> None:
    rows = "\n".join(
        f" x{at} = f32[64,64] parameter({at})\n y{at} = f32[64,64] negate(x{at})"
        for at in range(49)
    )
    results = ", ".join(f"y{at}" for at in range(49))
    kinds = ", ".join(["f32[64,64]"] * 49)
    text = f"ENTRY e {{ {rows}\n ROOT z = ({kinds}) tuple({results}) }}\n"
    program, model = program_of(text), model_of("trn2")
    costs = compute_costs(program, model, Engine.VECTOR, program.queues[Engine.VECTOR])
    works = costs.work[costs.traffic > 0]
    assert len(works) == 49
    assert len(np.unique(works)) == 1
    assert work_of(text).traffic == 2 * 64 * 64 * 4
