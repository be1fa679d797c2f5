"""The rows of the table of ops: operands, attributes, the sentences of rules.

The helpers below shorten rows: `required`, `optional` and `dimension_lists` make attributes,
`elementwise` makes a row for each of several names.
"""

import enum
import functools
from collections.abc import Iterable, Mapping

import attrs

from ncc_compiler.ir.graph import Attribute


class AttrKind(enum.Enum):
    """The form of an attribute's value; the value is an example, for messages."""

    INTEGER = "3"
    FLOAT = "0.001"
    BOOLEAN = "true"
    WORD = "EQ"
    INTEGERS = "{0,1}"
    SLICES = "{[0:4], [1:7:2]}"
    GROUPS = "{{0,1},{2,3}}, [2,2]<=[4], [2,2]<=[2,2]T(1,0) or mesh['a'=2,'b'=2] {'b'}"
    PAIRS = "{{0,1},{1,0}}"
    LISTS = "{{4,4},{2,8}}"
    CALLEE = "%sum"
    CALLEES = "{%one, %other}"
    WINDOW = "{size=2x2 pad=0_1x0_1}"
    LABELS = "b01f_01io->b01f"
    LITERAL = "{ { 1, 2 }, { 3, 4 } }"
    STRING = '"TopK"'
    PADDING = "0_1x2_3_1"
    DOMAIN = '{kind="sharding", entry={replicated}, exit={maximal device=0}}'


@attrs.frozen
class AttributeDef:
    """An attribute that has a meaning for an op; `default` is its value if the text has none."""

    name: str
    kind: AttrKind
    required: bool = True
    default: Attribute | None = None


@attrs.frozen
class OpDef:
    """One row: an op with its operands (`max_operands` None: any number), attributes, rules."""

    name: str
    min_operands: int
    max_operands: int | None
    attributes: tuple[AttributeDef, ...] = ()
    rules: tuple[str, ...] = ()
    payload: AttributeDef | None = None  # in the parentheses instead of operands
    collective: bool = False
    takes_tuples: bool = False  # operands need not be arrays
    tuples_with: str = ""  # operands need not be arrays where this attribute is given
    has_side_effect: bool = False  # neither dead code nor common subexpressions drop it

    def attribute(self, name: str) -> AttributeDef | None:
        """The row of one attribute, if the op has it."""
        return self._by_name.get(name)

    @functools.cached_property
    def _by_name(self) -> Mapping[str, AttributeDef]:
        return {row.name: row for row in self.attributes}


def elementwise(operands: int, names: str, *rules: str) -> Iterable[OpDef]:
    return (OpDef(name, operands, operands, (), rules) for name in names.split())


def required(**kinds: AttrKind) -> tuple[AttributeDef, ...]:
    return tuple(AttributeDef(name, kind) for name, kind in kinds.items())


def optional(**kinds: AttrKind) -> tuple[AttributeDef, ...]:
    return tuple(AttributeDef(name, kind, required=False) for name, kind in kinds.items())


def dimension_lists(*names: str) -> tuple[AttributeDef, ...]:
    return tuple(AttributeDef(name, AttrKind.INTEGERS, False, ()) for name in names)
