"""Time constants and formulas: whole numbers of picoseconds, rounded up.

All time constants that no topology file holds are here; each has a source, is `assumed`, or is
`fitted` to what is published. What transfers share is in `parts.py`. Rates are those of one rank,
which at LNC 2 has both cores' engines, DMA rings and CC-cores.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.neff import durations
from ncc_runtime.neff.durations import Speeds
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.work.work import Mode
from ncc_runtime.topology.format.spec import Figure
from ncc_runtime.topology.graph import EngineRates, Topology
from ncc_runtime.topology.routes import Transport, latency_by_transport

PS_PER_S = durations.PS_PER_S

CONSTANTS: Mapping[str, Figure] = MappingProxyType(
    {
        "instruction_cycles": Figure(
            60, "AWS Neuron SDK docs, nki architecture guides: fixed cycles of an SBUF access"
        ),
        "step_cycles": Figure(
            300,
            "assumed: 264 cycles from start to start of dependent instructions on NeuronCore-v2 "
            "(AWS Neuron SDK docs, nki_perf_guide.rst), about 350 of a lone activation on "
            "NeuronCore-v3, read off its figures",
        ),
        "table_ps": Figure(
            1_280_000, "assumed: load of a function table, read off AWS Neuron SDK figures"
        ),
        "dma_start_ps": Figure(
            1_300_000, "AWS Neuron SDK docs, nki-dma-bandwidth-guide.rst: semaphore to start"
        ),
        "dma_least_ps": Figure(
            850_000,
            "assumed: read off AWS Neuron SDK docs, nki/img/overviews/nki-dma-intro-1.jpg: DMA of "
            "128 rows of up to 1 KiB takes as long as one of 2.4 KiB at 368 GB/s",
        ),
        "descriptor_ps": Figure(4_000, "assumed: 64 ns each, 16 engines at work"),
        "semaphore_local_ps": Figure(20_000, "assumed"),
        "semaphore_remote_ps": Figure(50_000, "assumed"),
        "trigger_ps": Figure(100_000, "assumed: one register write and the CC-core's wake-up"),
        "launch_ps": Figure(15_000_000, "assumed: the host starts a program, all ranks at once"),
        "execution_barrier_ps": Figure(
            10_000_000,
            "AWS Neuron SDK release notes, collectives 2.19.7: a barrier takes 40 us; assumed: of "
            "16 chips, and as much for every doubling of them",
        ),
    }
)
"""Time constants by name; TimingModel has a field for each."""

OF_ALL_MACHINES: Mapping[str, Figure] = MappingProxyType(
    {f"timing.{name}": CONSTANTS[name] for name in ("launch_ps",)}
)
"""Those that a topology file may say otherwise, by its key: what depends on the host."""


def duration_ps(amount: np.ndarray | int, rate_per_s: np.ndarray | int) -> np.ndarray:
    """Picoseconds that `amount` takes at `rate_per_s`, rounded up, exact in int64.

    amount * 10^12 / rate is divided digit by digit, three decimal digits at a time, so nothing
    overflows below 10^15 a second and 100 days. ValueError for a negative amount, a rate outside
    1..9*10^15, or a longer time.
    """
    amounts, rates = np.asarray(amount, np.int64), np.asarray(rate_per_s, np.int64)
    if (amounts < 0).any() or (rates < 1).any() or (rates > 9 * 10**15).any():
        raise ValueError("an amount is negative or a rate is not from 1 to 9*10^15 a second")
    time, rest = np.divmod(amounts, rates)
    if (time > 9 * 10**6).any():
        raise ValueError(f"{time.max()} seconds are more than a time in picoseconds can hold")
    for _ in range(4):
        digits, rest = np.divmod(rest * 1000, rates)
        time = time * 1000 + digits
    return np.asarray(time + (rest > 0))


@attrs.frozen(eq=False)
class TimingModel:
    """What each thing costs on one topology; queries are whole int64 arrays."""

    engines: Mapping[Engine, EngineRates]  # of one physical core
    cores: int  # physical cores of a rank
    dma_bandwidth_bytes_per_s: int  # of all a rank's DMA engines, at most what its stack has
    descriptor_bytes: int
    transport_latency_ps: np.ndarray  # (4,) int64 by transport code, links apart
    cc_cores: int  # of a rank
    cc_instruction_ps: int  # of one CC-core
    cc_start_ps: int  # of a collective, before its first row
    instruction_cycles: int
    step_cycles: int
    table_ps: int
    dma_start_ps: int
    dma_least_ps: int
    descriptor_ps: int
    semaphore_local_ps: int
    semaphore_remote_ps: int
    trigger_ps: int
    launch_ps: int
    execution_barrier_ps: int  # for every doubling of the chips

    @classmethod
    @lru_cache(maxsize=8)
    def from_topology(cls, topology: Topology) -> "TimingModel":
        """The model of a rank on this topology, with the constants of this file."""
        latency = latency_by_transport(topology)
        latency.setflags(write=False)
        constants = {
            name: topology.figures.get(f"timing.{name}", figure).value
            for name, figure in CONSTANTS.items()
        }
        return cls(
            engines=MappingProxyType({engine: topology.engines[engine.value] for engine in Engine}),
            cores=topology.lnc,
            dma_bandwidth_bytes_per_s=min(
                topology.rank_dma_bandwidth_bytes_per_s, topology.hbm.stack_bandwidth_bytes_per_s
            ),
            descriptor_bytes=topology.dma.descriptor_bytes,
            transport_latency_ps=latency,
            cc_cores=topology.rank_cc_cores,
            cc_instruction_ps=topology.cc.instruction_ps,
            cc_start_ps=topology.cc.start_ps,
            **{name: value for name, value in constants.items() if isinstance(value, int)},
        )

    def instruction_ps(self, engine: Engine) -> int:
        """The overhead of one instruction: its fixed cycles at the engine's clock."""
        return int(duration_ps(self.instruction_cycles, self.engines[engine].clock_hz))

    @cached_property
    def speeds(self) -> Speeds:
        """The speeds of a rank's engines, those of all its cores."""
        rates, computing = self.engines, (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
        factors = {
            engine: {
                Mode.FULL: 1,
                Mode.NARROW: rates[engine].narrow_factor,
                Mode.NARROW_PAIR: rates[engine].narrow_pair_factor,
            }
            for engine in computing
        }
        return Speeds(
            elements_per_s={
                (engine, mode): self.work_per_s(engine, DType.F32) * factor
                for engine in computing
                for mode, factor in factors[engine].items()
            },
            flops_per_s={dtype: self._reached_per_s(dtype) for dtype in DType},
            dma_bytes_per_s=self.dma_bandwidth_bytes_per_s,
            dma_start_ps=self.dma_start_ps,
            dma_least_ps=self.dma_least_ps,
            step_ps={
                engine: int(duration_ps(self.step_cycles, rates[engine].clock_hz))
                for engine in Engine
            },
            table_ps=self.table_ps,
        )

    def cc_cores_of(self, stream: int, streams: int) -> int:
        """How many of a rank's CC-cores run a stream, if the program has so many streams.

        Each stream has one; stream 0 also has those that are left.
        """
        return max(1, self.cc_cores - streams + 1) if stream == 0 else 1

    def cc_row_ps(self, stream: int = 0, streams: int = 1) -> int:
        """The time of a CC-core row: the CC-cores of a stream share its program (assumed)."""
        return -(-self.cc_instruction_ps // self.cc_cores_of(stream, streams))

    def barrier_ps(self, chips: int) -> int:
        """The time of the barrier before an execution, for the ranks of `chips` chips."""
        return self.execution_barrier_ps * (chips - 1).bit_length()

    def work_per_s(self, engine: Engine, dtype: DType) -> int:
        """Flops (Tensor) or elements (others) a second at an engine's peak, of a rank; 0: none.

        A type without a peak of its own runs at float32's, floats of 4 and 6 bits at that of 8, and
        elements wider than 4 bytes count as several of 4 (assumed).
        """
        rates = self.engines[engine]
        parts = max(1, dtype.size_bytes // 4)
        if engine is not Engine.TENSOR:
            return rates.clock_hz * rates.elements_per_cycle * self.cores // parts
        kind = _product_kind(dtype)
        peak = rates.flops_per_s.get(kind, rates.flops_per_s["f32"] // parts)
        return max(1, peak * self.cores)

    def _reached_per_s(self, dtype: DType) -> int:
        """Of the peak what products reach; a type without a share of its own has float32's."""
        shares = self.engines[Engine.TENSOR].reached_percent
        share = shares.get(_product_kind(dtype), shares["f32"])
        return max(1, self.work_per_s(Engine.TENSOR, dtype) * share // 100)

    def transfer_ps(
        self,
        transport: np.ndarray,
        links_ps: np.ndarray,
        size_bytes: np.ndarray,
        bandwidth_bytes_per_s: np.ndarray,
        descriptors: np.ndarray | None = None,
    ) -> np.ndarray:
        """Time of runs of descriptors: start + latency + descriptors + bytes over bandwidth.

        `transport` holds Transport codes, `links_ps` the latency of the links. Each run starts its
        DMA once, then pays a little per descriptor; without `descriptors` a run has as many as its
        bytes need. Over EFA the published latency is from HBM to HBM and contains the start.
        """
        sizes = np.asarray(size_bytes, np.int64)
        if descriptors is None:
            descriptors = -(-sizes // self.descriptor_bytes)
        start = np.where(np.asarray(transport) == Transport.EFA.code, 0, self.dma_start_ps)
        fixed = start + self.latency_ps(transport, links_ps)
        stream = duration_ps(sizes, bandwidth_bytes_per_s)
        return np.asarray(fixed + np.asarray(descriptors, np.int64) * self.descriptor_ps + stream)

    def latency_ps(self, transport: np.ndarray, links_ps: np.ndarray) -> np.ndarray:
        """Latency of the first byte: Routes.latency_ps without Routes.crossing_ps."""
        links = np.asarray(links_ps, np.int64)
        return np.asarray(self.transport_latency_ps[np.asarray(transport)] + links)

    def semaphore_ps(self, transport: np.ndarray, links_ps: np.ndarray) -> np.ndarray:
        """Time of a semaphore write that follows no data, such as a credit, until it is seen.

        One that follows data over the same route arrives with it and costs semaphore_local_ps or
        semaphore_remote_ps alone.
        """
        is_local = np.asarray(transport) == Transport.LOCAL.code
        write = np.where(is_local, self.semaphore_local_ps, self.semaphore_remote_ps)
        return np.asarray(write + self.latency_ps(transport, links_ps))


def _product_kind(dtype: DType) -> str:
    """What the Tensor engine's rates of a type stand under, if it has some of its own."""
    return "f8" if dtype.is_float and dtype.size_bytes == 1 else dtype.value
