"""Files of sweeps: TOML that says which points there are.

    [common]
    op = "all_reduce"
    ranks = 64

    [[grid]]
    size = { from = "4KB", to = "256MB", factor = 4 }
    topology = ["trn1", "trn2"]
    algorithm = ["", "ring", "mesh"]

    [[point]]
    size = "1GB"

    [[exclude]]
    topology = "trn1"
    algorithm = "mesh"

    [sample]
    points = 20
    seed = 1

A point has the words of `[common]` and of its `[[point]]` over them. A `[[grid]]` has a point for
each combination of its lists. `[sample]` draws so many of those of all grids; points stay. What
`[[exclude]]` says is left out before. `sweep.schema.json` beside this file is `schema()` as text; a
test keeps them equal.
"""

import bisect
import itertools
import json
import math
import os
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ncc_runtime.errors import InputError, TopologyError
from ncc_runtime.input_files import FileRole
from ncc_runtime.report.bench import sizes
from ncc_runtime.sweep.points import WordError
from ncc_runtime.topology.format.schema import check
from ncc_runtime.topology.format.toml_file import TomlFile
from ncc_runtime.words import size_of

MOST_POINTS = 100_000
"""Of one sweep."""

MOST_WORDS = 10_000
"""Of one list, and sizes of one range."""

TRIP_COUNTS = "trip_counts"
"""A key that is no axis: how often loops run, by name."""

_MOST_LETTERS = 4_096  # of one word
_MOST_TRIED = 10 * MOST_POINTS  # draws until there are enough that nothing excludes

_TEXT = {"type": "string", "maxLength": _MOST_LETTERS}
_SIZE = {"anyOf": [_TEXT, {"type": "integer", "minimum": 1, "exclusiveMaximum": 1 << 60}]}
_TRUTH = {"type": "boolean"}
_NONE = {"const": ""}
"""As if the key were left out."""


def _count(most: int, least: int = 1) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


@attrs.frozen
class WordKind:
    """What a key says, and what its words are like.

    - `has_several`: whether a point may have several words of it
    - `of`: what it is for, if it is not for every point
    """

    phrase: str
    schema: Mapping[str, Any]
    has_several: bool = False
    of: Sequence[str] = ()


WORK = ("op", "program", "model")
"""Keys that say what is computed, of which a point has one."""


KEYS: Mapping[str, WordKind] = {
    "op": WordKind("an operator of nccrt bench, such as all_reduce", _TEXT),
    "ranks": WordKind("a number of ranks, from 1", _count(1 << 20), of=("op", "model")),
    "size": WordKind("a size such as 64, 4KB, 1MB, 2GB", _SIZE, of=("op",)),
    "dtype": WordKind("a type of nccrt bench, such as bf16", _TEXT, of=("op",)),
    "program": WordKind("a .neff, or several with their ranks: a.neff@0-3 b.neff@4-7", _TEXT),
    "model": WordKind("a model that nccc compiles, such as step.hlo or train.py:step", _TEXT),
    "level": WordKind("the level 0, 1 or 2 of nccc's optimisation", _count(2, 0), of=("model",)),
    "mesh": WordKind(
        "the mesh of a model's function, such as data=2,model=4", _TEXT, of=("model",)
    ),
    "pass_option": WordKind(
        "an option of nccc's passes, PASS.OPTION=VALUE", _TEXT, True, of=("model",)
    ),
    "samples": WordKind("how many samples a run is of, a number or 8*data", _SIZE),
    "task": WordKind("what points do that are compared, a text", _TEXT),
    "on": WordKind("a place in one word, such as trn2,nodes=2", _TEXT),
    "topology": WordKind("an instance type, an alias or a TOML file", _TEXT),
    "nodes": WordKind("a number of instances, from 1", _count(1 << 20)),
    "placement": WordKind("linear, spread or a JSON file", _TEXT),
    "lnc": WordKind("1 or 2", _count(2)),
    "down": WordKind("a link that is down, such as c0-c1", _TEXT, True),
    "slow": WordKind("a link or core that is slow, such as c0-c1=50%", _TEXT, True),
    "algorithm": WordKind("an algorithm: NAME of a bench, or OP=NAME", _TEXT, True),
    "policy": WordKind("neuron or best", {"enum": ["neuron", "best"]}),
    "deterministic": WordKind("true or false", _TRUTH),
    "plan": WordKind("a plan of your own, [OP=]FILE", _TEXT, True),
    "strict": WordKind("true or false", _TRUTH),
    "ignore_memory": WordKind("true or false", _TRUTH),
    "fault": WordKind("a fault during the run, such as rank 3 slow to 50%", _TEXT, True),
    "faults": WordKind("a TOML file of faults during the run", _TEXT),
    "fault_seed": WordKind("a number from 0, of what faults draw", _count(1 << 62, 0)),
}
"""What a point is said by. All words are those of the command line; "" is as if left out."""

_TRIPS = {
    "type": "object",
    "description": "a table of numbers of trips by the names of loops",
    "additionalProperties": _count(1 << 31, 0),
}


def schema() -> dict[str, Any]:
    """The JSON Schema of a file; each place has the phrase of its complaint as `description`."""
    single = {key: _single(kind) for key, kind in KEYS.items()}
    listed = {key: _listed(key, kind) for key, kind in KEYS.items()}
    excluded = {key: _listed("", kind) for key, kind in KEYS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a sweep of nccrt",
        "type": "object",
        "properties": {
            "common": _table({**single, TRIP_COUNTS: _TRIPS}, "a table"),
            "grid": _rows("grid", _table({**listed, TRIP_COUNTS: _TRIPS}, "a table of lists")),
            "point": _rows("point", _table({**single, TRIP_COUNTS: _TRIPS}, "a table")),
            "exclude": _rows(
                "exclude", {**_table(excluded, "a table of words"), "minProperties": 1}
            ),
            "sample": {
                **_table(
                    {
                        "points": {**_count(MOST_POINTS), "description": "a number of points"},
                        "seed": {**_count(1 << 62, 0), "description": "a number from 0"},
                    },
                    "a table with the number of points",
                ),
                "required": ["points"],
            },
        },
        "additionalProperties": False,
    }


def schema_text() -> str:
    """The shipped file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _table(properties: Mapping[str, Any], phrase: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": phrase,
        "properties": dict(properties),
        "additionalProperties": False,
    }


def _rows(word: str, row: Mapping[str, Any]) -> dict[str, Any]:
    phrase = f"a list of tables, each under [[{word}]]"
    return {"type": "array", "description": phrase, "items": row, "minItems": 1}


def _array(of: Mapping[str, Any], least: int = 1) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": least, "maxItems": MOST_WORDS}


def _word_schema(kind: WordKind) -> Mapping[str, Any]:
    """Of one word, which may also be none."""
    takes_texts = kind.schema.get("type") == "string" or "anyOf" in kind.schema
    return kind.schema if takes_texts else {"anyOf": [kind.schema, _NONE]}


def _single(kind: WordKind) -> dict[str, Any]:
    """Of one point."""
    if not kind.has_several:
        return {**_word_schema(kind), "description": kind.phrase}
    several = [kind.schema, _array(kind.schema, 0)]
    return {"anyOf": several, "description": f"{kind.phrase}, or a list of them"}


def _listed(key: str, kind: WordKind) -> dict[str, Any]:
    """Of many points: a list of what one may have, or one for all."""
    of_one = _word_schema(kind)
    if kind.has_several:
        of_one = {"anyOf": [kind.schema, _array(kind.schema, 0)]}
    forms = [of_one, _array(of_one)]
    phrase = f"{kind.phrase}, or a list of them"
    if key == "size":
        phrase += ', or { from = "4KB", to = "1MB", factor = 2 }'
        between = {"from": _SIZE, "to": _SIZE, "factor": _count(1 << 30, 2), "step": _SIZE}
        forms.append({**_table(between, phrase), "required": ["from", "to"]})
    return {"anyOf": forms, "description": phrase}


Path = tuple[str | int, ...]
"""Keys of tables and numbers of rows, from the top of the document."""


@attrs.frozen
class PointWords:
    """What is said of one point: words by key, as `PointReader` takes them."""

    words: Mapping[str, Any]
    path_of: Callable[[str], Path] = attrs.field(eq=False, repr=False)  # where a key is said

    @property
    def shown(self) -> dict[str, Any]:
        """The words as rows show them: one text or number each."""
        return {
            key: "; ".join(word) if isinstance(word, list) else word
            for key, word in self.words.items()
            if key != TRIP_COUNTS
        }


class SweepFile:
    """A file that follows the schema; `points` are those that it says, in its order."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """InputError with line and column for what is wrong."""
        origin = os.fspath(path)
        try:
            self._file = TomlFile.read(origin, pathlib.Path(path), FileRole.SWEEP)
            self._document = self._file.tables()
            check(self._file, self._document, schema())
            if not {"grid", "point"} & self._document.keys():
                raise InputError(f"{origin}:1:1: no point is in it: give [[grid]] or [[point]]")
        except TopologyError as error:
            raise InputError(str(error)) from error
        self.points = self._points()

    def error(self, point: PointWords, error: WordError) -> InputError:
        """A complaint about a word of a point, at its place."""
        return self._error(point.path_of(error.key), error.key, str(error))

    def _error(self, path: Path, words: str, reason: str) -> InputError:
        return InputError(str(self._file.error_at(path, words, reason)))

    def _points(self) -> list[PointWords]:
        rows = {word: range(len(self._document.get(word, ()))) for word in ("grid", "point")}
        common = self._axes(("common",), self._document.get("common", {}))
        grids, points = (
            [self._grid((word, k), common, self._document[word][k]) for k in numbers]
            for word, numbers in rows.items()
        )
        kept = self._kept()
        total, sample = sum(grid.count for grid in grids), self._document.get("sample")
        if sample is not None:
            found = _drawn(grids, sample["points"], sample.get("seed", 0), kept)
        elif total > MOST_POINTS:
            reason = f"{total:,} points; at most {MOST_POINTS:,}: [sample] draws some of them"
            raise self._error(("grid",), "grid", reason)
        else:
            every = (grid.point(number) for grid in grids for number in range(grid.count))
            found = list(filter(kept, every))
        found += filter(kept, (grid.point(0) for grid in points))
        if not found:
            raise self._error(("exclude",), "exclude", "no point is left")
        return found

    def _grid(self, path: Path, common: Mapping[str, list["_Said"]], said: Any) -> "_Grid":
        """The axes of a row, and those that are common as far as they are for what it computes."""
        own = self._axes(path, said)
        work = [key for key in WORK if key in own] or [key for key in WORK if key in common]
        kept = {key: axis for key, axis in common.items() if key not in WORK or key in work}
        if len(work) == 1:  # else the first point tells what is wrong
            for key, axis in own.items():
                if not _is_for(key, work[0]):
                    raise self._error(axis[0].path, key, f"a word that {work[0]} has no use for")
            kept = {key: axis for key, axis in kept.items() if _is_for(key, work[0])}
        return _Grid({**kept, **own}, path)

    def _kept(self) -> Callable[[PointWords], bool]:
        """Whether a point is none that [[exclude]] leaves out."""
        rows = [
            {
                key: [self._word(("exclude", k, key), key, word) for word in _as_list(said)]
                for key, said in row.items()
            }
            for k, row in enumerate(self._document.get("exclude", ()))
        ]

        def kept(point: PointWords) -> bool:
            return not any(
                all(point.words.get(key, _nothing(key)) in words for key, words in row.items())
                for row in rows
            )

        return kept

    def _axes(self, path: Path, said: Mapping[str, Any]) -> dict[str, list["_Said"]]:
        """The words of a table by key, each with its place."""
        axes = {}
        for key, word in said.items():
            at = (*path, key)
            if path[0] == "grid" and key == "size" and isinstance(word, dict):
                axes[key] = [_Said(size, at) for size in self._sizes(at, word)]
            elif path[0] == "grid" and isinstance(word, list):
                axes[key] = [
                    _Said(self._word((*at, k), key, one), (*at, k)) for k, one in enumerate(word)
                ]
            else:
                axes[key] = [_Said(self._word(at, key, word), at)]
        return axes

    def _word(self, path: Path, key: str, word: Any) -> Any:
        """A word in one form: sizes as bytes, several words as a list."""
        if key == "size" and isinstance(word, str):
            try:
                return size_of(word)
            except InputError as error:
                raise self._error(path, key, str(error)) from error
        if key in KEYS and KEYS[key].has_several:
            return [one for one in _as_list(word) if one != ""]
        return word

    def _sizes(self, path: Path, between: Mapping[str, Any]) -> list[int]:
        """`from`, `to`, and `factor` or `step`, as -b, -e, -f and -i of nccrt bench."""
        found = {
            key: self._word((*path, key), "size", word)
            for key, word in between.items()
            if key != "factor"
        }
        least, most, step = found["from"], found["to"], found.get("step")
        if not 0 < least <= most:
            reason = f"sizes go from {least} to {most} bytes, which are none"
            raise self._error(path, "size", reason)
        if "step" in between and ("factor" in between or not step):
            raise self._error(path, "size", "sizes go by a factor or by steps of some bytes")
        every = sizes(least, most, between.get("factor"), step)
        listed = list(itertools.islice(every, MOST_WORDS + 1))
        if len(listed) > MOST_WORDS:
            reason = f"sizes from {least} to {most} are more than {MOST_WORDS:,}"
            raise self._error(path, "size", reason)
        return listed


def _is_for(key: str, work: str) -> bool:
    """Whether a point that computes an `op`, a `program` or a `model` takes a key."""
    if key == TRIP_COUNTS:
        return work != "op"
    return not KEYS[key].of or work in KEYS[key].of


def _as_list(word: Any) -> list[Any]:
    return word if isinstance(word, list) else [word]


def _nothing(key: str) -> Any:
    """What a word is as if left out."""
    return [] if key in KEYS and KEYS[key].has_several else ""


@attrs.frozen
class _Said:
    word: Any
    path: Path


@attrs.frozen
class _Grid:
    """All combinations of some axes; the last one changes fastest."""

    axes: Mapping[str, Sequence[_Said]]
    path: Path

    @property
    def count(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def point(self, number: int) -> PointWords:
        """The combination of that number."""
        said = self._combination(number)
        words = {key: one.word for key, one in said.items() if one.word != _nothing(key)}

        def path_of(key: str) -> Path:
            said = self._combination(number)
            return said[key].path if key in said else self.path

        return PointWords(words, path_of)

    def _combination(self, number: int) -> dict[str, _Said]:
        found = {}
        for key in reversed(list(self.axes)):
            number, at = divmod(number, len(self.axes[key]))
            found[key] = self.axes[key][at]
        return {key: found[key] for key in self.axes}


def _drawn(
    grids: Sequence[_Grid], count: int, seed: int, kept: Callable[[PointWords], bool]
) -> list[PointWords]:
    """So many points of all grids, each at most once, in their order; fewer if there are none."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    ends = list(itertools.accumulate(grid.count for grid in grids))
    total = ends[-1] if ends else 0
    tried: set[int] = set()
    drawn: dict[int, PointWords] = {}
    while len(drawn) < count and len(tried) < min(total, _MOST_TRIED):
        number = draw.randrange(total)
        if number not in tried:
            tried.add(number)
            grid = bisect.bisect_right(ends, number)
            point = grids[grid].point(number - (ends[grid - 1] if grid else 0))
            if kept(point):
                drawn[number] = point
    return [drawn[number] for number in sorted(drawn)]
