"""Reading a topology's TOML: presets and users' files, every figure with its source.

A leaf is `{value = …, source = "…"}`. A file may name a `base`, a preset or one of the chip files
beside the presets, whose leaves it inherits and overrides. Complaints name the file and the key.
"""

import difflib
import tomllib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ncc_runtime.errors import TopologyError, reason_of
from ncc_runtime.topology.faults import read_faults
from ncc_runtime.topology.slowed import read_slowed
from ncc_runtime.topology.spec import (
    ALIASES,
    KEYS,
    LARGEST,
    LARGEST_COUNT,
    FabricShape,
    Figure,
    Kind,
    Spec,
    Value,
    preset_names,
    presets,
)


def load_spec(name_or_path: str) -> Spec:
    """The topology of that name, alias or file; TopologyError names what would be known."""
    name = ALIASES.get(name_or_path, name_or_path)
    if name in preset_names():
        return _read(name, presets() / f"{name}.toml")
    if name.endswith(".toml") or "/" in name:
        return _read(name, Path(name))
    raise TopologyError(_unknown(name))


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
    if not texts["name"]:
        raise TopologyError(f"{origin}: name: missing")
    faults = read_faults(origin, tables.pop("fault", []))
    slowed = read_slowed(origin, tables.pop("core", []))
    figures = _figures(origin, {key: value for key, value in tables.items() if key not in texts})
    instance = texts["name"] if origin in preset_names() else ""
    if texts["base"]:
        base = _base(origin, texts["base"])
        if not any(key.startswith(("chips.", "fabric.")) for key in figures):
            instance = instance or base.instance
        figures = {**base.figures, **figures}
        faults, slowed = base.faults + faults, base.slowed + slowed
        texts = {key: text or getattr(base, key, "") for key, text in texts.items()}
    return Spec(
        origin=origin,
        name=texts["name"],
        generation=texts["generation"],
        summary=texts["summary"],
        instance=instance,
        figures=MappingProxyType(figures),
        faults=faults,
        slowed=slowed,
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
    chips = presets() / "chips"
    chip_names = sorted(entry.name.removesuffix(".toml") for entry in chips.iterdir())
    if name in chip_names:
        figures = _figures(name, _tables(name, chips / f"{name}.toml"))
        return Spec(name, "", "", "", "", MappingProxyType(figures))
    if name in preset_names():
        return _read(name, presets() / f"{name}.toml")
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
        case Kind.PORT_WORDS:
            return _port_words(value)


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


def _port_words(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or len(value) != 4:
        return None
    words = tuple(word for word in value if isinstance(word, str) and sorted(word) == list("ENSW"))
    return words if len(words) == 4 else None
