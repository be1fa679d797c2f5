"""The attributes behind `HloModule name`: read, checked against the entry computation, and kept.

ranks.py reads the counts of ranks. `input_output_alias` says which results a next step takes as
inputs. The other attributes change nothing here: they say which buffers may share memory and which
layouts the host sees. But a header that contradicts the program belongs
to another program, and is refused, as XLA's verifier does.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import attrs

from ncc_compiler.ir.graph import Attribute, Module, Raw
from ncc_compiler.ir.text.literals import COMMENT
from ncc_compiler.ir.text.reading import (
    KEYS_OF_HEADERS,
    TextReader,
    behind_blanks,
    fault_of,
    is_misplaced,
    suggestion,
)
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_compiler.syntax import tree
from ncc_compiler.syntax.lexer import ARRAY

COUNTS = ("replica_count", "num_partitions")
"""Read in ranks.py."""

_ALIASES, _DONORS, _LAYOUT = "input_output_alias", "buffer_donor", "entry_computation_layout"
_FLAGS = ("alias_passthrough_params", "is_scheduled")
_PROPAGATIONS = tuple(
    f"allow_spmd_sharding_propagation_to_{end}" for end in ("output", "parameters")
)
_TRUTH = re.compile(r"true|false")
_TRUTHS = re.compile(r"true|false|\{\s*(?:(?:true|false)\s*(?:,\s*(?:true|false)\s*)*)?\}")
_INDEX = r"\{\s*((?:\d{1,9}\s*(?:,\s*\d{1,9}\s*)*)?)\}"
_ALIAS = re.compile(
    rf"{_INDEX}\s*:\s*\(\s*(\d{{1,9}})\s*,\s*{_INDEX}\s*(?:,\s*(?:may-alias|must-alias)\s*)?\)\s*"
)
_DONOR = re.compile(rf"\(\s*(\d{{1,9}})\s*,\s*{_INDEX}\s*\)\s*")
_ARROW = re.compile(r"\s*->\s*")
_NEXT = re.compile(r"\s*(?:,\s*(?!\))|(?=\)))")
_ARRAY = re.compile(ARRAY)

Index = tuple[int, ...]


def read_header(module: Module, header: Sequence[tree.Attribute], reading: TextReader) -> Module:
    """The module with the header's attributes, except the counts; complains of their form."""
    kept: dict[str, Attribute] = {}
    seen: set[str] = set()
    for row in header:
        place = (row.start, row.start + len(row.key))
        if row.key in seen:
            reading.complain("attribute-C2", f"attribute {row.key} is given twice", place)
        seen.add(row.key)
        known = sorted(KEYS_OF_HEADERS)
        hint = "" if row.key in known else suggestion(row.key, known, 0.8)
        if not hint and is_misplaced(row.key, known):
            hint = "leave it out"
        if hint:
            fact = f"the header of a module has no attribute {row.key}"
            reading.complain("attribute-C3", fact, place, hint)
        fault = _fault(row)
        if fault:
            reading.complain("header-C1", fault, (row.value_start, row.end))
        if row.key not in COUNTS:
            kept[row.key] = reading.raw(row.value)
    return attrs.evolve(module, attributes=kept)


def _fault(row: tree.Attribute) -> str:
    """The fault in the form of a value, empty if it has none."""
    form = None
    if row.key in _FLAGS:
        form = (_TRUTH, "true")
    elif row.key in _PROPAGATIONS:
        form = (_TRUTHS, "{true,false}")
    if form and not form[0].fullmatch(row.value):
        return f"{row.key}: {row.value[:40]!r} is not of the form {form[1]}"
    return fault_of(row.key, row.value)


def check_header(module: Module, header: Sequence[tree.Attribute], reading: TextReader) -> None:
    """Complains of attributes that contradict the entry computation."""
    entry = module.entry_computation
    parameters = [entry.nodes[position].type for position in entry.parameters()]
    program = _HeaderCheck(parameters, entry.nodes[entry.root].type, reading)
    rows = {row.key: row for row in reversed(header)}
    if _ALIASES in rows:
        program.check_aliases(rows[_ALIASES])
    if _DONORS in rows:
        program.check_donors(rows[_DONORS])
    if _LAYOUT in rows:
        program.check_layout(rows[_LAYOUT])


class _HeaderCheck:
    """Checks of the header against the types of the entry computation."""

    def __init__(self, parameters: Sequence[Type], result: Type, reading: TextReader) -> None:
        self._parameters = parameters
        self._result = result
        self._reading = reading
        self._aliased: set[tuple[int, Index]] = set()

    def check_aliases(self, row: tree.Attribute) -> None:
        """Each pairs an array of the result with one of a parameter, of equal size, each once."""
        outputs: set[Index] = set()
        form = "{ {0}: (1, {}, may-alias) }"
        for match, at in self._entries(row, _ALIAS, form):
            output, number, index = _index(match[1]), int(match[2]), _index(match[3])
            parameter = self._array("header-C2", number, index, at)
            result = _part(self._result, output)
            if not isinstance(result, ArrayType):
                fact = f"the result is {self._result} and has no array {_spelled(output)}"
                self._reading.complain("header-C2", fact, at, _REMEDY)
            elif parameter is not None and parameter.size_bytes != result.size_bytes:
                fact = f"parameter {number}{_within(index)} is {parameter}, the result"
                fact += f"{_within(output)} is {result}: they cannot share memory"
                self._reading.complain("header-C2", fact, at, _REMEDY)
            elif output in outputs:
                fact = f"{_spelled(output)} of the result is given memory twice"
                self._reading.complain("header-C2", fact, at, _REMEDY)
            elif (number, index) in self._aliased:
                fact = f"parameter {number}{_within(index)} gives its memory twice"
                self._reading.complain("header-C2", fact, at, _REMEDY)
            outputs.add(output)
            self._aliased.add((number, index))

    def check_donors(self, row: tree.Attribute) -> None:
        """Each is an array of a parameter that no alias names."""
        for match, at in self._entries(row, _DONOR, "{ (0, {}), (1, {0}) }"):
            number, index = int(match[1]), _index(match[2])
            known = self._array("header-C3", number, index, at)
            if known is not None and (number, index) in self._aliased:
                fact = f"parameter {number}{_within(index)} is in {_ALIASES} too"
                self._reading.complain("header-C3", fact, at, "leave it out of one of the two")

    def check_layout(self, row: tree.Attribute) -> None:
        """The types are those of the entry."""
        written = _signature(row)
        if written is None:
            fact = f"{_LAYOUT}: {row.value[:40]!r} is not of the form {{(f32[2,3]{{1,0}})->f32[]}}"
            self._reading.complain("header-C1", fact, (row.value_start, row.end))
            return
        actual = (TupleType(tuple(self._parameters)), self._result)
        subjects = ("the parameters are", "the result is")
        for text, kind, subject in zip(written, actual, subjects, strict=True):
            declared = self._reading.type_of(text)
            if declared is not None and declared != kind:
                fact = f"{subject} {kind}, {_LAYOUT} says {declared}"
                hint = f"correct {_LAYOUT}, or leave it out"
                self._reading.complain("header-C4", fact, (text.start, text.end), hint)

    def _entries(
        self, row: tree.Attribute, pattern: re.Pattern[str], form: str
    ) -> Iterator[tuple[re.Match[str], tuple[int, int]]]:
        """Each entry of a list in braces with its place; ends with a complaint at a bad one."""
        text = _blank(row.value)
        is_list = text.startswith("{")
        at, end = (behind_blanks(text, 1), len(text) - 1) if is_list else (0, len(text))
        while at < end:
            match = pattern.match(text, at) if is_list else None
            if match is None or text[match.end()] not in ",}":
                fact = f"{row.key}: {text[at:end].strip()[:40]!r} is not of the form {form}"
                place = (row.value_start + at, row.value_start + end)
                self._reading.complain("header-C1", fact, place)
                return
            yield match, (row.value_start + at, row.value_start + match.end())
            at = behind_blanks(text, match.end() + text.startswith(",", match.end()))

    def _array(self, rule: str, number: int, index: Index, at: tuple[int, int]) -> ArrayType | None:
        """The array of a parameter, or None after a complaint."""
        count = len(self._parameters)
        if number >= count:
            fact = f"there is no parameter {number}, the program has {count}"
            self._reading.complain(rule, fact, at, _REMEDY)
            return None
        kind = _part(self._parameters[number], index)
        if isinstance(kind, ArrayType):
            return kind
        fact = (
            f"parameter {number} is {self._parameters[number]} and has no array {_spelled(index)}"
        )
        self._reading.complain(rule, fact, at, _REMEDY)
        return None


_REMEDY = "correct the entry, or leave it out: only runs of many steps depend on it"


def aliases(module: Module) -> Iterator[tuple[Index, int, Index]]:
    """What `input_output_alias` pairs: an array of the result, a parameter, an array of it."""
    value = module.attributes.get(_ALIASES)
    if isinstance(value, Raw):
        for match in _ALIAS.finditer(_blank(value.text)):
            yield _index(match[1]), int(match[2]), _index(match[3])


def _signature(row: tree.Attribute) -> tuple[tree.TypeText, tree.TypeText] | None:
    """The types of parameters and result in `{(f32[2])->f32[]}`; None if it is not of this form."""
    text, start = _blank(row.value), row.value_start
    if not text.startswith("{"):
        return None
    parameters = _type_at(text, behind_blanks(text, 1), start, 0)
    if not isinstance(parameters, tree.TupleText):
        return None
    arrow = _ARROW.match(text, parameters.end - start)
    result = _type_at(text, arrow.end(), start, 0) if arrow else None
    if result is None or text[result.end - start : -1].strip():
        return None
    return parameters, result


def _type_at(text: str, at: int, base: int, depth: int) -> tree.TypeText | None:
    """The type that starts at an offset of the text; `base` is where the text starts."""
    if match := _ARRAY.match(text, at):
        return tree.ArrayText(match[0], base + at, base + match.end())
    if not text.startswith("(", at) or depth == tree.MAX_TYPE_DEPTH:
        return None
    elements: list[tree.TypeText] = []
    end = behind_blanks(text, at + 1)
    while not text.startswith(")", end):
        element = _type_at(text, end, base, depth + 1)
        rest = _NEXT.match(text, element.end - base) if element else None
        if element is None or rest is None:
            return None
        elements.append(element)
        end = rest.end()
    inner = 1 + max((element.depth for element in elements), default=0)
    return tree.TupleText(tuple(elements), base + at, base + end + 1, inner)


def _blank(text: str) -> str:
    """The text with blanks for comments, so that offsets stay."""
    return COMMENT.sub(lambda match: " " * len(match[0]), text)


def _index(text: str) -> Index:
    return tuple(map(int, re.findall(r"\d+", text)))


def _spelled(index: Iterable[int]) -> str:
    return "{" + ",".join(map(str, index)) + "}"


def _within(index: Index) -> str:
    return f" at {_spelled(index)}" if index else ""


def _part(kind: Type, index: Index) -> Type | None:
    """The part of a type at an index; None if it has none there."""
    for position in index:
        if not isinstance(kind, TupleType) or position >= len(kind.elements):
            return None
        kind = kind.elements[position]
    return kind
