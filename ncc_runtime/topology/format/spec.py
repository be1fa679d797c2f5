"""What a topology's TOML may state: its keys, the kinds of their values, the checked result.

Every figure has its source; links that are down or slowed, slowed cores, and the levels of a
fabric are rows of their own. What a level states is kept under `level.<name>.<key>`.
"""

import enum
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.format.toml_file import TomlFile

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "trn1": "trn1.32xlarge",
        "trn2": "trn2.48xlarge",
        "trn3": "trn3-gen2-ultraserver",
        "inf2": "inf2.48xlarge",
    }
)

LARGEST = 10**15
"""No rate or size above this, so that times stay exact in 64 bits (timing.duration_ps)."""

LEAST_RATE = 10**6
"""No rate of bytes below this, so that prices agree with the clock, which shares whole MB/s."""

LARGEST_COUNT = 1024
"""No count above this, but for those of chips."""

LARGEST_CHIPS = 16_384
"""No more chips an instance than this."""

LARGEST_LINKS = 4_194_304
"""No more directed links an instance than this: 2,048 chips all joined to all."""

BETWEEN_PORTS = "&"
"""The separator of the ports of a trunk's links in its name, as in `W&E`."""


class FabricShape(enum.Enum):
    """How the chips of one instance are wired; the value is the word in the TOML."""

    TORUS = "torus"  # every dimension wraps: rows x columns by N, W, S, E, or also planes by D, U
    RING = "ring"  # ports W, E
    LINE = "line"  # ports W, E, open ends
    GRAPH = "graph"  # pairs of chips joined both ways; ports p0, p1, …
    NONE = "none"  # one chip
    LEVELS = "levels"  # anything else that levels make; not a word of the TOML


class LevelKind(enum.Enum):
    """What joins the units of a level; the value is the word in the TOML."""

    TORUS = "torus"  # of one to three dimensions
    RING = "ring"
    LINE = "line"  # a ring that is open
    SWITCH = "switch"  # every unit has a port of it
    FULL = "full"  # a link from every unit to every other
    GRAPH = "graph"  # pairs of units joined both ways
    CLUSTER = "cluster"  # the network between instances, last of all


class Joins(enum.Enum):
    """What of its units a level joins; the value is the word in the TOML."""

    CHIPS = "chips"  # one switch, with a port for every chip of every unit
    PLACES = "places"  # the first chips of all units, then the second ones, and so on
    SWITCHES = "switches"  # the switches of the units, by their up-links


class ValueKind(enum.Enum):
    """What a leaf's value may be; the value is the phrase of the complaint."""

    COUNT = f"an integer from 1 to {LARGEST_COUNT}"
    AMOUNT = "an integer from 1 to 10^15"
    RATE = "an integer from 10^6 to 10^15"
    FLOPS = "an integer from 1 to 4 x 10^15"
    WIDTH = "an integer from 1 to 65536"
    CLOCK = "an integer from 1 to 10^12"
    DELAY = "an integer from 0 to 10^15"
    CHIPS = f"an integer from 1 to {LARGEST_CHIPS}"
    CHIPS_OR_NONE = f"an integer from 0 to {LARGEST_CHIPS}"
    COUNTS = "a list of integers from 1"
    PAIRS = "a list of pairs of different chips"
    SHAPE = "one of torus, ring, line, graph, none"
    PORT_WORDS = "four words, each a permutation of NWSE, or eight with D or U behind each letter"
    RATES = "an integer from 10^6 to 10^15, or a list of them by dimension"
    DELAYS = "an integer from 0 to 10^15, or a list of them by dimension"
    RATIO = "a number from 1 to 1000"
    PERCENT = "an integer from 1 to 100"


Value = int | float | str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, int], ...]

ENGINE_NAMES = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync")

PRODUCT_KINDS = ("bf16", "f16", "f8", "f32")
"""What the Tensor engine has a rate of its own for."""

_ENGINE_KEYS = {
    **{f"engine.{name}.clock_hz": ValueKind.CLOCK for name in ENGINE_NAMES},
    **{f"engine.Tensor.flops_per_s.{kind}": ValueKind.FLOPS for kind in PRODUCT_KINDS},
    **{
        f"engine.{name}.elements_per_cycle": ValueKind.WIDTH
        for name in ("Vector", "Scalar", "GpSimd")
    },
}

_REQUIRED = {
    "chips.count": ValueKind.CHIPS,
    "chips.cores": ValueKind.COUNT,
    "lnc.allowed": ValueKind.COUNTS,
    "lnc.default": ValueKind.COUNT,
    "hbm.stacks": ValueKind.COUNT,
    "hbm.stack_bytes": ValueKind.AMOUNT,
    "hbm.stack_bandwidth_bytes_per_s": ValueKind.RATE,
    "dma.engines_per_core": ValueKind.COUNT,
    "dma.engine_bandwidth_bytes_per_s": ValueKind.RATE,
    "dma.rings_per_engine": ValueKind.COUNT,
    "dma.descriptor_bytes": ValueKind.AMOUNT,
    "dma.ring_descriptors": ValueKind.AMOUNT,
    "dma.packet_bytes": ValueKind.AMOUNT,
    "dma.reduce_passes": ValueKind.COUNT,
    "cc.cores_per_core": ValueKind.COUNT,
    "cc.engines_per_channel": ValueKind.COUNT,
    "cc.start_ps": ValueKind.DELAY,
    "cc.instruction_ps": ValueKind.DELAY,
    "cc.packet_bytes": ValueKind.AMOUNT,
    "intra_chip.latency_ps": ValueKind.DELAY,
    "intra_chip.dies": ValueKind.COUNT,
    "intra_chip.die_latency_ps": ValueKind.DELAY,
    "fabric.shape": ValueKind.SHAPE,
    "efa.adapters": ValueKind.CHIPS_OR_NONE,
    **_ENGINE_KEYS,
}
_WITH_LINKS = {"link.bandwidth_bytes_per_s": ValueKind.RATE, "link.latency_ps": ValueKind.DELAY}
_WITH_EFA = {"efa.adapter_bandwidth_bytes_per_s": ValueKind.RATE, "efa.latency_ps": ValueKind.DELAY}
_OPTIONAL = {
    "cc.kangaring_bytes_per_rank": ValueKind.AMOUNT,
    "intra_chip.core_bandwidth_bytes_per_s": ValueKind.RATE,
    "efa.queue_pair_bandwidth_bytes_per_s": ValueKind.RATE,
    "chips.hosts": ValueKind.COUNT,
    "timing.launch_ps": ValueKind.DELAY,
    **{f"engine.Tensor.reached_percent.{kind}": ValueKind.PERCENT for kind in PRODUCT_KINDS},
    **{
        f"engine.{name}.{factor}": ValueKind.COUNT
        for name in ("Vector", "Scalar", "GpSimd")
        for factor in ("narrow_factor", "narrow_pair_factor")
    },
}
_WIRING = {
    "fabric.dims": ValueKind.COUNTS,
    "fabric.links": ValueKind.PAIRS,
    "fabric.core_ports": ValueKind.PORT_WORDS,
}

KEYS: Mapping[str, ValueKind] = MappingProxyType(
    {**_REQUIRED, **_WITH_LINKS, **_WITH_EFA, **_OPTIONAL, **_WIRING}
)

LEVEL_KEYS: Mapping[str, ValueKind] = MappingProxyType(
    {
        "dims": ValueKind.COUNTS,
        "size": ValueKind.CHIPS,
        "links": ValueKind.PAIRS,
        "bandwidth_bytes_per_s": ValueKind.RATES,
        "latency_ps": ValueKind.DELAYS,
        "oversubscription": ValueKind.RATIO,
        "adapters": ValueKind.CHIPS_OR_NONE,
        "queue_pair_bandwidth_bytes_per_s": ValueKind.RATE,
    }
)
"""Figures of a row of `[[level]]`, beside its name, kind and what it joins."""


@attrs.frozen
class Figure:
    """One fact of a topology and where it was read."""

    value: Value
    source: str


def figure_of(leaf: Mapping[str, Any]) -> Figure:
    """A leaf of the schema, frozen."""
    value = leaf["value"]
    if isinstance(value, list):
        value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return Figure(value, leaf["source"])


@attrs.frozen
class LinkFault:
    """Links from one chip to another that are down or slowed; a later row overrides an earlier."""

    # (source, target) of an instance; "s0": a switch; None: wherever the port leads
    ends: tuple[tuple[int | str, int | str | None], ...]
    source: str
    port: str | None = None  # where several links join the chips; None: all of them
    node: int | None = None  # the instance; None: every one
    is_down: bool | None = None  # None: as it was
    bandwidth_bytes_per_s: int | None = None  # None: as it was
    percent: int | None = None  # of the full rate; None: as it was


@attrs.frozen
class SlowedCore:
    """A physical core that runs slower than its kind; a later row overrides an earlier."""

    chip: int  # of an instance
    core: int  # physical, of the chip
    source: str
    node: int | None = None  # the instance; None: every one
    engines_percent: int = 100  # of the speed of its engines
    dma_percent: int = 100  # of the rate of its DMA engines


@attrs.frozen
class LevelRow:
    """One level of a fabric, innermost first; its figures are those of the spec by its name."""

    name: str
    kind: LevelKind
    joins: Joins

    def key(self, word: str) -> str:
        """The key of one of its figures."""
        return f"level.{self.name}.{word}"


@attrs.frozen
class Spec:
    """A topology as its file states it, checked leaf by leaf."""

    file: TomlFile  # the file or preset, for complaints
    name: str
    generation: str
    summary: str
    instance: str  # the built-in instance whose chips and wiring it has; "" for none
    figures: Mapping[str, Figure]
    faults: tuple[LinkFault, ...] = ()
    slowed: tuple[SlowedCore, ...] = ()
    levels: tuple[LevelRow, ...] = ()  # of the instance; none: the wiring is fabric.shape
    network: str = "EFA"  # what joins instances
    rules: str = "neuron"  # whose rules for groups hold; none: nobody's

    def number(self, key: str) -> int:
        value = self._value(key)
        assert isinstance(value, int), key
        return value

    def number_or(self, key: str, otherwise: int) -> int:
        """The number of an optional key."""
        return self.number(key) if key in self.figures else otherwise

    def numbers(self, key: str) -> tuple[int, ...]:
        value = self._value(key)
        assert isinstance(value, tuple), key
        return tuple(number for number in value if isinstance(number, int))

    def by_dimension(self, key: str, dimensions: int) -> tuple[int, ...]:
        """One number for each dimension; a single one is that of all."""
        value = self._value(key)
        numbers = (value,) * dimensions if isinstance(value, int) else self.numbers(key)
        if len(numbers) != dimensions:
            raise self.error(key, f"{len(numbers)} values for {dimensions} dimensions")
        return numbers

    def ratio_or(self, key: str, otherwise: float) -> float:
        """The ratio of an optional key."""
        value = self.figures[key].value if key in self.figures else otherwise
        assert isinstance(value, int | float), key
        if value != value:  # TOML's nan, which no limit of a schema refuses
            raise self.error(key, f"{value} is not {ValueKind.RATIO.value}")
        return value

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        value = self._value(key)
        assert isinstance(value, tuple), key
        return tuple(pair for pair in value if isinstance(pair, tuple))

    def words(self, key: str) -> tuple[str, ...]:
        """The words of an optional key, () without it."""
        value = self.figures[key].value if key in self.figures else ()
        assert isinstance(value, tuple), key
        return tuple(word for word in value if isinstance(word, str))

    @property
    def shape(self) -> FabricShape:
        return FabricShape.LEVELS if self.levels else FabricShape(self._value("fabric.shape"))

    def source(self, key: str) -> str:
        return self.figures[key].source

    def error(self, key: str, reason: str) -> TopologyError:
        """An error about a figure; one of the base's must be stated in the file to change it."""
        if key in self.figures and not self.file.states(key):
            reason += f"; the base says so, give {key}"
        return self.file.error(key, reason)

    def _value(self, key: str) -> Value:
        if key not in self.figures:
            known = self.file.states("base")
            base = "" if known else ", or name a base such as neuroncore-v3"
            raise self.error(key, f'missing; give {{value = …, source = "…"}}{base}')
        return self.figures[key].value


def examples() -> Path:
    """The folder of the example topologies that are described as users would."""
    return Path(__file__).parents[1] / "examples"


def example_names() -> tuple[str, ...]:
    """Every example, sorted."""
    files = (entry.name for entry in examples().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def presets() -> Path:
    """The folder of the built-in topologies."""
    return Path(__file__).parents[1] / "presets"


def preset_names() -> tuple[str, ...]:
    """Every built-in topology, sorted."""
    files = (entry.name for entry in presets().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))
