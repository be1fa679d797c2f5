"""Reading a topology's TOML: presets, examples and users' files, every figure with its source.

A leaf is `{value = …, source = "…"}`. A file may name a `base`, a preset, an example or one of the
chip files beside the presets, whose leaves it inherits and overrides. Users' files are held against
the schema first; complaints name the file, line, column and key.
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.format import schema
from ncc_runtime.topology.format.rows import Fabric, read_faults, read_levels, read_slowed
from ncc_runtime.topology.format.spec import (
    ALIASES,
    KEYS,
    Figure,
    LevelKind,
    Spec,
    example_names,
    examples,
    figure_of,
    preset_names,
    presets,
)
from ncc_runtime.topology.format.toml_file import TomlFile

_WIRING = ("chips.", "fabric.", "level.")
"""Prefixes of keys that change the chips or wiring of the base."""


def load_spec(name_or_path: str) -> Spec:
    """The topology of that name, alias or file; TopologyError names the known ones."""
    file = users_file(name_or_path)
    if file is not None:
        return spec_of(file)
    name = ALIASES.get(name_or_path, name_or_path)
    shipped = _shipped(name)
    assert shipped is not None, "users_file has looked"
    return _read(TomlFile.read(name, shipped), is_shipped=True)


def users_file(name_or_path: str) -> TomlFile | None:
    """The file of that path, read; None of a shipped topology. TopologyError if it is neither."""
    name = ALIASES.get(name_or_path, name_or_path)
    if _shipped(name) is not None:
        return None
    if name.endswith(".toml") or "/" in name:
        return TomlFile.read(name, Path(name))
    known = (*preset_names(), *ALIASES, *example_names())
    near = _near(name.strip().lower(), known)
    if near:
        hint = f"; did you mean {' or '.join(near)}"
        raise TopologyError(f"topology {name!r} is unknown{hint}; `nccrt topology list` names all")
    raise TopologyError(f"topology {name!r} is unknown; known: {', '.join(known)}; or a .toml file")


def spec_of(file: TomlFile) -> Spec:
    """The topology that a user's file describes; it needs no other file but shipped ones."""
    return _read(file)


def _shipped(name: str) -> Path | None:
    """The file of a preset or an example."""
    if name in preset_names():
        return presets() / f"{name}.toml"
    return examples() / f"{name}.toml" if name in example_names() else None


def _near(name: str, known: Sequence[str]) -> Sequence[str]:
    """The name itself, else known names that begin with it, else those spelled like it."""
    if name in known:
        return [name]
    longer = [other for other in known if name and other.startswith(name)]
    return longer or difflib.get_close_matches(name, known, n=2)


def _read(file: TomlFile, *, is_shipped: bool = False) -> Spec:
    document = file.tables()
    if is_shipped:
        file = TomlFile(file.origin)  # tests check these against the schema, which takes time
    else:
        schema.check(file, document)
        # how the keys of each level begin: a cluster states those of the network
        levels = document.get("level", [])
        prefixes = (
            "efa." if level.get("kind") == LevelKind.CLUSTER.value else f"level.{level['name']}."
            for level in levels
        )
        file = attrs.evolve(file, rows=tuple(zip(prefixes, range(len(levels)), strict=True)))
    base = _base(file, document["base"]) if "base" in document else None
    is_preset = is_shipped and file.origin in preset_names()
    return _over(base, file, document, document["name"] if is_preset else "")


def _over(base: Spec | None, file: TomlFile, document: Mapping[str, Any], instance: str) -> Spec:
    """The base with what a file states over it."""
    below = base or Spec(file, "", "", "", "", MappingProxyType({}), rules="none")
    stated = _figures(document)
    fabric = read_levels(file, document.get("level", []), below, stated)
    figures = _merged(below, stated, fabric)
    is_same_wiring = not any(key.startswith(_WIRING) for key in (*stated, *fabric.figures))
    texts = {
        key: document.get(key) or getattr(below, key) for key in ("generation", "summary", "rules")
    }
    if base is not None and below.name and not is_same_wiring and not document.get("summary"):
        texts["summary"] = f"{below.name} with chips or wiring of its own"
    return Spec(
        file=file,
        name=document["name"],
        instance=instance or (below.instance if is_same_wiring else ""),
        figures=MappingProxyType(figures),
        faults=below.faults + read_faults(file, document.get("fault", [])),
        slowed=below.slowed + read_slowed(file, document.get("core", [])),
        levels=fabric.levels,
        network=fabric.network or below.network,
        **texts,
    )


def _merged(below: Spec, stated: Mapping[str, Figure], fabric: Fabric) -> dict[str, Figure]:
    """All figures; of the wirings by `fabric` and by levels only the one in use."""
    figures = {**below.figures, **stated, **fabric.figures}
    unused: tuple[str, ...] = (
        ("fabric.shape", "fabric.dims", "fabric.links", "link.") if fabric.levels else ("level.",)
    )
    kept = tuple(level.key("") for level in fabric.levels)
    if "chips.hosts" not in stated and (
        figures.get("chips.count") != below.figures.get("chips.count")
    ):
        unused += ("chips.hosts",)  # the base's machines hold another number of chips
    return {
        key: figure
        for key, figure in figures.items()
        if key.startswith(kept) or not key.startswith((*unused, "level."))
    }


def _base(file: TomlFile, name: str) -> Spec:
    chips = presets() / "chips"
    chip_names = sorted(entry.name.removesuffix(".toml") for entry in chips.iterdir())
    shipped = _shipped(name)
    if name in chip_names:
        origin = TomlFile.read(name, chips / f"{name}.toml")
        return Spec(TomlFile(name), "", "", "", "", MappingProxyType(_figures(origin.tables())))
    if shipped is not None:
        return _read(TomlFile.read(name, shipped), is_shipped=True)
    known = ", ".join((*chip_names, *preset_names(), *example_names()))
    raise file.error("base", f"{name!r} is unknown; known: {known}")


def _figures(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Figure]:
    """Leaves by dotted key."""
    figures: dict[str, Figure] = {}
    for name, entry in tables.items():
        key = prefix + name
        if key in KEYS:
            figures[key] = figure_of(entry)
        elif isinstance(entry, dict):
            figures |= _figures(entry, key + ".")
    return figures
