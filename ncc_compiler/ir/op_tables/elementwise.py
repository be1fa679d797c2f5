"""Rows of elementwise ops, and of ops that reinterpret the bits of elements.

Their result types: `type_rules/elementwise.py`.
"""

from ncc_compiler.ir.op_tables.op_row import AttrKind, OpDef, elementwise, optional, required

SAME_TYPE = "all operands have the same type"
DTYPE = "the op is defined for the operands' element type"

_UNARY = (
    "abs acos acosh asin asinh atan atanh cbrt ceil cosh cosine count-leading-zeros erf "
    "exponential exponential-minus-one floor imag is-finite log log-plus-one logistic negate not "
    "popcnt real round-nearest-afz round-nearest-even rsqrt sign sine sinh sqrt tan tanh"
)
_BINARY = (
    "and atan2 complex divide mulhi or power remainder shift-left "
    "shift-right-arithmetic shift-right-logical subtract xor"
)

_BITS = (
    OpDef(
        "bitcast",
        1,
        1,
        (),
        (
            "the result has as many bits as the operand, elements of whole bytes or the same, and "
            "is pred of pred only",
            "operand and result are laid out row by row, or without tiles",
        ),
    ),
    OpDef(
        "bitcast-convert",
        1,
        1,
        (),
        (
            "narrower elements come in one more dimension, wider ones take the last one up",
            "complex numbers become complex numbers only",
        ),
    ),
    OpDef(
        "reduce-precision",
        1,
        1,
        required(exponent_bits=AttrKind.INTEGER, mantissa_bits=AttrKind.INTEGER),
        (DTYPE, "exponent_bits >= 1 and mantissa_bits >= 0"),
    ),
    OpDef(
        "stochastic-convert",
        2,
        2,
        (),
        (
            "a float is converted to a signed integer",
            "the second operand is unsigned, of the first one's shape and width",
        ),
    ),
)

_CHOICES = (
    OpDef(
        "compare",
        2,
        2,
        (*required(direction=AttrKind.WORD), *optional(type=AttrKind.WORD)),
        (
            SAME_TYPE,
            "direction is EQ, NE, LT, LE, GT or GE",
            "type is FLOAT, TOTALORDER, SIGNED or UNSIGNED, and fits the operands",
        ),
    ),
    OpDef(
        "select",
        3,
        3,
        (),
        (
            "the first operand is pred, a scalar or of the others' shape",
            "the others have the same type",
        ),
    ),
    OpDef(
        "clamp",
        3,
        3,
        (),
        ("each bound is a scalar or of the second operand's shape, and of its dtype",),
    ),
)

ELEMENTWISE_ROWS = (
    *elementwise(1, "copy convert"),
    *elementwise(1, _UNARY, DTYPE),
    *elementwise(2, "add maximum minimum multiply", SAME_TYPE),
    *elementwise(2, _BINARY, SAME_TYPE, DTYPE),
    *_CHOICES,
    *_BITS,
    OpDef(
        "map",
        1,
        None,
        (*optional(dimensions=AttrKind.INTEGERS), *required(to_apply=AttrKind.CALLEE)),
        (
            "the operands have one shape",
            "dimensions, if given, are all dimensions of the operands, in order",
            "to_apply takes a scalar of each operand's element type and returns one scalar",
        ),
    ),
    OpDef(
        "iota",
        0,
        0,
        required(iota_dimension=AttrKind.INTEGER),
        ("iota_dimension is a dimension of the result", "the result is not pred"),
    ),
)
"""Ops that compute each element of the result from the same element of the operands."""
