"""What a topology's TOML may state: its keys, the kinds of their values, the checked result.

Every figure has its source; links that are down or slowed, and slowed cores, are rows of their own.
"""

import enum
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType

import attrs

from ncc_runtime.errors import TopologyError

ALIASES: Mapping[str, str] = MappingProxyType(
    {"trn1": "trn1.32xlarge", "trn2": "trn2.48xlarge", "inf2": "inf2.48xlarge"}
)

LARGEST = 10**15
"""No rate or size above this, so that times stay exact in 64 bits (timing.duration_ps)."""

LARGEST_COUNT = 1024
"""No count above this: route tables grow with the square of the chips."""


class FabricShape(enum.Enum):
    """How the chips of one instance are wired; the value is the word in the TOML."""

    TORUS = "torus"  # rows x columns, both wrap; ports N, W, S, E
    RING = "ring"  # ports W, E
    LINE = "line"  # ports W, E, open ends
    GRAPH = "graph"  # pairs of chips joined both ways; ports p0, p1, …
    NONE = "none"  # one chip


class Kind(enum.Enum):
    """What a leaf's value may be; the value is the phrase of the complaint."""

    COUNT = f"an integer from 1 to {LARGEST_COUNT}"
    COUNT_OR_NONE = f"an integer from 0 to {LARGEST_COUNT}"
    AMOUNT = "an integer from 1 to 10^15"
    CLOCK = "an integer from 1 to 10^12"
    DELAY = "an integer from 0 to 10^15"
    COUNTS = "a list of integers from 1"
    PAIRS = "a list of pairs of different chips"
    SHAPE = "one of torus, ring, line, graph, none"
    PORT_WORDS = "four words, each a permutation of NWSE"


Value = int | str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, int], ...]

ENGINE_NAMES = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync")

_ENGINE_KEYS = {
    **{f"engine.{name}.clock_hz": Kind.CLOCK for name in ENGINE_NAMES},
    **{f"engine.Tensor.flops_per_s.{kind}": Kind.AMOUNT for kind in ("bf16", "f16", "f8", "f32")},
    **{f"engine.{name}.elements_per_cycle": Kind.COUNT for name in ("Vector", "Scalar", "GpSimd")},
}

_ALWAYS = {
    "chips.count": Kind.COUNT,
    "chips.cores": Kind.COUNT,
    "lnc.allowed": Kind.COUNTS,
    "lnc.default": Kind.COUNT,
    "hbm.stacks": Kind.COUNT,
    "hbm.stack_bytes": Kind.AMOUNT,
    "hbm.stack_bandwidth_bytes_per_s": Kind.AMOUNT,
    "dma.engines_per_core": Kind.COUNT,
    "dma.engine_bandwidth_bytes_per_s": Kind.AMOUNT,
    "dma.rings_per_engine": Kind.COUNT,
    "dma.descriptor_bytes": Kind.AMOUNT,
    "dma.ring_descriptors": Kind.AMOUNT,
    "dma.packet_bytes": Kind.AMOUNT,
    "dma.reduce_passes": Kind.COUNT,
    "cc.cores_per_core": Kind.COUNT,
    "cc.engines_per_channel": Kind.COUNT,
    "cc.start_ps": Kind.DELAY,
    "cc.instruction_ps": Kind.DELAY,
    "cc.packet_bytes": Kind.AMOUNT,
    "intra_chip.latency_ps": Kind.DELAY,
    "intra_chip.dies": Kind.COUNT,
    "intra_chip.die_latency_ps": Kind.DELAY,
    "fabric.shape": Kind.SHAPE,
    "efa.adapters": Kind.COUNT_OR_NONE,
    **_ENGINE_KEYS,
}
_WITH_LINKS = {"link.bandwidth_bytes_per_s": Kind.AMOUNT, "link.latency_ps": Kind.DELAY}
_WITH_EFA = {"efa.adapter_bandwidth_bytes_per_s": Kind.AMOUNT, "efa.latency_ps": Kind.DELAY}
_SELDOM = {"intra_chip.core_bandwidth_bytes_per_s": Kind.AMOUNT}
_WIRING = {
    "fabric.dims": Kind.COUNTS,
    "fabric.links": Kind.PAIRS,
    "fabric.core_ports": Kind.PORT_WORDS,
}

KEYS: Mapping[str, Kind] = MappingProxyType(
    {**_ALWAYS, **_WITH_LINKS, **_WITH_EFA, **_SELDOM, **_WIRING}
)


@attrs.frozen
class Figure:
    """One fact of a topology and where it was read."""

    value: Value
    source: str


@attrs.frozen
class LinkFault:
    """Links from one chip to another that are down or slowed; a later row overrides an earlier."""

    ends: tuple[tuple[int, int], ...]  # (source, target) chips of an instance
    source: str
    port: str | None = None  # where several links join the chips; None: all of them
    node: int | None = None  # the instance; None: every one
    is_down: bool | None = None  # None: as it was
    bandwidth_bytes_per_s: int | None = None  # None: as it was


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
class Spec:
    """A topology as its file states it, checked leaf by leaf."""

    origin: str  # the file or preset, for complaints
    name: str
    generation: str
    summary: str
    instance: str  # the built-in instance whose chips and wiring it has; "" for none
    figures: Mapping[str, Figure]
    faults: tuple[LinkFault, ...] = ()
    slowed: tuple[SlowedCore, ...] = ()

    def number(self, key: str) -> int:
        value = self._value(key)
        assert isinstance(value, int), key
        return value

    def number_or(self, key: str, otherwise: int) -> int:
        """The number of a key that need not be given."""
        return self.number(key) if key in self.figures else otherwise

    def numbers(self, key: str) -> tuple[int, ...]:
        value = self._value(key)
        assert isinstance(value, tuple), key
        return tuple(number for number in value if isinstance(number, int))

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        value = self._value(key)
        assert isinstance(value, tuple), key
        return tuple(pair for pair in value if isinstance(pair, tuple))

    def words(self, key: str) -> tuple[str, ...]:
        """The words of a key, none if it is not given."""
        value = self.figures[key].value if key in self.figures else ()
        assert isinstance(value, tuple), key
        return tuple(word for word in value if isinstance(word, str))

    @property
    def shape(self) -> FabricShape:
        return FabricShape(self._value("fabric.shape"))

    def source(self, key: str) -> str:
        return self.figures[key].source

    def error(self, key: str, reason: str) -> TopologyError:
        return TopologyError(f"{self.origin}: {key}: {reason}")

    def _value(self, key: str) -> Value:
        if key not in self.figures:
            raise self.error(key, "missing")
        return self.figures[key].value


def presets() -> Traversable:
    """The folder of the built-in topologies."""
    return resources.files("ncc_runtime.topology") / "presets"


def preset_names() -> tuple[str, ...]:
    """Every built-in topology, sorted."""
    files = (entry.name for entry in presets().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))
