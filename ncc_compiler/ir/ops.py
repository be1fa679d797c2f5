"""The table of ops: one row each, with operands, attributes and the sentences of its rules.

Sentence k of a row is the rule `<op>-C<k>` of messages, tests and docs/ir.md. What a row says is
all that reader, printer and generic checks need; `infer.RULES` adds the type of the result.
"""

import enum
from collections.abc import Iterable, Mapping

import attrs

from ncc_compiler.ir.graph import Attribute
from ncc_runtime.neff.groups import ExplicitGroups


class Kind(enum.Enum):
    """The form of an attribute's value; the value is an example, for messages."""

    INTEGER = "3"
    BOOLEAN = "true"
    WORD = "EQ"
    INTEGERS = "{0,1}"
    SLICES = "{[0:4], [1:7:2]}"
    GROUPS = "{{0,1},{2,3}}, [2,2]<=[4], [2,2]<=[2,2]T(1,0) or mesh['a'=2,'b'=2] {'b'}"
    PAIRS = "{{0,1},{1,0}}"
    CALLEE = "%sum"
    LITERAL = "{ { 1, 2 }, { 3, 4 } }"


@attrs.frozen
class AttributeDef:
    """An attribute an op gives a meaning to; `default` is filled in where the text has none."""

    name: str
    kind: Kind
    required: bool = True
    default: Attribute | None = None


@attrs.frozen
class OpDef:
    """One row: `least` to `most` operands (None: any number), attributes, rules."""

    name: str
    least: int
    most: int | None
    attributes: tuple[AttributeDef, ...] = ()
    rules: tuple[str, ...] = ()
    payload: AttributeDef | None = None  # what the parentheses hold instead of operands
    collective: bool = False
    takes_tuples: bool = False  # its operands need not be arrays

    def attribute(self, name: str) -> AttributeDef | None:
        """The row of one attribute, if the op has it."""
        return next((row for row in self.attributes if row.name == name), None)


SAME_TYPE = "all operands have the same type"
DTYPE = "the op is defined for the operands' element type"


def _elementwise(operands: int, names: str, *rules: str) -> Iterable[OpDef]:
    return (OpDef(name, operands, operands, (), rules) for name in names.split())


def _required(**kinds: Kind) -> tuple[AttributeDef, ...]:
    return tuple(AttributeDef(name, kind) for name, kind in kinds.items())


def _optional(**kinds: Kind) -> tuple[AttributeDef, ...]:
    return tuple(AttributeDef(name, kind, required=False) for name, kind in kinds.items())


def _dimension_lists(*names: str) -> tuple[AttributeDef, ...]:
    return tuple(AttributeDef(name, Kind.INTEGERS, False, ()) for name in names)


_DIMENSIONS = _required(dimensions=Kind.INTEGERS)
_CHANNEL = _optional(channel_id=Kind.INTEGER)
_GROUPS = (AttributeDef("replica_groups", Kind.GROUPS, False, ExplicitGroups(())), *_CHANNEL)
_GLOBAL_IDS = _optional(use_global_device_ids=Kind.BOOLEAN)
_LAYOUT = _optional(constrain_layout=Kind.BOOLEAN)
_REGION = _required(to_apply=Kind.CALLEE)

_GROUP_RULES = (
    "no rank appears twice in the groups",
    "every id in the groups exists",
    "the groups name everybody, or there are none",
    "no group is empty",
    "use_global_device_ids=true comes with a channel_id",
)
EQUAL_SIZES = "all groups have the same size"
_REDUCES = (
    "to_apply takes two scalars of the operands' element type and returns one",
    "to_apply is one of add, multiply, minimum, maximum, and, or on its two parameters",
)
ONE_DIMENSION = "dimensions names one dimension of every operand"
DIVIDES = "the dimension divides into one part for each member of a group"


def _collective(name: str, attributes: Iterable[AttributeDef], rules: Iterable[str] = ()) -> OpDef:
    return OpDef(name, 1, None, tuple(attributes), tuple(rules), collective=True)


_MOVES = (
    OpDef(
        "broadcast",
        1,
        1,
        _DIMENSIONS,
        (
            "dimensions has one entry for each dimension of the operand",
            "dimensions are distinct dimensions of the result",
            "each dimension has the size of the operand's",
        ),
    ),
    OpDef("reshape", 1, 1, (), ("the result has as many elements as the operand",)),
    OpDef("transpose", 1, 1, _DIMENSIONS, ("dimensions is a permutation of the operand's",)),
    OpDef(
        "slice",
        1,
        1,
        _required(slice=Kind.SLICES),
        (
            "slice has one entry for each dimension of the operand",
            "0 <= start <= limit <= the dimension's size, and stride >= 1",
        ),
    ),
    OpDef(
        "concatenate",
        1,
        None,
        _DIMENSIONS,
        (
            "dimensions names one dimension of the operands",
            "the operands have one element type and rank",
            "the operands agree in every other dimension",
        ),
    ),
)

_CONTRACTIONS = (
    OpDef(
        "dot",
        2,
        2,
        _dimension_lists(
            "lhs_batch_dims", "lhs_contracting_dims", "rhs_batch_dims", "rhs_contracting_dims"
        ),
        (
            "dimension numbers are distinct dimensions of their operand",
            "both sides list equally many batch dimensions and contracting dimensions",
            "paired dimensions have the same size",
            "the operands are both integers, both floats, or of one type, but not pred",
            "the result is of the operands' kind: integer, float or complex",
        ),
    ),
    OpDef(
        "reduce",
        2,
        None,
        (*_DIMENSIONS, *_REGION),
        (
            "there are as many initial values as arrays",
            "the arrays have one shape",
            "dimensions are distinct dimensions of the arrays",
            "each initial value is a scalar of its array's element type",
            "to_apply takes the element types twice and returns them once",
        ),
    ),
)

_COLLECTIVES = (
    _collective(
        "all-reduce",
        (*_GROUPS, *_GLOBAL_IDS, *_LAYOUT, *_REGION),
        (*_GROUP_RULES, *_REDUCES),
    ),
    _collective(
        "all-gather",
        (*_GROUPS, *_DIMENSIONS, *_GLOBAL_IDS, *_LAYOUT),
        (*_GROUP_RULES, EQUAL_SIZES, ONE_DIMENSION),
    ),
    _collective(
        "reduce-scatter",
        (*_GROUPS, *_GLOBAL_IDS, *_LAYOUT, *_DIMENSIONS, *_REGION),
        (
            *_GROUP_RULES,
            *_REDUCES,
            EQUAL_SIZES,
            ONE_DIMENSION,
            DIVIDES,
        ),
    ),
    _collective(
        "all-to-all",
        (*_GROUPS, *_LAYOUT, *_optional(dimensions=Kind.INTEGERS)),
        (
            *_GROUP_RULES,
            EQUAL_SIZES,
            ONE_DIMENSION,
            DIVIDES,
            "without dimensions there is one operand for each member of a group, all of one type",
        ),
    ),
    _collective(
        "collective-permute",
        (*_CHANNEL, *_required(source_target_pairs=Kind.PAIRS)),
        (
            "no rank is the source of two pairs",
            "no rank is the target of two pairs",
            "every id in the pairs exists",
        ),
    ),
)

_STRUCTURE = (
    OpDef("parameter", 0, 0, payload=AttributeDef("parameter_number", Kind.INTEGER)),
    OpDef(
        "constant",
        0,
        0,
        rules=("the value has the shape and element type of the declared type",),
        payload=AttributeDef("literal", Kind.LITERAL),
    ),
    OpDef("tuple", 0, None, takes_tuples=True),
    OpDef(
        "get-tuple-element",
        1,
        1,
        _required(index=Kind.INTEGER),
        ("the operand is a tuple", "index counts an element of the tuple"),
        takes_tuples=True,
    ),
    OpDef(
        "call",
        0,
        None,
        _REGION,
        ("the computation has as many parameters", "operands have the types of its parameters"),
        takes_tuples=True,
    ),
)

_ELEMENTWISE = (
    *_elementwise(1, "copy"),
    *_elementwise(1, "convert", "a complex number converts to a complex type only"),
    *_elementwise(
        1, "abs ceil exponential floor log logistic negate not rsqrt sign sqrt tanh", DTYPE
    ),
    *_elementwise(2, "add multiply", SAME_TYPE),
    *_elementwise(
        2, "and divide maximum minimum or power remainder subtract xor", SAME_TYPE, DTYPE
    ),
    OpDef(
        "compare",
        2,
        2,
        (*_required(direction=Kind.WORD), *_optional(type=Kind.WORD)),
        (
            SAME_TYPE,
            "direction is EQ, NE, LT, LE, GT or GE, and complex numbers are EQ or NE only",
            "type is FLOAT, TOTALORDER, SIGNED or UNSIGNED, and fits the operands",
        ),
    ),
    OpDef(
        "select",
        3,
        3,
        (),
        ("the first operand is pred of the others' shape", "the others have the same type"),
    ),
    OpDef(
        "iota",
        0,
        0,
        _required(iota_dimension=Kind.INTEGER),
        ("iota_dimension is a dimension of the result", "the result is not pred"),
    ),
    OpDef("partition-id", 0, 0),
    OpDef("replica-id", 0, 0),
)

OPS: Mapping[str, OpDef] = {
    row.name: row for row in (*_STRUCTURE, *_ELEMENTWISE, *_MOVES, *_CONTRACTIONS, *_COLLECTIVES)
}
"""Every op by its HLO name."""
