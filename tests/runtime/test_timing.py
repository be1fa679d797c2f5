"""The timing model's formulas, exact in integers."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncc_runtime.machine_model.timing import CONSTANTS, TimingModel, duration_ps
from ncc_runtime.placement import place
from ncc_runtime.topology.graph import build
from ncc_runtime.topology.routes import Routes, Transport

NONE = np.zeros(1, np.int64)
RATES = st.integers(1, 9 * 10**15)
SIZES = st.integers(0, 2**50)


def one(value: int) -> np.ndarray:
    return np.array([value], np.int64)


def transfer(model: TimingModel, transport: Transport, links_ps: int, size: int, rate: int) -> int:
    return int(model.transfer_ps(one(transport.code), one(links_ps), one(size), one(rate))[0])


@given(amount=SIZES, rate=RATES)
def test_a_duration_is_the_exact_quotient_rounded_up(amount: int, rate: int) -> None:
    exact = Fraction(amount * 10**12, rate)
    if amount // rate <= 9 * 10**6:
        assert int(duration_ps(amount, rate)) == ceil(exact)
    else:
        with pytest.raises(ValueError, match="more than a time in picoseconds can hold"):
            duration_ps(amount, rate)


@pytest.mark.parametrize(("amount", "rate"), [(-1, 1), (1, 0), (1, -5), (1, 10**16)])
def test_a_duration_of_nonsense_is_a_fault(amount: int, rate: int) -> None:
    with pytest.raises(ValueError, match="negative or a rate"):
        duration_ps(amount, rate)


def test_times_are_integers() -> None:
    model = TimingModel.from_topology(build("trn2"))
    times = [
        duration_ps(one(3), one(7)),
        model.transfer_ps(one(2), one(1), one(5), one(7)),
        model.semaphore_ps(one(2), one(1)),
    ]
    assert {time.dtype for time in times} == {np.dtype(np.int64)}


@given(sizes=st.tuples(SIZES, SIZES), transport=st.sampled_from(list(Transport)))
def test_a_longer_transfer_never_ends_sooner(sizes: tuple[int, int], transport: Transport) -> None:
    model = TimingModel.from_topology(build("trn2", nodes=2))
    less, more = sorted(sizes)
    assert transfer(model, transport, 100_000, less, 10**10) <= transfer(
        model, transport, 100_000, more, 10**10
    )


def test_a_transfer_is_start_latency_descriptors_and_bytes_over_bandwidth() -> None:
    model = TimingModel.from_topology(build("trn2"))
    size = 3 * 65_536 + 1
    expected = 1_300_000 + 2 * 100_000 + 4 * 4_000 + -(-size * 1000 // 128)
    assert transfer(model, Transport.NEURONLINK, 200_000, size, 128 * 10**9) == expected


def test_more_descriptors_for_the_same_bytes_cost_more() -> None:
    model = TimingModel.from_topology(build("trn2"))
    arguments = (one(Transport.LOCAL.code), one(0), one(65_536), one(10**11))
    few, many = (model.transfer_ps(*arguments, descriptors=one(count)) for count in (1, 1000))
    assert many - few == 999 * model.descriptor_ps


def test_a_transfer_of_no_bytes_still_starts() -> None:
    model = TimingModel.from_topology(build("trn2"))
    assert transfer(model, Transport.LOCAL, 0, 0, 1) == model.dma_start_ps


def test_a_small_step_over_efa_takes_the_published_15_us() -> None:
    model = TimingModel.from_topology(build("trn2", nodes=2))
    step = transfer(model, Transport.EFA, 0, 64, 6_250_000_000) + model.semaphore_remote_ps
    assert 15_000_000 <= step <= 15_500_000


def test_a_small_ring_hop_takes_the_published_one_to_two_us() -> None:
    model = TimingModel.from_topology(build("trn2"))
    for transport, links_ps in ((Transport.INTRA_CHIP, 0), (Transport.NEURONLINK, 100_000)):
        step = transfer(model, transport, links_ps, 4096, 128 * 10**9)
        step += model.cc_row_ps() + model.semaphore_remote_ps
        assert 1_000_000 <= step <= 2_000_000


def test_a_gibibyte_over_efa_takes_about_the_published_172_ms() -> None:
    topology = build("trn2", nodes=2)
    model = TimingModel.from_topology(topology)
    assert topology.efa is not None
    rate = topology.efa.adapter_bandwidth_bytes_per_s // topology.ranks_per_chip  # if all send
    time = transfer(model, Transport.EFA, 0, 2**30, rate)
    assert abs(time - 171_798_691_840) < 10**8  # start and descriptors


def test_model_and_routes_agree_on_latency_but_for_crossings() -> None:
    topology = build("trn2", nodes=2)
    routes, model = Routes(topology, place(topology, 128)), TimingModel.from_topology(topology)
    src, dst = np.arange(128)[:, None], np.arange(128)[None, :]
    ways = routes.transport(src, dst), routes.links_ps(src, dst)
    crossed = model.latency_ps(*ways) + routes.crossing_ps(src, dst)
    assert (crossed == routes.latency_ps(src, dst)).all()


@pytest.mark.parametrize(
    ("streams", "cores"), [(1, [4]), (2, [3, 1]), (3, [2, 1, 1]), (4, [1, 1, 1, 1])]
)
def test_stream_0_has_the_cc_cores_that_no_other_stream_has(streams: int, cores: list[int]) -> None:
    model = TimingModel.from_topology(build("trn2"))
    assert [model.cc_cores_of(stream, streams) for stream in range(streams)] == cores
    rows = [model.cc_row_ps(stream, streams) for stream in range(streams)]
    assert rows == [-(-model.cc_instruction_ps // count) for count in cores]


def test_a_barrier_grows_with_every_doubling_of_the_chips() -> None:
    model = TimingModel.from_topology(build("trn2"))
    waits = [model.barrier_ps(chips) // 10**6 for chips in (1, 2, 4, 16, 17, 64)]
    assert waits == [0, 10, 20, 40, 50, 60]  # 16 chips: the published 40 us


def test_a_semaphore_of_ones_own_is_the_cheapest() -> None:
    model = TimingModel.from_topology(build("trn2", nodes=2))
    codes = np.array([transport.code for transport in Transport])
    times = model.semaphore_ps(codes, np.array([0, 0, 100_000, 0]))
    assert times.tolist() == sorted(set(times.tolist()))
    assert times[0] == model.semaphore_local_ps


@pytest.mark.parametrize("name", sorted(CONSTANTS))
def test_a_constant_has_a_source_or_is_assumed_or_fitted(name: str) -> None:
    assert CONSTANTS[name].source.startswith(("assumed", "fitted: ", "AWS"))
    assert getattr(TimingModel.from_topology(build("trn2")), name) == CONSTANTS[name].value
