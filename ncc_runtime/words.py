"""Words of command lines and of files: sizes, ranks, programs with their ranks, choices."""

import math
import re
from collections.abc import Mapping, Sequence

import attrs

from ncc_runtime.errors import InputError

_MOST_SIZE_DIGITS = 15  # no machine has more bytes, and int() would take its time


def size_of(text: str) -> int:
    """`64`, `4KB`, `1MB`, `2GB`, powers of 1024 as nccom-test counts; `KiB` says the same.

    InputError for anything else.
    """
    upper = text.upper().removesuffix("B")
    if upper[-2:] in ("KI", "MI", "GI"):
        upper = upper[:-1]
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(upper[-1:], 1)
    digits = upper[:-1] if factor > 1 else upper
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_SIZE_DIGITS):
        raise InputError(f"{text!r} is not a size such as 64, 4KB, 1MB, 2GB")
    if int(digits) * factor >= 1 << 60:
        raise InputError(f"{text!r} is more than any machine has")
    return int(digits) * factor


def size_label(size_bytes: float) -> str:
    """`4 KiB`: a size for people, in the largest unit of which it has one."""
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:g} {unit}"
    return f"{size_bytes:g} B"


def algorithms_of(pairs: Sequence[str]) -> dict[str, str]:
    """`OP=NAME` by operator; InputError for what is not that, or names an operator twice."""
    chosen: dict[str, str] = {}
    for pair in pairs:
        op, equals, name = pair.partition("=")
        if not (op and equals and name):
            raise InputError(f"{pair!r} is not OP=NAME, as in all-reduce=ring")
        if op in chosen:
            raise InputError(f"{op} is given twice: {chosen[op]} and {name}")
        chosen[op] = name
    return chosen


@attrs.frozen
class PlaceChoice:
    """What a place in one word, `trn2,policy=best`, says of what may be chosen, and the rest."""

    where: str | None  # what `parse_on` reads
    policies: tuple[str, ...]
    algorithms: Mapping[str, str]
    deterministic: bool


def split_choice(on: str | None) -> PlaceChoice:
    """`policy=best`, `algorithm=OP=NAME` and `deterministic` apart from where; InputError."""
    rest, policies, pairs, deterministic = [], [], [], False
    for setting in [] if on is None else [word.strip() for word in on.split(",")]:
        key, _, value = (part.strip() for part in setting.partition("="))
        if key == "policy":
            policies.append(value)
        elif key == "algorithm":
            pairs.append(value)
        elif setting == "deterministic":
            deterministic = True
        else:
            rest.append(setting)
    where = None if on is None else ",".join(rest)
    return PlaceChoice(where, tuple(policies), algorithms_of(pairs), deterministic)


_RANKS = re.compile(r"(?P<path>.+)@(?P<ranks>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)", re.ASCII)
_MOST_DIGITS = 6  # of a rank; no program has more, and a typing error could fill the memory


def ranks_of(text: str) -> list[int]:
    """`0-3,8` as numbers; InputError."""
    if not _RANKS.fullmatch(f"x@{text}"):
        raise InputError(f"{text!r} are no ranks, such as 0-3,8")
    ranks: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        is_short = max(len(first), len(last)) <= _MOST_DIGITS
        if not (is_short and int(first) <= int(last or first)):
            raise InputError(f"{run[:20]} is no run of ranks, such as 4-7")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


@attrs.frozen
class ProgramWord:
    """`a.neff`, or `a.neff@0-3`, of several programs that run together."""

    path: str
    ranks: tuple[int, ...] | None  # None: all


def programs_of(words: Sequence[str]) -> tuple[ProgramWord, ...]:
    """One file, or several that each name their ranks; InputError."""
    parts = []
    for word in words:
        match = _RANKS.fullmatch(word)
        if match is None and len(words) > 1:
            raise InputError(f"{word!r} names no ranks, as in a.neff@0-3 b.neff@4-7")
        if match is None:
            parts.append(ProgramWord(word, None))
        else:
            parts.append(ProgramWord(match["path"], tuple(ranks_of(match["ranks"]))))
    return tuple(parts)


MOST_DEVICES = 1 << 16
"""Of a mesh; JAX makes each of them, in a second for 4,096."""

_AXIS = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<size>[1-9]\d{0,6})", re.ASCII)


def mesh_of(text: str) -> dict[str, int]:
    """`data=2,model=4`: sizes by the names of axes, the outermost first; InputError."""
    mesh: dict[str, int] = {}
    for word in text.split(","):
        match = _AXIS.fullmatch(word.strip())
        if match is None:
            raise InputError(f"{text!r} is no mesh such as data=2,model=4")
        if match["name"] in mesh:
            raise InputError(f"axis {match['name']} is given twice")
        mesh[match["name"]] = int(match["size"])
    if math.prod(mesh.values()) > MOST_DEVICES:
        raise InputError(f"{text!r} has more than {MOST_DEVICES:,} devices, the most there may be")
    return mesh
