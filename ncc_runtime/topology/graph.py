"""A topology: instances with chips, links, memory, DMA engines and adapters, at their rates.

Chips are numbered through the instances, node-major, and so are links and EFA adapters. A rank
is a logical core: `lnc` physical cores with all their engines, DMA rings and CC-cores.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.fabric import (
    Axis,
    InstanceWiring,
    Level,
    Links,
    ends_of_instances,
    wire,
    with_trunks,
)
from ncc_runtime.topology.fault_names import (
    ActiveFault,
    NamedFault,
    active_faults,
    edges_of,
    with_faults,
)
from ncc_runtime.topology.format.load import load_spec
from ncc_runtime.topology.format.rows import (
    checked_slowed,
    link_states,
    speeds_percent,
    with_targets,
)
from ncc_runtime.topology.format.spec import (
    ENGINE_NAMES,
    LARGEST,
    PRODUCT_KINDS,
    FabricShape,
    Figure,
    LevelKind,
    LinkFault,
    SlowedCore,
    Spec,
)

if TYPE_CHECKING:
    import networkx

LEVELS = FabricShape.LEVELS

QUADRANTS = 4
"""S-engines of a Trainium2 chip, which `fabric.core_ports` names."""

LARGEST_NODES = 65536
"""No more instances than this, so that ids of ranks, chips and links fit 32 bits."""


@attrs.frozen
class EngineRates:
    """The rates of one physical core's engine; 0 elements a cycle: it computes nothing."""

    clock_hz: int
    elements_per_cycle: int
    flops_per_s: Mapping[str, int]  # by bf16, f16, f8, f32; empty but for Tensor
    narrow_factor: int = 1  # times as many elements of 2-byte floats, one array in
    narrow_pair_factor: int = 1  # times as many where two arrays come in, or one byte goes out
    reached_percent: Mapping[str, int] = attrs.field(factory=dict)  # of these, by products


@attrs.frozen
class Hbm:
    """The memory of one chip."""

    stacks: int
    stack_bytes: int
    stack_bandwidth_bytes_per_s: int


@attrs.frozen
class Dma:
    """The DMA engines of one physical core, their rings, and the largest descriptor they take."""

    engines_per_core: int
    engine_bandwidth_bytes_per_s: int
    rings_per_engine: int
    descriptor_bytes: int
    ring_descriptors: int  # that one ring of one engine holds
    packet_bytes: int  # of a compute transfer; engines turn to another ring between packets
    reduce_passes: int  # of the engine by each byte of each source of a reduction


@attrs.frozen
class Collectives:
    """How a collective uses the DMA engines of a rank, and what its CC-cores cost."""

    engines_per_channel: int  # of a physical core
    start_ps: int  # before the first row, after the trigger
    instruction_ps: int  # of one CC-core
    packet_bytes: int  # as Dma.packet_bytes, of a collective's transfer
    kangaring_bytes_per_rank: int  # of its larger side, from which Neuron takes KangaRing; or 0


@attrs.frozen
class IntraChip:
    """Transfers inside a chip; cores are divided over its dies in order."""

    latency_ps: int
    dies: int
    die_latency_ps: int  # on top, between dies
    core_bandwidth_bytes_per_s: int  # in each direction, of one physical core; 0: no limit is known


@attrs.frozen
class Efa:
    """The network adapters of one instance; consecutive chips share one."""

    adapters: int
    chips_per_adapter: int
    adapter_bandwidth_bytes_per_s: int  # in each direction
    queue_pair_bandwidth_bytes_per_s: int  # likewise, of one rank; 0: no limit is known
    latency_ps: int


@attrs.frozen(eq=False, repr=False)
class Topology:
    """The hardware that a program is placed on; `Topology.load` makes one.

    `print` of it is the text of `nccrt topology show`; a notebook shows the picture.

    - `name`, `summary`, `generation`, `instance`: what it is
    - `nodes`, `lnc`: how many instances, physical cores of a rank
    - `chips`, `chips_per_node`, `ranks_per_chip`, `ranks_per_node`, `max_ranks`: how much there is
    - `links`: directed links as columns (src, dst, bandwidth_bytes_per_s, latency_ps, is_down …)
    - `hbm`, `dma`, `engines`, `cc`, `intra_chip`, `efa`: rates of a chip, core, adapter
    - `figures`: every fact of the file by its key, with `value` and `source`
    - `faults`, `slowed`: links that are down or slow, cores that are slow
    """

    name: str
    instance: str  # the built-in instance whose chips and wiring it has; "" for none
    generation: str
    summary: str
    nodes: int
    lnc: int
    shape: FabricShape
    levels: tuple[Level, ...]  # of an instance, innermost first
    axes: tuple[Axis, ...]  # of a grid of chips, slowest first; else ()
    chips_per_node: int
    hosts_per_node: int  # machines that an instance consists of, as an UltraServer does
    cores_per_chip: int  # physical
    hbm: Hbm
    dma: Dma
    cc_cores_per_core: int
    cc: Collectives
    engines: Mapping[str, EngineRates]  # by name, of one physical core
    links: Links
    faults: tuple[LinkFault, ...]  # what is wrong with the links, as the file says
    slowed: tuple[SlowedCore, ...]  # cores that run slower, as the file says
    core_ports: tuple[str, ...]  # by parity of places: the ports of a chip's quadrants
    intra_chip: IntraChip
    efa: Efa | None
    network: str  # the name of what joins instances
    rules: str  # whose rules for groups hold, neuron or none
    figures: Mapping[str, Figure]
    spec: Spec  # what it was built from

    @classmethod
    def load(
        cls, name_or_path: str | os.PathLike[str], nodes: int = 1, lnc: int | None = None
    ) -> "Topology":
        """`nodes` instances of a type, alias or TOML file; `topologies()` lists the known ones.

        `lnc` is the physical cores of a rank, by default as usual for the generation.
        TopologyError if there is no such topology, or it contradicts itself.

        >>> topology = Topology.load("trn2", nodes=2)
        >>> topology
        <Topology: 2 x trn2.48xlarge, lnc 2>
        >>> topology.chips, topology.max_ranks
        (32, 128)
        >>> topology.figures["chips.count"].value
        16
        """
        return build(os.fspath(name_or_path), nodes, lnc)

    def __repr__(self) -> str:
        return f"<Topology: {self.nodes} x {self.name}, lnc {self.lnc}>"

    def __str__(self) -> str:
        from ncc_runtime.report.topology.text import describe

        return describe(self)

    def as_dict(self) -> dict[str, Any]:
        """The object that `nccrt topology show --json` prints."""
        from ncc_runtime.report.topology.text import as_json

        return as_json(self)

    def svg(self) -> str:
        """The picture of an instance as SVG."""
        from ncc_runtime.report.topology.svg import as_svg

        return as_svg(self)

    def _repr_html_(self) -> str:
        from ncc_runtime.report.topology.svg import as_html

        return as_html(self)

    @property
    def dims(self) -> tuple[int, ...]:
        """Rows, columns of a torus, planes before them; length of a ring or line; else ()."""
        return tuple(axis.extent for axis in self.axes)

    @property
    def switches_per_node(self) -> int:
        """Switches of an instance, a halved one being two."""
        return len(self.links.switches)

    @property
    def ranks_per_chip(self) -> int:
        """Logical cores of a chip."""
        return self.cores_per_chip // self.lnc

    @property
    def ranks_per_node(self) -> int:
        """Logical cores of an instance."""
        return self.chips_per_node * self.ranks_per_chip

    @property
    def max_ranks(self) -> int:
        """Logical cores of all instances."""
        return self.nodes * self.ranks_per_node

    @property
    def chips(self) -> int:
        """Chips of all instances."""
        return self.nodes * self.chips_per_node

    @property
    def cores_per_stack(self) -> int:
        """Physical cores that share one HBM stack."""
        return self.cores_per_chip // self.hbm.stacks

    @property
    def links_per_node(self) -> int:
        """Directed links of an instance."""
        return len(self.links.port)

    @property
    def rank_hbm_bandwidth_bytes_per_s(self) -> int:
        """A rank's share of its stack when every core of the stack is busy."""
        share = self.hbm.stack_bandwidth_bytes_per_s * self.lnc // self.cores_per_stack
        return max(1, share)

    @property
    def rank_dma_bandwidth_bytes_per_s(self) -> int:
        """All DMA engines of a rank together."""
        return self.rank_dma_engines * self.dma.engine_bandwidth_bytes_per_s

    @property
    def rank_dma_engines(self) -> int:
        """DMA engines of a rank."""
        return self.dma.engines_per_core * self.lnc

    @property
    def rank_dma_channels(self) -> int:
        """Groups into which the DMA engines of a rank are divided; a DMA ring runs on one."""
        return max(1, self.dma.engines_per_core // self.cc.engines_per_channel)

    @property
    def channel_engines(self) -> int:
        """DMA engines of one such group."""
        return self.rank_dma_engines // self.rank_dma_channels

    @property
    def rank_chip_bandwidth_bytes_per_s(self) -> int:
        """A rank's rate into or out of its chip's fabric; 0: no limit is known."""
        return self.intra_chip.core_bandwidth_bytes_per_s * self.lnc

    @property
    def rank_ring_descriptors(self) -> int:
        """Descriptors that a rank's ring of one lane holds: it has one ring of each engine."""
        return self.rank_dma_engines * self.dma.ring_descriptors

    @property
    def rank_cc_cores(self) -> int:
        """CC-cores of a rank."""
        return self.cc_cores_per_core * self.lnc

    @property
    def rank_efa_bandwidth_bytes_per_s(self) -> int:
        """What a rank gets of its adapter if no other uses it; 0 without EFA."""
        if self.efa is None:
            return 0
        adapter = self.efa.adapter_bandwidth_bytes_per_s
        return min(adapter, self.efa.queue_pair_bandwidth_bytes_per_s or adapter)

    @property
    def active_faults(self) -> tuple[ActiveFault, ...]:
        """What is down or slow, by the names of listings."""
        switches = self.links.switches[-1][0] + 1 if self.links.switches else 0
        return tuple(active_faults(self.faults, self.slowed, self.chips_per_node, switches))

    @functools.cached_property
    def healthy(self) -> "Topology":
        """The same machine with nothing down or slow."""
        if not self.active_faults:
            return self
        return build_spec(attrs.evolve(self.spec, faults=(), slowed=()), self.nodes, self.lnc)

    def graph(self, node: int | None = None, *, up_only: bool = False) -> "networkx.DiGraph":
        """The wiring as a networkx graph: of all instances, or of one instance alone.

        Nodes have the names of listings and come in the order of their numbers: chips (`c4`), then
        switches (`s36`). Of several instances the adapters follow (`n0.efa3`), joined to their
        chips and to a node `network`; bytes take them only from one instance to another. A node
        has a `kind`, and as `node` its instance.

        An edge is one direction of a link. Its attributes are `bandwidth_bytes_per_s`,
        `latency_ps`, `parallel_links` and `is_down`, except at adapters also `name` (`c0.E`) and
        `link`, its row in `links`. Parallel links are one edge of their summed rate: `links` has
        merged them into a trunk, over which a copy is dealt, so that a MultiDiGraph would say no
        more. The edges into `network` have its latency. `up_only` leaves out edges that are down.
        TopologyError if there is no such instance.
        """
        if node is not None and not 0 <= node < self.nodes:
            raise TopologyError(f"instance {node} is not there: {self.name} has {self.nodes}")

        import networkx  # loads slowly, and most commands need no graph

        links = self.links
        nodes = range(self.nodes) if node is None else (node,)
        graph = networkx.DiGraph(name=self.name)
        for kind, per_node in (("chip", self.chips_per_node), ("switch", self.switches_per_node)):
            first = 0 if kind == "chip" else self.chips
            for instance in nodes:
                ends = range(first + instance * per_node, first + (instance + 1) * per_node)
                graph.add_nodes_from(map(links.end, ends), kind=kind, node=instance)
        names = {end: links.end(end) for end in np.unique([links.src, links.dst]).tolist()}
        for link in range(nodes[0] * self.links_per_node, (nodes[-1] + 1) * self.links_per_node):
            is_down = bool(links.is_down[link])
            if is_down and up_only:
                continue
            graph.add_edge(
                names[int(links.src[link])],
                names[int(links.dst[link])],
                name=links.name(link),
                link=link,
                bandwidth_bytes_per_s=int(links.bandwidth_bytes_per_s[link]),
                latency_ps=int(links.latency_ps[link]),
                parallel_links=int(links.parallel_links[link]),
                is_down=is_down,
            )
        if len(nodes) > 1 and self.efa is not None:
            self._add_network(graph, self.efa)
        return graph

    def _add_network(self, graph: "networkx.DiGraph", efa: "Efa") -> None:
        """The adapters of all instances, between their chips and the network."""
        graph.add_node("network", kind="network")
        figures = {
            "bandwidth_bytes_per_s": efa.adapter_bandwidth_bytes_per_s,
            "latency_ps": 0,
            "parallel_links": 1,
            "is_down": False,
        }
        for chip in range(self.chips):
            node, adapter = divmod(chip // efa.chips_per_adapter, efa.adapters)
            name = f"n{node}.efa{adapter}"
            if name not in graph:
                graph.add_node(name, kind="adapter", node=node)
                graph.add_edge(name, "network", **{**figures, "latency_ps": efa.latency_ps})
                graph.add_edge("network", name, **figures)
            graph.add_edge(self.links.end(chip), name, **figures)
            graph.add_edge(name, self.links.end(chip), **figures)

    def engines_percent(self, chip: np.ndarray, core: np.ndarray) -> np.ndarray:
        """How fast the engines of logical cores run, of their kind's speed, int64.

        The cores of a rank share its work evenly, so that the slowest decides (assumed).
        """
        return speeds_percent(self.slowed, "engines_percent", self._physical(chip, core))

    def dma_percent(self, chip: np.ndarray, core: np.ndarray) -> np.ndarray:
        """The same of their DMA engines."""
        return speeds_percent(self.slowed, "dma_percent", self._physical(chip, core))

    def _physical(
        self, chip: np.ndarray, core: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Instances, chips of them, and (n, lnc) physical cores."""
        node, within = np.divmod(np.asarray(chip, np.int64), self.chips_per_node)
        first = np.asarray(core, np.int64)[..., None] * self.lnc
        return node, within, first + np.arange(self.lnc)


def build(
    name_or_path: str,
    nodes: int = 1,
    lnc: int | None = None,
    faults: Sequence[NamedFault] = (),
) -> Topology:
    """`nodes` instances of a preset, alias or TOML file; TopologyError if that is impossible.

    `faults` come on top of those of the file.
    """
    return build_spec(load_spec(name_or_path), nodes, lnc, faults)


def build_spec(
    spec: Spec, nodes: int = 1, lnc: int | None = None, faults: Sequence[NamedFault] = ()
) -> Topology:
    """`nodes` instances of a specification, which may differ from its file."""
    lnc = _checked_lnc(spec, lnc)
    efa = _efa(spec)
    _check_nodes(spec, nodes, efa)
    wiring = wire(spec)
    spec = with_faults(spec, wiring, nodes, faults)
    if spec.faults:
        spec = with_targets(spec, edges_of(wiring))
    levels = wiring.levels
    return Topology(
        name=spec.name,
        instance=spec.instance,
        generation=spec.generation,
        summary=spec.summary,
        nodes=nodes,
        lnc=lnc,
        shape=_shape(levels),
        levels=levels,
        axes=wiring.axes,
        chips_per_node=wiring.chips,
        hosts_per_node=_hosts(spec),
        cores_per_chip=spec.number("chips.cores"),
        hbm=_hbm(spec),
        dma=Dma(
            engines_per_core=spec.number("dma.engines_per_core"),
            engine_bandwidth_bytes_per_s=spec.number("dma.engine_bandwidth_bytes_per_s"),
            rings_per_engine=spec.number("dma.rings_per_engine"),
            descriptor_bytes=spec.number("dma.descriptor_bytes"),
            ring_descriptors=spec.number("dma.ring_descriptors"),
            packet_bytes=spec.number("dma.packet_bytes"),
            reduce_passes=spec.number("dma.reduce_passes"),
        ),
        cc_cores_per_core=spec.number("cc.cores_per_core"),
        cc=Collectives(
            engines_per_channel=spec.number("cc.engines_per_channel"),
            start_ps=spec.number("cc.start_ps"),
            instruction_ps=spec.number("cc.instruction_ps"),
            packet_bytes=spec.number("cc.packet_bytes"),
            kangaring_bytes_per_rank=spec.number_or("cc.kangaring_bytes_per_rank", 0),
        ),
        engines=_engines(spec),
        links=_links(spec, wiring, nodes),
        faults=spec.faults,
        slowed=checked_slowed(spec),
        core_ports=_core_ports(spec, levels),
        intra_chip=_intra_chip(spec),
        efa=efa,
        network=spec.network,
        rules=spec.rules,
        figures=spec.figures,
        spec=spec,
    )


def _checked_lnc(spec: Spec, lnc: int | None) -> int:
    allowed, default = spec.numbers("lnc.allowed"), spec.number("lnc.default")
    cores = spec.number("chips.cores")
    if any(size > 2 or cores % size for size in allowed):
        raise spec.error("lnc.allowed", f"{list(allowed)} are not 1, or 2 with an even core count")
    if default not in allowed:
        raise spec.error("lnc.default", f"{default} is not among {list(allowed)}")
    if lnc is not None and lnc not in allowed:
        words = " or ".join(map(str, allowed))
        raise TopologyError(
            f"{spec.name} runs at lnc {words}, not {lnc} ({spec.source('lnc.allowed')})"
        )
    return lnc or default


def _check_nodes(spec: Spec, nodes: int, efa: Efa | None) -> None:
    if not 1 <= nodes <= LARGEST_NODES:
        raise TopologyError(f"nodes is {nodes}, must be from 1 to {LARGEST_NODES}")
    if nodes > 1 and efa is None:
        raise TopologyError(
            f"{nodes} instances of {spec.name} cannot be joined, it has no EFA adapters "
            f"({spec.source('efa.adapters')})"
        )


def _hbm(spec: Spec) -> Hbm:
    stacks, cores = spec.number("hbm.stacks"), spec.number("chips.cores")
    if cores % stacks:
        raise spec.error("hbm.stacks", f"{stacks} stacks do not divide {cores} cores")
    rate = spec.number("hbm.stack_bandwidth_bytes_per_s")
    return Hbm(stacks, spec.number("hbm.stack_bytes"), rate)


def _intra_chip(spec: Spec) -> IntraChip:
    dies, cores = spec.number("intra_chip.dies"), spec.number("chips.cores")
    if cores % dies:
        raise spec.error("intra_chip.dies", f"{dies} dies do not divide {cores} cores")
    return IntraChip(
        latency_ps=spec.number("intra_chip.latency_ps"),
        dies=dies,
        die_latency_ps=spec.number("intra_chip.die_latency_ps"),
        core_bandwidth_bytes_per_s=spec.number_or("intra_chip.core_bandwidth_bytes_per_s", 0),
    )


def _engines(spec: Spec) -> Mapping[str, EngineRates]:
    rates: dict[str, EngineRates] = {}
    for name in ENGINE_NAMES:
        clock = spec.number(f"engine.{name}.clock_hz")
        if name == "Tensor":
            rates[name] = _tensor_rates(spec, clock)
        else:
            lanes = 0 if name == "Sync" else spec.number(f"engine.{name}.elements_per_cycle")
            if clock * lanes > 4 * LARGEST:
                reason = f"{clock * lanes} elements a second are more than 4 x 10^15"
                raise spec.error(f"engine.{name}.elements_per_cycle", reason)
            key = f"engine.{name}.{{}}".format
            rates[name] = EngineRates(
                clock,
                lanes,
                MappingProxyType({}),
                spec.number_or(key("narrow_factor"), 1),
                spec.number_or(key("narrow_pair_factor"), 1),
            )
    return MappingProxyType(rates)


def _tensor_rates(spec: Spec, clock: int) -> EngineRates:
    key = "engine.Tensor.{}.{}".format
    peaks = {kind: spec.number(key("flops_per_s", kind)) for kind in PRODUCT_KINDS}
    reached = {kind: spec.number_or(key("reached_percent", kind), 100) for kind in PRODUCT_KINDS}
    return EngineRates(clock, 0, MappingProxyType(peaks), reached_percent=MappingProxyType(reached))


def _efa(spec: Spec) -> Efa | None:
    adapters, chips = spec.number("efa.adapters"), spec.number("chips.count")
    if adapters == 0:
        return None
    if chips % adapters:
        raise spec.error("efa.adapters", f"{adapters} adapters do not divide {chips} chips")
    return Efa(
        adapters=adapters,
        chips_per_adapter=chips // adapters,
        adapter_bandwidth_bytes_per_s=spec.number("efa.adapter_bandwidth_bytes_per_s"),
        queue_pair_bandwidth_bytes_per_s=spec.number_or("efa.queue_pair_bandwidth_bytes_per_s", 0),
        latency_ps=spec.number("efa.latency_ps"),
    )


def _shape(levels: Sequence[Level]) -> FabricShape:
    """The shape of a single level, where `fabric.shape` has a word for it; else LEVELS."""
    if not levels:
        return FabricShape.NONE
    shapes = {shape.value: shape for shape in FabricShape}
    return shapes.get(levels[0].kind.value, LEVELS) if len(levels) == 1 else LEVELS


def _hosts(spec: Spec) -> int:
    hosts, chips = spec.number_or("chips.hosts", 1), spec.number("chips.count")
    if chips % hosts:
        raise spec.error("chips.hosts", f"{hosts} hosts do not divide {chips} chips")
    return hosts


def _core_ports(spec: Spec, levels: Sequence[Level]) -> tuple[str, ...]:
    """The published quadrants, where the chips have the ports that they name."""
    words, cores = spec.words("fabric.core_ports"), spec.number("chips.cores")
    has_ports = levels and levels[0].kind is LevelKind.TORUS and len(levels[0].dims) >= 2
    if not words or not has_ports:
        return ()
    if cores % QUADRANTS:
        raise spec.error("fabric.core_ports", f"{QUADRANTS} ports do not divide {cores} cores")
    return words


def _links(spec: Spec, wiring: InstanceWiring, nodes: int) -> Links:
    """The links of one instance, repeated with its chips' numbers for every other."""
    states = link_states(spec, edges_of(wiring), nodes, wiring.bandwidth_bytes_per_s)
    wiring, states = with_trunks(wiring, states)
    fastest = int(states.bandwidth_bytes_per_s.max(initial=0))
    if fastest > LARGEST:
        where = f"level.{spec.levels[-1].name}" if spec.levels else "link.bandwidth_bytes_per_s"
        raise spec.error(where, f"parallel links carry {fastest} bytes/s in all, more than 10^15")
    latency = np.tile(wiring.latency_ps, nodes)
    latency.setflags(write=False)
    return Links(
        src=ends_of_instances(wiring, wiring.src, nodes),
        dst=ends_of_instances(wiring, wiring.dst, nodes),
        bandwidth_bytes_per_s=states.bandwidth_bytes_per_s,
        latency_ps=latency,
        is_down=states.is_down,
        parallel_links=states.parallel_links,
        variant=states.variant,
        port=wiring.port,
        chips=nodes * wiring.chips,
        switches=wiring.switches,
    )
