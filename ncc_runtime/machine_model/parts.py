"""Parts of the machine that transfers share: what the price and the clock charge bytes to.

Every part is an entry of one vector: first the directed links, then the groups of DMA engines of
every rank, the memory stacks, every rank's ports out of its core and into it on the chip, the
adapters of all instances out and in, every rank's ends of queue pairs out and in, every rank's
CC-core. A part without a limit runs at UNLIMITED. usage.py says which parts a transfer uses.

A rank's DMA engines are divided into groups of `cc.engines_per_channel`; the ring of a stream's
lane runs on one of them.

One connection over EFA does not get all of an adapter, even where nobody else uses it. What is
measured are two ranks that send to each other alone (`efa.queue_pair_bandwidth_bytes_per_s`), so it
is not known whether a rank with several peers at a time would get more. A limit of each rank, out
and in, says what is known with two parts a rank instead of one for each pair; and AWS's proxies let
a rank talk to one peer at a time where they can (internode-collective-comm.rst, rate control).
"""

import enum
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel, duration_ps
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.routes import Routes

UNLIMITED = 10**15
"""The rate of a part without a limit, bytes a second."""


class PartKind(enum.Enum):
    """Kinds of parts, in the order of the vector; the value is the word of reports."""

    LINK = "neuronlink"
    DMA = "dma"
    HBM = "hbm"
    CHIP = "intra_chip"
    EFA = "efa"
    QUEUE_PAIR = "queue_pair"
    CC_CORE = "cc"


NETWORK = (PartKind.EFA, PartKind.QUEUE_PAIR)
"""What bytes between instances pass."""


@attrs.frozen(eq=False)
class Parts:
    """Every shared part of a machine, numbered, with its rate in bytes a second.

    A CC-core's amount is instructions. The stacks of a chip are shared evenly by its cores, in
    order.
    """

    routes: Routes
    model: TimingModel
    ranks: int
    groups: int = attrs.field(init=False)  # of DMA engines, of a rank
    stack: np.ndarray = attrs.field(init=False)  # (ranks,) of each rank's memory, as a part
    rates: np.ndarray = attrs.field(init=False)  # (parts,) int64

    @groups.default
    def _groups_of_rank(self) -> int:
        return self._topology.rank_dma_channels

    @stack.default
    def _stacks_of_ranks(self) -> np.ndarray:
        topology, place = self._topology, self.routes.placement
        on_chip = place.core.astype(np.int64) * topology.hbm.stacks // topology.ranks_per_chip
        stacks = place.chip * np.int64(topology.hbm.stacks) + on_chip
        return np.asarray(self._first(PartKind.HBM) + stacks)

    @rates.default
    def _rates_of_parts(self) -> np.ndarray:
        topology, counts = self._topology, self._counts
        efa = topology.efa
        rates = {
            PartKind.LINK: np.maximum(topology.links.bandwidth_bytes_per_s, 1),
            PartKind.DMA: np.repeat(
                self.routes.channel_bandwidth_bytes_per_s(np.arange(self.ranks)), self.groups
            ),
            PartKind.HBM: topology.hbm.stack_bandwidth_bytes_per_s,
            PartKind.CHIP: topology.rank_chip_bandwidth_bytes_per_s or UNLIMITED,
            PartKind.EFA: 0 if efa is None else efa.adapter_bandwidth_bytes_per_s,
            PartKind.QUEUE_PAIR: 0 if efa is None else efa.queue_pair_bandwidth_bytes_per_s,
            PartKind.CC_CORE: max(1, PS_PER_S // max(1, self.model.cc_instruction_ps)),
        }
        return np.concatenate([np.broadcast_to(rates[kind], counts[kind]) for kind in PartKind])

    @property
    def _topology(self) -> Topology:
        return self.routes.topology

    @property
    def _counts(self) -> dict[PartKind, int]:
        topology, both_ways = self._topology, 2 * self.ranks
        efa = topology.efa
        has_limit = efa is not None and efa.queue_pair_bandwidth_bytes_per_s > 0
        return {
            PartKind.LINK: len(topology.links),
            PartKind.DMA: self.groups * self.ranks,
            PartKind.HBM: topology.chips * topology.hbm.stacks,
            PartKind.CHIP: both_ways,
            PartKind.EFA: 0 if efa is None else 2 * efa.adapters * topology.nodes,
            PartKind.QUEUE_PAIR: both_ways if has_limit else 0,
            PartKind.CC_CORE: self.ranks,
        }

    @cached_property
    def _spans(self) -> dict[PartKind, tuple[int, int]]:
        counts = self._counts
        ends = np.cumsum([counts[kind] for kind in PartKind]).tolist()
        return {kind: (end - counts[kind], end) for kind, end in zip(PartKind, ends, strict=True)}

    def _first(self, kind: PartKind) -> int:
        return self._spans[kind][0]

    def span(self, kind: PartKind) -> slice:
        """The parts of one kind."""
        return slice(*self._spans[kind])

    def kind(self, part: int) -> PartKind:
        """The kind of a part."""
        return next(kind for kind, (_, end) in self._spans.items() if part < end)

    def name(self, part: int) -> str:
        """A part as reports print it: `c4.E`, `c4.hbm1`, `n0.efa3 out`, `r5.dma2`."""
        kind = self.kind(part)
        at = part - self._first(kind)
        if kind is PartKind.LINK:
            return self._topology.links.name(at)
        if kind is PartKind.HBM:
            chip, stack = divmod(at, self._topology.hbm.stacks)
            return f"c{chip}.hbm{stack}"
        if kind is PartKind.EFA:
            efa = self._topology.efa
            assert efa is not None, "it has adapters"
            inward, adapter = divmod(at, efa.adapters * self._topology.nodes)
            node, number = divmod(adapter, efa.adapters)
            return f"n{node}.efa{number} {'in' if inward else 'out'}"
        if kind is PartKind.DMA:
            rank, group = divmod(at, self.groups)
            return f"r{rank}.dma{group}"
        inward, rank = divmod(at, self.ranks)
        what = {PartKind.QUEUE_PAIR: "efa", PartKind.CHIP: "port", PartKind.CC_CORE: "cc"}[kind]
        return f"r{rank}.{what} {'in' if inward else 'out'}"

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.rates)

    def time_ps(self, amounts: np.ndarray) -> np.ndarray:
        """(parts,) the times that parts take for these amounts."""
        return duration_ps(amounts, self.rates)

    def dma(
        self, ranks: np.ndarray, stream: np.ndarray | int, lane: np.ndarray | int
    ) -> np.ndarray:
        """The DMA engines of ranks that serve the ring of a stream's lane."""
        group = (np.asarray(stream, np.int64) + lane) % self.groups
        return self._first(PartKind.DMA) + np.asarray(ranks, np.int64) * self.groups + group

    def chip_out(self, ranks: np.ndarray) -> np.ndarray:
        """The ports by which bytes of these ranks' memory go to other cores of the chip."""
        return np.asarray(ranks, np.int64) + self._first(PartKind.CHIP)

    def chip_in(self, ranks: np.ndarray) -> np.ndarray:
        """The ports by which bytes of other cores of the chip reach these ranks."""
        return np.asarray(ranks, np.int64) + (self._first(PartKind.CHIP) + self.ranks)

    def network(self, senders: np.ndarray, receivers: np.ndarray) -> tuple[np.ndarray, ...]:
        """What bytes pass between ranks of different instances: columns of parts.

        The senders' adapters outwards and the receivers' inwards, then the ends of queue pairs,
        where these have a limit.
        """
        first, end = self._spans[PartKind.EFA]
        out, into = (self.routes.adapter(ranks).astype(np.int64) for ranks in (senders, receivers))
        passed = (out + first, into + (first + (end - first) // 2))
        first, end = self._spans[PartKind.QUEUE_PAIR]
        if first == end:
            return passed
        out, into = np.asarray(senders, np.int64), np.asarray(receivers, np.int64)
        return (*passed, out + first, into + (first + self.ranks))

    @cached_property
    def network_parts(self) -> np.ndarray:
        """Adapters and ends of queue pairs, numbers of parts."""
        return np.concatenate([np.arange(*self._spans[kind]) for kind in NETWORK])

    def cc_core(self, ranks: np.ndarray) -> np.ndarray:
        """The CC-cores of ranks."""
        return np.asarray(ranks, np.int64) + self._first(PartKind.CC_CORE)
