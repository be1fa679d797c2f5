"""The JSON Schema of a topology's TOML, made from the keys of spec.py, and complaints by it.

`topology.schema.json` beside this file is `schema()` as text; a test keeps them equal. Each place
has the phrase of its complaint as `description`.
"""

import difflib
import functools
import itertools
import json
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ncc_runtime.topology.format.spec import (
    KEYS,
    LARGEST,
    LARGEST_CHIPS,
    LARGEST_COUNT,
    LEAST_RATE,
    LEVEL_KEYS,
    FabricShape,
    Joins,
    LevelKind,
    ValueKind,
)
from ncc_runtime.topology.format.toml_file import TomlFile

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator


Schema = dict[str, Any]

_CHIP = {"type": "integer", "minimum": 0, "maximum": LARGEST_CHIPS - 1}
_PERMUTED = r"^(?!.*([NWSE]).*\1)([NWSE]{4}|([NWSE][DU] ){3}[NWSE][DU])$"


def _integer(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _or_list(item: Schema) -> Schema:
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1, "maxItems": 3}]}


_SHAPES = [shape.value for shape in FabricShape if shape is not FabricShape.LEVELS]
_PAIR = {"type": "array", "items": _CHIP, "minItems": 2, "maxItems": 2, "uniqueItems": True}
_WORDS = {"type": "array", "items": {"type": "string", "pattern": _PERMUTED}}
_KINDS: Mapping[ValueKind, Schema] = {
    ValueKind.COUNT: _integer(1, LARGEST_COUNT),
    ValueKind.CHIPS: _integer(1, LARGEST_CHIPS),
    ValueKind.CHIPS_OR_NONE: _integer(0, LARGEST_CHIPS),
    ValueKind.AMOUNT: _integer(1, LARGEST),
    ValueKind.RATE: _integer(LEAST_RATE, LARGEST),
    ValueKind.FLOPS: _integer(1, 4 * LARGEST),
    ValueKind.WIDTH: _integer(1, 65_536),
    ValueKind.CLOCK: _integer(1, 10**12),
    ValueKind.DELAY: _integer(0, LARGEST),
    ValueKind.COUNTS: {"type": "array", "items": _integer(1, LARGEST_CHIPS), "minItems": 1},
    ValueKind.PAIRS: {"type": "array", "items": _PAIR, "minItems": 1},
    ValueKind.SHAPE: {"enum": _SHAPES},
    ValueKind.PORT_WORDS: {**_WORDS, "anyOf": [{"minItems": n, "maxItems": n} for n in (4, 8)]},
    ValueKind.RATES: _or_list(_integer(LEAST_RATE, LARGEST)),
    ValueKind.DELAYS: _or_list(_integer(0, LARGEST)),
    ValueKind.RATIO: {"type": "number", "minimum": 1, "maximum": 1000},
    ValueKind.PERCENT: _integer(1, 100),
}


def schema() -> Schema:
    """What tables, keys and values a topology's TOML may have."""
    text = {"type": "string", "pattern": r"^[^\x00-\x1f\x7f]*$", "description": "a line of text"}
    tables: Schema = dict.fromkeys(("name", "generation", "summary", "base"), text)
    tables["name"] = {**text, "pattern": r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$"}
    tables["name"] = {**tables["name"], "description": "a line of text with a word in it"}
    tables["rules"] = _word("neuron or none", ["neuron", "none"])
    for key, kind in KEYS.items():
        _insert(tables, key.split("."), _leaf(kind))
    for word, row in (("level", _level()), ("fault", _fault()), ("core", _core())):
        rows = f"a list of tables, each under [[{word}]]"
        tables[word] = {"type": "array", "description": rows, "items": row}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a topology of nccrt",
        "type": "object",
        "properties": tables,
        "additionalProperties": False,
        "required": ["name"],
    }


def schema_text() -> str:
    """The shipped file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _insert(tables: Schema, path: Sequence[str], leaf: Schema) -> None:
    """Put a leaf under nested tables."""
    if len(path) == 1:
        tables[path[0]] = leaf
        return
    table = tables.setdefault(
        path[0], {"type": "object", "properties": {}, "additionalProperties": False}
    )
    _insert(table["properties"], path[1:], leaf)


def _leaf(kind: ValueKind) -> Schema:
    """A figure: a value of some kind, and where it was read."""
    return {
        "type": "object",
        "description": 'expected {value = …, source = "…"}',
        "properties": {
            "value": {**_KINDS[kind], "description": kind.value},
            "source": _source(),
        },
        "additionalProperties": False,
        "required": ["value", "source"],
    }


def _source() -> Schema:
    about = "the source is empty; cite one or write assumed"
    return {"type": "string", "pattern": r"\S", "description": about}


def _word(phrase: str, words: Sequence[str]) -> Schema:
    return {"enum": list(words), "description": phrase}


def _row(properties: Schema, required: Sequence[str], phrase: str) -> Schema:
    return {
        "type": "object",
        "description": phrase,
        "properties": properties,
        "additionalProperties": False,
        "required": list(required),
    }


def _level() -> Schema:
    kinds, joins = ([word.value for word in words] for words in (LevelKind, Joins))
    properties = {
        "name": {
            "type": "string",
            "pattern": "^[A-Za-z][A-Za-z0-9_]{0,15}$",
            "description": "a word of at most 16 letters and digits that begins with a letter",
        },
        "kind": _word(f"one of {', '.join(kinds)}", kinds),
        "joins": _word(f"one of {', '.join(joins)}", joins),
        **{key: _leaf(kind) for key, kind in LEVEL_KEYS.items()},
    }
    return _row(properties, ["name"], "a table")


def _fault() -> Schema:
    phrase = f"an integer from 0 to {LARGEST_CHIPS}, or a switch such as s0"
    switch = {"type": "string", "pattern": "^s[0-9]+x?$"}
    chip = {"anyOf": [_integer(0, LARGEST_CHIPS), switch], "description": phrase}
    two = {"type": "array", "items": chip, "minItems": 2, "maxItems": 2}
    ends = "expected from = a and to = b, or between = [a, b], or name alone, such as c0-c1"
    properties = {
        "from": chip,
        "to": chip,
        "between": {**two, "description": ends},
        "port": {"type": "string", "description": "a word such as E"},
        "node": _numbered(0, LARGEST),
        "down": {"type": "boolean", "description": "true or false"},
        "bandwidth_bytes_per_s": _numbered(LEAST_RATE, LARGEST),
        "name": {"type": "string", "description": "a link such as c0-c1 or c0.E"},
        "percent": _numbered(1, 100),
        "source": _source(),
    }
    numbers = [{"required": ["from", "to"]}, {"required": ["between"]}]
    named = {"required": ["name"], "not": {"required": ["port"]}}
    state = "neither down nor bandwidth_bytes_per_s nor percent is given"
    states = ("down", "bandwidth_bytes_per_s", "percent")
    some = {"anyOf": [{"required": [word]} for word in states]}
    row = _row(properties, ["source"], "a table")
    return {
        **row,
        "allOf": [
            {"oneOf": [*numbers, named], "description": ends},
            {**some, "description": state},
        ],
    }


def _core() -> Schema:
    which = "expected chip = a and core = b, or name, such as c5.core0"
    properties = {
        "chip": _numbered(0, LARGEST_CHIPS),
        "core": _numbered(0, LARGEST_COUNT),
        "node": _numbered(0, LARGEST),
        "engines_percent": _numbered(1, 100),
        "dma_percent": _numbered(1, 100),
        "name": {"type": "string", "description": "a physical core such as c5.core0"},
        "percent": _numbered(1, 100),
        "source": _source(),
    }
    numbers = {"required": ["chip", "core"]}
    named = {"required": ["name"], "not": {"anyOf": [{"required": [k]} for k in ("chip", "core")]}}
    apart = {"anyOf": [{"required": ["engines_percent"]}, {"required": ["dma_percent"]}]}
    about = "neither engines_percent nor dma_percent is given, nor percent instead of them"
    row = _row(properties, ["source"], "a table")
    return {
        **row,
        "allOf": [
            {"oneOf": [numbers, named], "description": which},
            {"oneOf": [apart, {"required": ["percent"]}], "description": about},
        ],
    }


def _numbered(low: int, high: int) -> Schema:
    return {**_integer(low, high), "description": f"an integer from {low} to {high}"}


_MOST_COMPARED = 1000
"""Errors of the schema that are compared for the one to report."""


@functools.cache
def _topologies() -> tuple[Schema, "Validator"]:
    return schema(), _validator(schema())


def _validator(whole: Schema) -> "Validator":
    from jsonschema import Draft202012Validator

    return Draft202012Validator(whole)


def check(file: TomlFile, document: Mapping[str, Any], of: Schema | None = None) -> None:
    """TopologyError by line and column for the first thing that the schema refuses.

    `of` is another schema than that of topologies, with phrases of complaints as that has.
    """
    whole, validator = _topologies() if of is None else (of, _validator(of))
    errors = itertools.islice(validator.iter_errors(document), _MOST_COMPARED)
    error = min(errors, key=_order, default=None)
    if error is None:
        return
    path = list(error.absolute_path)
    if "value" in path:  # a fault inside a list is one of the whole value
        path = path[: path.index("value") + 1]
    place, instance = _described(whole, path, document)
    about, reason = _reason(error, place, instance, () if of else KEYS)
    raise file.error_at([*path, *about], _words([*path, *about]), reason)


def _order(error: "ValidationError") -> tuple[bool, str]:
    """Unknown keys come first: a slip of the pen there makes another key missing."""
    return error.validator != "additionalProperties", error.json_path


def _described(whole: Schema, path: Sequence[str | int], document: object) -> tuple[Schema, Any]:
    """The schema of a path, and the value that the document has there."""
    place, instance = whole, document
    for step in path:
        place = place["items"] if isinstance(step, int) else place["properties"][step]
        instance = instance[step]  # type: ignore[index]
    return place, instance


def _reason(
    error: "ValidationError", place: Schema, instance: Any, figures: Collection[str]
) -> tuple[Sequence[str], str]:
    """The key inside the place that the error is about, if any, and what is wrong.

    `figures` are dotted keys of the whole document.
    """
    phrase = place.get("description", "a table")
    keys = place.get("properties", {})
    shown = reprlib.repr(instance)
    if phrase.startswith("expected "):
        return (), f"{phrase}, not {shown}"
    if error.validator == "additionalProperties":
        key = next(key for key in instance if key not in keys)
        return (key,), f"unknown key{_remedy(error.absolute_path, key, keys, figures)}"
    if error.validator == "required":
        key = next(key for key in error.validator_value if key not in instance)
        about = keys[key].get("description", "")
        return ((), about) if key == "source" else ((key,), "missing")
    if error.validator == "dependentRequired":
        pairs = ((key, need) for key, needs in error.validator_value.items() for need in needs)
        key, missing = next(p for p in pairs if p[0] in instance and p[1] not in instance)
        return (key,), f"goes with {missing}, which is missing"
    if error.validator in ("oneOf", "anyOf") and "properties" in place:
        return (), error.schema["description"]
    if phrase.startswith("the source"):
        return (), phrase
    near = f", with keys such as {next(iter(keys))}" if keys else ""
    return (), f"{shown} is not {phrase}{near}"


def _remedy(
    above: Sequence[str | int], key: str, keys: Mapping[str, object], figures: Collection[str]
) -> str:
    """The key that was probably meant, or the keys known at that place."""
    if any(isinstance(step, int) for step in above):
        near = difflib.get_close_matches(key, keys, n=1)
        return f"; did you mean {near[0]}" if near else f"; known: {', '.join(keys)}"
    full = ".".join((*map(str, above), key))
    others = figures if above else (*figures, *keys)
    near = difflib.get_close_matches(full, others, n=1)
    return f"; did you mean {near[0]}" if near else f"; known: {', '.join(keys)}"


def _words(path: Sequence[str | int]) -> str:
    """A path in complaints: `link.latency_ps`, `fault 0: port`."""
    steps = [step for step in path if step not in ("value", "source")]
    if len(steps) > 1 and isinstance(steps[1], int):
        return ": ".join([f"{steps[0]} {steps[1]}", *map(str, steps[2:])])
    return ".".join(map(str, steps))
