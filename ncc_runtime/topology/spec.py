"""Reading a topology's TOML: presets and users' files, every figure with its source.

A leaf is `{value = …, source = "…"}`. A file may name a `base`, a preset or one of the chip files
beside the presets, whose leaves it inherits and overrides. Complaints name the file and the key.
"""

import difflib
import enum
import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from ncc_runtime.errors import TopologyError, reason_of

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


Value = int | str | tuple[int, ...] | tuple[tuple[int, int], ...]

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
    "cc.cores_per_core": Kind.COUNT,
    "intra_chip.latency_ps": Kind.DELAY,
    "fabric.shape": Kind.SHAPE,
    "efa.adapters": Kind.COUNT_OR_NONE,
    **_ENGINE_KEYS,
}
_WITH_LINKS = {"link.bandwidth_bytes_per_s": Kind.AMOUNT, "link.latency_ps": Kind.DELAY}
_WITH_EFA = {"efa.adapter_bandwidth_bytes_per_s": Kind.AMOUNT, "efa.latency_ps": Kind.DELAY}
_WIRING = {"fabric.dims": Kind.COUNTS, "fabric.links": Kind.PAIRS}

KEYS: Mapping[str, Kind] = MappingProxyType({**_ALWAYS, **_WITH_LINKS, **_WITH_EFA, **_WIRING})


@attrs.frozen
class Figure:
    """One fact of a topology and where it was read."""

    value: Value
    source: str


@attrs.frozen
class Spec:
    """A topology as its file states it, checked leaf by leaf."""

    origin: str  # the file or preset, for complaints
    name: str
    generation: str
    summary: str
    figures: Mapping[str, Figure]

    def number(self, key: str) -> int:
        value = self._value(key)
        assert isinstance(value, int), key
        return value

    def numbers(self, key: str) -> tuple[int, ...]:
        value = self._value(key)
        assert isinstance(value, tuple), key
        return tuple(number for number in value if isinstance(number, int))

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        value = self._value(key)
        assert isinstance(value, tuple), key
        return tuple(pair for pair in value if isinstance(pair, tuple))

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


def preset_names() -> tuple[str, ...]:
    """Every built-in topology, sorted."""
    files = (entry.name for entry in _presets().iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def load_spec(name_or_path: str) -> Spec:
    """The topology of that name, alias or file; TopologyError names what would be known."""
    name = ALIASES.get(name_or_path, name_or_path)
    if name in preset_names():
        return _read(name, _presets() / f"{name}.toml")
    if name.endswith(".toml") or "/" in name:
        return _read(name, Path(name))
    raise TopologyError(_unknown(name))


def _presets() -> Traversable:
    return resources.files("ncc_runtime.topology") / "presets"


def _unknown(name: str) -> str:
    known = (*preset_names(), *ALIASES)
    near = difflib.get_close_matches(name, known, n=2)
    if near:
        hint = f"; did you mean {' or '.join(near)}"
        return f"topology {name!r} is unknown{hint}; `nccrt topology list` names all"
    return f"topology {name!r} is unknown; known: {', '.join(known)}; or a .toml file"


def _read(origin: str, file: Traversable) -> Spec:
    tables = _tables(origin, file)
    texts = {key: _text(origin, tables, key) for key in ("name", "generation", "summary", "base")}
    tables = {key: value for key, value in tables.items() if key not in texts}
    figures = _figures(origin, tables)
    if not texts["name"]:
        raise TopologyError(f"{origin}: name: missing")
    if texts["base"]:
        base = _base(origin, texts["base"])
        figures = {**base.figures, **figures}
        texts = {key: text or getattr(base, key, "") for key, text in texts.items()}
    return Spec(
        origin, texts["name"], texts["generation"], texts["summary"], MappingProxyType(figures)
    )


def _tables(origin: str, file: Traversable) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode())
    except OSError as error:
        raise TopologyError(f"{origin}: {reason_of(error)}") from error
    except UnicodeDecodeError as error:
        raise TopologyError(f"{origin}: not UTF-8 text at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"{origin}: not TOML: {str(error).lower()}") from error


def _text(origin: str, tables: Mapping[str, Any], key: str) -> str:
    text = tables.get(key, "")
    if not isinstance(text, str) or not text.isprintable():
        raise TopologyError(f"{origin}: {key}: {text!r} is not a line of text")
    return text


def _base(origin: str, name: str) -> Spec:
    chips = _presets() / "chips"
    chip_names = sorted(entry.name.removesuffix(".toml") for entry in chips.iterdir())
    if name in chip_names:
        figures = _figures(name, _tables(name, chips / f"{name}.toml"))
        return Spec(name, "", "", "", MappingProxyType(figures))
    if name in preset_names():
        return _read(name, _presets() / f"{name}.toml")
    known = ", ".join((*chip_names, *preset_names()))
    raise TopologyError(f"{origin}: base: {name!r} is unknown; known: {known}")


def _figures(origin: str, tables: Mapping[str, Any], prefix: str = "") -> dict[str, Figure]:
    """Leaves by dotted key: a leaf is a table at a known key, anything else only leads there."""
    figures: dict[str, Figure] = {}
    for name, entry in tables.items():
        key = prefix + name
        if key in KEYS:
            figures[key] = _figure(origin, key, entry)
        elif isinstance(entry, dict) and any(known.startswith(key + ".") for known in KEYS):
            figures |= _figures(origin, entry, key + ".")
        else:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"; did you mean {near[0]}" if near else ""
            raise TopologyError(f"{origin}: {key}: unknown key{hint}")
    return figures


def _figure(origin: str, key: str, entry: object) -> Figure:
    if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
        raise TopologyError(f'{origin}: {key}: expected {{value = …, source = "…"}}, not {entry!r}')
    source = entry["source"]
    if not isinstance(source, str) or not source.strip():
        raise TopologyError(f"{origin}: {key}: the source is empty; cite one or write assumed")
    value = _checked(KEYS[key], entry["value"])
    if value is None:
        raise TopologyError(f"{origin}: {key}: {entry['value']!r} is not {KEYS[key].value}")
    return Figure(value, source)


def _checked(kind: Kind, value: object) -> Value | None:
    """The value in its frozen form, or None if it is not of that kind."""
    match kind:
        case Kind.SHAPE:
            return value if value in [shape.value for shape in FabricShape] else None
        case Kind.COUNT | Kind.COUNT_OR_NONE:
            low = 1 if kind is Kind.COUNT else 0
            return _integer(value, low, LARGEST_COUNT)
        case Kind.AMOUNT:
            return _integer(value, 1, LARGEST)
        case Kind.CLOCK:
            return _integer(value, 1, 10**12)
        case Kind.DELAY:
            return _integer(value, 0, LARGEST)
        case Kind.COUNTS:
            return _integers(value)
        case Kind.PAIRS:
            return _pairs(value)


def _integer(value: object, low: int, high: int) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if low <= value <= high else None


def _integers(value: object, low: int = 1) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value:
        return None
    numbers = tuple(_integer(number, low, LARGEST_COUNT) for number in value)
    return None if None in numbers else tuple(number for number in numbers if number is not None)


def _pairs(value: object) -> tuple[tuple[int, int], ...] | None:
    if not isinstance(value, list) or not value:
        return None
    pairs: list[tuple[int, int]] = []
    for entry in value:
        pair = _integers(entry, low=0)
        if pair is None or len(pair) != 2 or pair[0] == pair[1]:
            return None
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)
