"""Attribute values between text and data, one reader and one spelling per kind."""

import math
import re
from collections.abc import Callable, Mapping

import numpy as np

from ncc_compiler.ir.graph import (
    Attribute,
    Callee,
    Callees,
    Lists,
    Padding,
    Quoted,
    Raw,
    SourceTargetPairs,
)
from ncc_compiler.ir.op_tables.op_row import AttrKind
from ncc_runtime.neff.shared.groups import ExplicitGroups, IotaGroups, MeshGroups, parse_groups
from ncc_runtime.neff.shared.windows import ConvolutionLabels, Window, read_labels, read_window

MAX_RANKS = 1 << 20
"""Groups and headers that ask for more ranks are refused before anything is allocated."""

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
_WORD = re.compile(r"\w+")
_INTEGERS = re.compile(r"\{\s*(?:-?[0-9]{1,18}\s*(?:,\s*-?[0-9]{1,18}\s*)*)?\}")
_SLICE = re.compile(r"\[\s*(-?[0-9]{1,18})\s*:\s*(-?[0-9]{1,18})\s*(?::\s*(-?[0-9]{1,18})\s*)?\]")
_SLICES = re.compile(r"\{\s*(?:\[[-0-9:\s]*\]\s*(?:,\s*\[[-0-9:\s]*\]\s*)*)?\}")
_PAIR = re.compile(r"\{\s*([0-9]{1,18})\s*,\s*([0-9]{1,18})\s*\}")
_PAIRS = re.compile(r"\{\s*(?:\{[0-9,\s]*\}\s*(?:,\s*\{[0-9,\s]*\}\s*)*)?\}")
_LIST = re.compile(r"\{([0-9,\s]*)\}")
_LISTED = re.compile(r"\s*(?:[0-9]{1,18}\s*(?:,\s*[0-9]{1,18}\s*)*)?")
_CALLEE = re.compile(r"%?[\w.\-]+")
_CALLEES = re.compile(r"\{\s*(?:%?[\w.\-]+\s*(?:,\s*%?[\w.\-]+\s*)*)?\}")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_PADDED = re.compile(r"(-?[0-9]{1,18})_(-?[0-9]{1,18})(?:_(-?[0-9]{1,18}))?")
_SHARDING = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_DOMAIN = re.compile(rf'\{{\s*kind="[^"\n]*"\s*,\s*entry={_SHARDING}\s*,\s*exit={_SHARDING}\s*\}}')
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def read_attribute(kind: AttrKind, text: str) -> Attribute:
    """The value of an attribute's text; ValueError says what form the kind has."""
    return _READERS[kind](_COMMENT.sub("", text).strip())


def _wrong_form(kind: AttrKind, text: str) -> ValueError:
    return ValueError(f"{text[:40]!r} is not of the form {kind.value}")


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise _wrong_form(AttrKind.INTEGER, text)
    if not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text} does not fit 64 bits")
    return int(text)


def _float(text: str) -> float:
    """Rounded to float32, as XLA keeps it."""
    if not _FLOAT.fullmatch(text):
        raise _wrong_form(AttrKind.FLOAT, text)
    with np.errstate(over="ignore"):
        value = float(np.float32(text))
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is not a number of type f32")
    return value


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return text == "true"


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise _wrong_form(AttrKind.WORD, text)
    return text


def _integers(text: str) -> tuple[int, ...]:
    if not _INTEGERS.fullmatch(text):
        raise _wrong_form(AttrKind.INTEGERS, text)
    return tuple(map(int, _INTEGER.findall(text)))


def _slices(text: str) -> tuple[tuple[int, int, int], ...]:
    entries = _SLICE.findall(text)
    if not _SLICES.fullmatch(text) or len(entries) != text.count("["):
        raise _wrong_form(AttrKind.SLICES, text)
    return tuple((int(start), int(limit), int(stride or 1)) for start, limit, stride in entries)


def _groups(text: str) -> Attribute:
    groups = parse_groups(text)
    match groups:
        case IotaGroups():
            ids = math.prod(groups.dims)
        case MeshGroups():
            ids = math.prod(size for _, size in groups.axes)
        case ExplicitGroups():
            ids = 0
    if ids > MAX_RANKS:
        raise ValueError(f"replica groups {text[:40]} name {ids} ids, more than {MAX_RANKS}")
    return groups


def _pairs(text: str) -> SourceTargetPairs:
    pairs = _PAIR.findall(text)
    if not _PAIRS.fullmatch(text) or len(pairs) != text.count("{") - 1:
        raise _wrong_form(AttrKind.PAIRS, text)
    return SourceTargetPairs(tuple((int(source), int(target)) for source, target in pairs))


def _lists(text: str) -> Lists:
    entries = _LIST.findall(text[1:-1])
    if not _PAIRS.fullmatch(text) or not all(map(_LISTED.fullmatch, entries)):
        raise _wrong_form(AttrKind.LISTS, text)
    return Lists(tuple(tuple(map(int, re.findall("[0-9]+", entry))) for entry in entries))


def _callee(text: str) -> Callee:
    if not _CALLEE.fullmatch(text):
        raise _wrong_form(AttrKind.CALLEE, text)
    return Callee(text.removeprefix("%"))


def _callees(text: str) -> Callees:
    if not _CALLEES.fullmatch(text):
        raise _wrong_form(AttrKind.CALLEES, text)
    return Callees(tuple(name.removeprefix("%") for name in _CALLEE.findall(text)))


def _string(text: str) -> Quoted:
    if not _STRING.fullmatch(text):
        raise _wrong_form(AttrKind.STRING, text)
    return Quoted(text[1:-1])


def _padding(text: str) -> Padding:
    entries = [_PADDED.fullmatch(part) for part in text.split("x")] if text else []
    if not all(entries):
        raise _wrong_form(AttrKind.PADDING, text)
    return Padding(
        tuple(
            (int(entry[1]), int(entry[2]), int(entry[3] or 0))
            for entry in entries
            if entry is not None
        )
    )


def _domain(text: str) -> Raw:
    if not _DOMAIN.fullmatch(text):
        raise _wrong_form(AttrKind.DOMAIN, text)
    return Raw(text)


_READERS: Mapping[AttrKind, Callable[[str], Attribute]] = {
    AttrKind.INTEGER: _integer,
    AttrKind.FLOAT: _float,
    AttrKind.BOOLEAN: _boolean,
    AttrKind.WORD: _word,
    AttrKind.INTEGERS: _integers,
    AttrKind.SLICES: _slices,
    AttrKind.GROUPS: _groups,
    AttrKind.PAIRS: _pairs,
    AttrKind.LISTS: _lists,
    AttrKind.CALLEE: _callee,
    AttrKind.CALLEES: _callees,
    AttrKind.STRING: _string,
    AttrKind.PADDING: _padding,
    AttrKind.DOMAIN: _domain,
    AttrKind.WINDOW: read_window,
    AttrKind.LABELS: read_labels,
}


def spell_attribute(value: Attribute) -> str:
    """The canonical text of a value; `read_attribute` reads the same value from it."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return str(np.float32(value))
        case Raw(text):
            return text
        case Callee(name):
            return f"%{name}"
        case Callees(names):
            return "{" + ", ".join(f"%{name}" for name in names) + "}"
        case Quoted(text):
            return f'"{text}"'
        case Padding(dimensions):
            return "x".join(
                f"{low}_{high}_{interior}" if interior else f"{low}_{high}"
                for low, high, interior in dimensions
            )
        case SourceTargetPairs(pairs):
            return "{" + ",".join(f"{{{source},{target}}}" for source, target in pairs) + "}"
        case Lists(lists):
            return "{" + ",".join(map(_list, lists)) + "}"
        case tuple():
            slices = [entry for entry in value if isinstance(entry, tuple)]
            return "{" + ", ".join(map(_slice, slices)) + "}" if slices else _list(value)
        case Window() | ConvolutionLabels():
            return str(value)
        case int() | str() | ExplicitGroups() | IotaGroups() | MeshGroups():
            return str(value)
    raise AssertionError(f"{value!r} has no spelling")


def _list(value: tuple[object, ...]) -> str:
    return "{" + ",".join(map(str, value)) + "}"


def _slice(bounds: tuple[int, int, int]) -> str:
    start, limit, stride = bounds
    return f"[{start}:{limit}:{stride}]" if stride != 1 else f"[{start}:{limit}]"
