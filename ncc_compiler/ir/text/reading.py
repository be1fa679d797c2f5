"""From words of the syntax tree to data: types, layouts, attributes, literals.

- `TextReader` belongs to one build. It caches by text, because real programs repeat the same few
  types and attributes, and it collects the diagnostics of the stage.
- `layout_of`, `is_row_major`: the order of elements in memory that a written type asks for; only
  `bitcast` depends on it.
- `fault_of`: the form that XLA's parser requires of attributes that change nothing here. A known
  attribute whose value XLA would refuse is refused here too, since it was meant to say something.
  Unknown keys are kept: XLA gets new ones with every version.
"""

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from ncc_compiler.diagnostics import MAX_SHOWN, Diagnostic, Note, Source, Span
from ncc_compiler.ir.attributes import read_attribute
from ncc_compiler.ir.graph import Attribute, Elided, Literal, Raw
from ncc_compiler.ir.op_tables.op_row import AttributeDef, AttrKind, OpDef
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.text.literals import COMMENT, LiteralError, read_literal
from ncc_compiler.ir.types import ArrayType, TokenType, TupleType, Type
from ncc_compiler.syntax import tree
from ncc_runtime.neff.shared.dtypes import DType

_SIZES = r"\s*(?:\d{1,19}\s*(?:,\s*\d{1,19}\s*)*)?"
_ARRAY_AND_ORDER = re.compile(rf"([a-z][a-z0-9]*)\[({_SIZES})\]\s*(\{{.*\}})?", re.DOTALL)
_TILES = re.compile(r"T(?:\s*\((?:[\d*,\s]*)\))+")
_ORDER = re.compile(r"\s*(?:\d{1,9}\s*(?:,\s*\d{1,9}\s*)*)?")
_TILE = r"\(\s*(?:(?:\*|0*[1-9]\d{0,17})\s*(?:,\s*(?:\*|0*[1-9]\d{0,17})\s*)*)?\)"
_LEVEL = r"[DCSH][+~]*"
_NAME = "|".join(dtype.value for dtype in DType if dtype.is_integer and not dtype.is_signed)
_NUMBER = r"\(\s*\d{1,18}\s*\)"
_SPLIT = r"\(\s*\d{1,18}\s*:\s*\d{1,18}\s*(?:,\s*\d{1,18}\s*)*\)"
_REST = re.compile(
    rf"\s*(?:D\(\s*(?:{_LEVEL}\s*(?:,\s*{_LEVEL}\s*)*)?\)\s*)?"
    rf"(?:T(?:\s*{_TILE})+\s*)?"
    rf"(?:L{_NUMBER}\s*)?"
    rf"(?:\#\((?:{_NAME})\)\s*)?(?:\*\((?:{_NAME})\)\s*)?"
    rf"(?:E{_NUMBER}\s*)?(?:S{_NUMBER}\s*)?"
    rf"(?:SC(?:{_SPLIT})+\s*)?(?:M{_NUMBER}\s*)?"
)
"""Dimension level types, tiles, tail padding, index and pointer types, element bits, memory space,
split configs, metadata prefix: all of them optional, in XLA's order."""


def layout_fault(text: str, rank: int) -> str:
    """The fault of a layout such as `{1,0:T(8,128)E(4)}` for an array of this rank, or nothing."""
    order, colon, rest = COMMENT.sub("", text).strip()[1:-1].partition(":")
    if not _ORDER.fullmatch(order):
        return f"the layout {text[:40]} does not begin with a list of dimensions"
    dimensions = _numbers(order)
    if sorted(dimensions) != list(range(rank)):
        return f"the layout {text[:40]} does not name each of {rank} dimensions once"
    if not _REST.fullmatch(rest):
        return f"{colon + rest[:40]!r} of the layout is not of the form :T(8,128)(2,1)E(4)S(1)"
    return ""


@attrs.frozen
class MemoryLayout:
    """The layout in a written type; `sizes` are those of the dimensions in `order`."""

    element: str
    order: tuple[int, ...]  # of dimensions, the outermost first
    sizes: tuple[int, ...]
    tiles: str


def layout_of(kind: tree.TypeText) -> MemoryLayout | None:
    """The layout of a written type, row-major if it has none; None if it is no array."""
    match = isinstance(kind, tree.ArrayText) and _ARRAY_AND_ORDER.fullmatch(
        COMMENT.sub("", kind.text)
    )
    if not match:
        return None
    sizes, layout = _numbers(match[2]), match[3] or ""
    order = tuple(range(len(sizes)))
    if layout:
        if layout_fault(layout, len(sizes)):
            return None
        order = tuple(reversed(_numbers(layout[1:-1].partition(":")[0])))
    tiles = _TILES.search(layout)
    ordered = tuple(sizes[dimension] for dimension in order)
    return MemoryLayout(match[1], order, ordered, "".join(tiles[0].split()) if tiles else "")


def is_row_major(text: tree.TypeText) -> bool:
    """Whether the last dimension is the innermost one; dimensions of size 1 may stand anywhere."""
    if isinstance(text, tree.TupleText):
        return all(is_row_major(element) for element in text.elements)
    memory = layout_of(text)
    if memory is None:  # what is no type is refused as such
        return True
    ordered = zip(memory.order, memory.sizes, strict=True)
    kept = [dimension for dimension, size in ordered if size != 1]
    return kept == sorted(kept)


def _numbers(text: str) -> Sequence[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


_STRING = r'"(?:[^"\\]|\\.)*+"'
_SUB_KEY = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*=\s*")
_BLANKS = re.compile(r"\s*")
_BRACE_OR_STRING = re.compile(rf"{_STRING}|[{{}}]")
_SCALAR = re.compile(rf"{_STRING}|[^\s,{{}}\"]+")
_METADATA_NUMBERS = frozenset(
    {
        "source_column",
        "source_end_column",
        "source_end_line",
        "source_line",
        "stack_frame_id",
    }
)
_METADATA_STRINGS = frozenset(
    {"deduplicated_name", "op_name", "op_type", "scheduling_name", "source_file"}
)
_NONNEGATIVE = re.compile(r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_OPERAND_ALIAS = r"\{[\d,\s]*\}\s*:\s*\(\s*\d+\s*,\s*\{[\d,\s]*\}\s*\)"


@attrs.frozen
class AttributeForm:
    """The form of an attribute's value: a test of its text, and an example."""

    fits: Callable[[str], object]
    example: str


def _pattern(pattern: str, example: str) -> AttributeForm:
    return AttributeForm(re.compile(rf"\s*{pattern}\s*", re.DOTALL).fullmatch, example)


def _braced(example: str) -> AttributeForm:
    return AttributeForm(lambda text: text.startswith("{"), example)


def behind_blanks(text: str, at: int) -> int:
    """The offset of the first character from `at` on that is no blank."""
    match = _BLANKS.match(text, at)
    assert match
    return match.end()


def braced_end(text: str, at: int) -> int:
    """The offset behind the brace that closes the one at `at`; -1 if none does."""
    depth = 0
    for piece in _BRACE_OR_STRING.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(piece[0], 0)
        if depth == 0:
            return piece.end()
    return -1


def _entries(text: str, is_value: Callable[[str, str], bool], *, commas: bool) -> bool:
    """Whether it is `{key=value …}` with such values; between them commas, or also blanks."""
    if not text.startswith("{"):
        return False
    at, end = behind_blanks(text, 1), len(text) - 1  # inside of the braces
    while at < end:
        key = _SUB_KEY.match(text, at)
        if key is None:
            return False
        start = key.end()
        if text.startswith("{", start):
            stop = braced_end(text, start)
        else:
            scalar = _SCALAR.match(text, start)
            stop = scalar.end() if scalar else -1
        if not start < stop <= end or not is_value(key[1], text[start:stop]):
            return False
        at = behind_blanks(text, stop)
        if text.startswith(",", at):
            at = behind_blanks(text, at + 1)
            if at == end:
                return False
        elif at < end and commas:
            return False
    return True


def _is_metadata_value(key: str, value: str) -> bool:
    if key in _METADATA_NUMBERS:
        return re.fullmatch(r"-?\d+", value) is not None
    return key not in _METADATA_STRINGS or value.startswith('"')


def _is_accuracy(text: str) -> bool:
    """`{mode=highest}`, or a tolerance with some of its three numbers >= 0, each at most once."""
    if re.fullmatch(r"\{\s*mode\s*=\s*(?:default|highest)\s*\}", text, re.IGNORECASE):
        return True
    tolerance = re.fullmatch(r"\{\s*tolerance\s*=\s*(\{[^{}]*\})\s*\}", text)
    if tolerance is None or not _entries(
        tolerance[1], lambda _, value: _NONNEGATIVE.fullmatch(value) is not None, commas=True
    ):
        return False
    keys = re.findall(r"(\w+)\s*=", tolerance[1])
    return len(set(keys)) == len(keys) and {*keys} <= {"atol", "rtol", "ulps"}


_PRECISION = r"(?:default|high|highest|packed_nibble)"

FORMS: Mapping[str, AttributeForm] = {
    "api_version": _pattern(
        r"API_VERSION_(?:UNSPECIFIED|ORIGINAL|STATUS_RETURNING|STATUS_RETURNING_UNIFIED|TYPED_FFI)",
        "API_VERSION_STATUS_RETURNING",
    ),
    "async_execution_thread": _pattern(_STRING, '"parallel_thread"'),
    "backend_config": AttributeForm(lambda text: text.startswith(('"', "{")), '{"key":"value"}'),
    "custom_call_has_side_effect": _pattern(r"(?:true|false)", "true"),
    "execution_thread": _pattern(_STRING, '"parallel_thread"'),
    "frontend_attributes": AttributeForm(
        lambda text: _entries(text, lambda _, value: value.startswith(('"', "{")), commas=True),
        '{key="value"}',
    ),
    "kind": _pattern(r"k(?:Loop|Input|Output|Custom)", "kLoop"),
    "metadata": AttributeForm(
        lambda text: _entries(text, _is_metadata_value, commas=False),
        '{op_name="add" source_file="a.py" source_line=3}',
    ),
    "operand_layout_constraints": _braced("{f32[2,3]{1,0}}"),
    "operand_precision": _pattern(
        rf"\{{\s*(?:{_PRECISION}\s*(?:,\s*{_PRECISION}\s*)*)?\}}", "{highest,highest}"
    ),
    "origin": _braced('{{"name"}}'),
    "output_to_operand_aliasing": _pattern(
        rf"\{{\s*(?:{_OPERAND_ALIAS}\s*(?:,\s*{_OPERAND_ALIAS}\s*)*,?\s*)?\}}", "{{}: (0, {})}"
    ),
    "parameter_replication": _pattern(
        r"\{\s*(?:(?:true|false)\s*(?:,\s*(?:true|false)\s*)*)?\}", "{true,false}"
    ),
    "result_accuracy": AttributeForm(
        _is_accuracy, "{tolerance={atol=0,rtol=0,ulps=1}} or {mode=highest}"
    ),
    "sharding": _braced("{replicated}"),
    "statistics": _braced("{visualizing_index=0,count=1}"),
}
"""By key; of instructions, and of computations."""


_IGNORED: Mapping[str, frozenset[str]] = {
    "collective-permute": frozenset({"slice_sizes"}),
    "collective-permute-start": frozenset({"slice_sizes"}),
    "custom-call": frozenset(
        {"batch_group_count", "dim_labels", "feature_group_count", "to_apply", "window"}
    ),
    "dot": frozenset({"algorithm"}),
    "ragged-all-to-all": frozenset({"dimensions"}),
    "ragged-all-to-all-start": frozenset({"dimensions"}),
    "recv-done": frozenset({"channel_id", "is_host_transfer"}),
    "send-done": frozenset({"channel_id", "is_host_transfer"}),
}
"""Attributes with a meaning for other ops, which XLA allows on these ops and we ignore."""

_WITH_ACCURACY = (
    "acos acosh asin asinh atan atanh cbrt cosh cosine erf exponential exponential-minus-one log "
    "log-plus-one logistic rsqrt sine sinh sqrt tan tanh"
)
_ACCURATE = frozenset(_WITH_ACCURACY.split(" "))
"""Ops that may have `result_accuracy`."""


_KEYS_OF_OPS = frozenset(row.name for op in OPS.values() for row in op.attributes)
KEYS_OF_HEADERS = frozenset(
    {
        "alias_passthrough_params",
        "allow_spmd_sharding_propagation_to_output",
        "allow_spmd_sharding_propagation_to_parameters",
        "buffer_donor",
        "entry_computation_layout",
        "frontend_attributes",
        "input_output_alias",
        "is_scheduled",
        "num_partitions",
        "replica_count",
    }
)
KEYS_OF_COMPUTATIONS = frozenset({"execution_thread"})


def is_of_other_ops(op: str, key: str) -> bool:
    """Whether a key that has a meaning elsewhere stands on an op that cannot have it."""
    if key == "result_accuracy":
        return op not in _ACCURATE
    if key in KEYS_OF_HEADERS:
        return key not in FORMS
    return key in _KEYS_OF_OPS and key not in _IGNORED.get(op, frozenset())


def is_misplaced(key: str, allowed: Collection[str]) -> bool:
    """Whether a key with a known meaning stands where only the `allowed` ones have one."""
    known = _KEYS_OF_OPS | FORMS.keys() | KEYS_OF_HEADERS | KEYS_OF_COMPUTATIONS
    return key in known and key not in allowed


def fault_of(key: str, text: str) -> str:
    """The fault in the form of an attribute that is kept as it is, or nothing."""
    form = FORMS.get(key)
    if form is None or form.fits(text):
        return ""
    return f"{key}: {text[:40]!r} is not of the form {form.example}"


_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](.*)", re.DOTALL)
_DIMENSIONS = re.compile(r"\s*(?:[0-9]{1,19}\s*(?:,\s*[0-9]{1,19}\s*)*)?")
_DTYPES = {dtype.value: dtype for dtype in DType}


MAX_RANK = 32
"""Dimensions of an array. numpy has at most 64, and some reshapes double the number."""


MAX_COMPARED = 200_000
"""Comparisons with known words for suggestions in one text; complaints after that have none."""


def suggestion(word: str, known: Collection[str], nearness: float = 0.6) -> str:
    """`did you mean …?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, known, n=3, cutoff=nearness)
    alike = [
        candidate for candidate in near if candidate[:1] == word[:1]
    ]  # the first letter is seldom the wrong one
    return f"did you mean {(alike or near)[0]}?" if near else ""


def limits_fault(kind: Type | None) -> tuple[str, str] | None:
    """Rule and fact for an array with too many dimensions or bytes, also inside of a tuple."""
    if not isinstance(kind, ArrayType):
        parts = kind.elements if isinstance(kind, TupleType) else ()
        return next(filter(None, map(limits_fault, parts)), None)
    if kind.rank > MAX_RANK:
        return "type-C5", f"the array has {kind.rank} dimensions, more than {MAX_RANK}"
    if math.prod(size or 1 for size in kind.shape) * kind.dtype.size_bytes >= 1 << 63:
        return "type-C4", f"{kind} does not fit in 2^63 bytes"
    return None


class TextReader:
    """Reads types, attributes and payloads of one source, and collects complaints."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.diagnostics: list[Diagnostic] = []
        self._types: dict[str, Type | None] = {}
        self._values: dict[tuple[AttrKind, str], Attribute] = {}
        self._raw: dict[str, Raw] = {}
        self._misspelt: dict[tuple[str, str], str] = {}
        self._compared = 0  # words, with misspelt ones

    def complain(
        self, code: str, message: str, at: tuple[int, int], hint: str = "", *notes: Note
    ) -> None:
        """Add a diagnostic at [start, end) of the source."""
        self.diagnostics.append(Diagnostic(code, message, self.span(*at), notes, hint))

    def span(self, start: int, end: int) -> Span:
        return Span(self.source, start, end)

    def type_of(self, written: tree.TypeText) -> Type | None:
        """The type, or None after a complaint."""
        if isinstance(written, tree.TupleText):
            return self._tuple_of(written)
        if written.text not in self._types:
            before = len(self.diagnostics)
            kind = self._array_of(written)
            if len(self.diagnostics) > before:
                return None
            self._types[written.text] = kind
        return self._types[written.text]

    def _tuple_of(self, written: tree.TupleText) -> Type | None:
        if written.depth > tree.MAX_TYPE_DEPTH:
            fact = f"tuples nest {written.depth} deep, at most {tree.MAX_TYPE_DEPTH} are read"
            self.complain("type-C3", fact, (written.start, written.start + 1))
            return None
        elements = [self.type_of(element) for element in written.elements]
        known = tuple(element for element in elements if element is not None)
        return TupleType(known) if len(known) == len(elements) else None

    def _array_of(self, written: tree.ArrayText) -> Type | None:
        match = _ARRAY.fullmatch(written.text)
        assert match, written.text
        name, start = match[1], written.start
        inside = COMMENT.sub("", match[2])
        if name == "token" and not inside:
            return TokenType() if self._has_sound_layout(match, start, 0) else None
        if name not in _DTYPES:
            hint = suggestion(name, _DTYPES) or "known are " + ", ".join(_DTYPES)
            self.complain(
                "type-C1", f"unknown element type {name}", (start, start + len(name)), hint
            )
            return None
        place = (start + match.start(2), start + max(match.end(2), match.start(2) + 1))
        if not _DIMENSIONS.fullmatch(inside):
            hint = "dynamic dimensions are not supported" if "<=" in inside or "?" in inside else ""
            fact = f"dimensions {inside!r} are not a list of numbers"
            self.complain("type-C2", fact, place, hint)
            return None
        shape = tuple(map(int, inside.split(","))) if inside.strip() else ()
        kind = ArrayType(_DTYPES[name], shape)
        if fault := limits_fault(kind):
            self.complain(*fault, place)
            return None
        return kind if self._has_sound_layout(match, start, kind.rank) else None

    def _has_sound_layout(self, match: re.Match[str], start: int, rank: int) -> bool:
        """Whether the text behind the dimensions is a layout of the array, or nothing."""
        layout = match[3].strip()
        fault = layout_fault(layout, rank) if layout else ""
        if fault:
            at = (start + match.start(3), start + match.end(3))
            hint = "correct it, or leave the layout out"
            self.complain("type-C6", fault, at, hint)
        return not fault

    def suggestion(self, word: str, known: Collection[str]) -> str:
        """`did you mean …?`, for complaints that are printed and while few words were compared."""
        self._compared += len(known)
        if len(self.diagnostics) >= MAX_SHOWN or self._compared > MAX_COMPARED:
            return ""
        return suggestion(word, known)

    def misspelt(self, key: str, row: OpDef) -> str:
        """A suggestion of a key of the op for an unknown key, if one is near."""
        hint = self._misspelt.get((key, row.name))
        if hint is None:
            known = {attribute.name for attribute in row.attributes} | FORMS.keys()
            hint = "" if key in known else suggestion(key, sorted(known), 0.8)
            self._misspelt[key, row.name] = hint
        return hint

    def raw(self, text: str) -> Raw:
        """A text kept as it is."""
        return self._raw.setdefault(text, Raw(text))

    def attribute(self, written: tree.Attribute, row: AttributeDef) -> Attribute | None:
        """The value of an attribute that the op knows, or None after a complaint."""
        key = (row.kind, written.value)
        if key not in self._values:
            try:
                self._values[key] = read_attribute(row.kind, written.value)
            except ValueError as error:
                self.complain(
                    "attribute-C1", f"{row.name}: {error}", (written.value_start, written.end)
                )
                return None
        return self._values[key]

    def payload(self, written: tree.Instruction, row: OpDef, kind: Type) -> Attribute | None:
        """The value in the parentheses of `parameter` and `constant`; None after a complaint."""
        definition, payload = row.payload, written.payload
        assert definition
        if payload is None:
            example = f"{row.name}({definition.kind.value})"
            fact = f"{row.name} holds no {definition.name.replace('_', ' ')}"
            at = (written.operands[0].start, written.operands[-1].end) if written.operands else None
            self.complain(
                "op-C3", fact, at or (written.op.start, written.op.end), f"write {example}"
            )
            return None
        if definition.kind is AttrKind.LITERAL:
            return self._literal(payload, kind, written)
        text = tree.Attribute(
            definition.name, payload.text, payload.start, payload.start, payload.end
        )
        return self.attribute(text, definition)

    def _literal(
        self, payload: tree.Word, kind: Type, written: tree.Instruction
    ) -> Literal | Elided | None:
        if isinstance(kind, TupleType):
            fact = f"the literal is not a tuple of {len(kind.elements)}"
            hint = "write (a, b, …), an element for each of the type"
            self.complain("literal-C1", fact, (payload.start, payload.end), hint)
            return None
        if not isinstance(kind, ArrayType):
            fact = f"a constant is an array, not {kind}"
            place = written.type or written.op
            self.complain("literal-C1", fact, (place.start, place.end))
            return None
        try:
            return read_literal(payload.text, kind)
        except LiteralError as error:
            at = (payload.start, payload.end)
            if error.word and error.word != payload.text:
                inside = re.search(rf"(?<![\w.+-]){re.escape(error.word)}(?![\w.])", payload.text)
                offset = payload.start + (inside.start() if inside else 0)
                at = (offset, offset + len(error.word)) if inside else at
            self.complain(f"literal-C{error.number}", str(error), at, error.hint)
            return None
