"""Rows of ops that reduce dimensions: products, reductions, sliding windows.

Their result types: `type_rules/contractions.py`; their meaning: `reference/contraction.py`.
"""

from ncc_compiler.ir.op_tables.op_row import (
    AttributeDef,
    AttrKind,
    OpDef,
    dimension_lists,
    required,
)
from ncc_runtime.neff.shared.windows import Window

WINDOW_SIZES = "sizes, strides and dilations of the window are at least 1"
FACTORS = "the operands are both numbers that are not complex, or of one type"
PRODUCTS = "the result is of the operands' kind: an integer needs integers, a float takes both"
START_FOR_EACH = "there are as many initial values as arrays"
ONE_SHAPE = "the arrays have one shape"
SCALAR_STARTS = "each initial value is a scalar of its array's element type"
FOLDING_REGION = "to_apply takes the element types twice and returns them once"

_DIMENSIONS = required(dimensions=AttrKind.INTEGERS)
_REGION = required(to_apply=AttrKind.CALLEE)
_WINDOW = (AttributeDef("window", AttrKind.WINDOW, False, Window()),)

_PAIRED = dimension_lists(
    "lhs_batch_dims", "lhs_contracting_dims", "rhs_batch_dims", "rhs_contracting_dims"
)
_PRODUCT = (
    "dimension numbers are distinct dimensions of their operand",
    "both sides list equally many batch dimensions and contracting dimensions",
    "paired dimensions have the same size",
    FACTORS,
    PRODUCTS,
)

CONTRACTION_ROWS = (
    OpDef(
        "dot",
        2,
        4,  # sparse operands bring metadata; a rule refuses them
        _PAIRED,
        (*_PRODUCT, "no operand is sparse"),
    ),
    OpDef(
        "ragged-dot",
        3,
        3,
        (*_PAIRED, *dimension_lists("lhs_ragged_dims", "rhs_group_dims")),
        (
            *_PRODUCT,
            "one dimension of the left operand is ragged",
            "the right operand has a dimension of groups if the ragged one is neither batch nor "
            "contracting, and else none",
            "group sizes are integers: one list, or one for each index before the ragged dimension",
        ),
    ),
    OpDef(
        "reduce",
        2,
        None,
        (*_DIMENSIONS, *_REGION),
        (
            START_FOR_EACH,
            ONE_SHAPE,
            "dimensions are distinct dimensions of the arrays",
            SCALAR_STARTS,
            FOLDING_REGION,
        ),
    ),
)

WINDOW_ROWS = (
    OpDef(
        "convolution",
        2,
        2,
        (
            *_WINDOW,
            *required(dim_labels=AttrKind.LABELS),
            AttributeDef("feature_group_count", AttrKind.INTEGER, False, 1),
            AttributeDef("batch_group_count", AttrKind.INTEGER, False, 1),
        ),
        (
            "dim_labels has a label for each dimension of the operands",
            "window has an entry for each spatial dimension, as large as the kernel's",
            WINDOW_SIZES,
            "feature_group_count and batch_group_count are at least 1, and one of them is 1",
            "the input has feature_group_count times as many features as the kernel",
            "the group count divides the output features",
            "batch_group_count divides the batch",
            FACTORS,
            PRODUCTS,
        ),
    ),
    OpDef(
        "reduce-window",
        2,
        None,
        (*_WINDOW, *required(to_apply=AttrKind.CALLEE)),
        (
            START_FOR_EACH,
            ONE_SHAPE,
            "window has an entry for each dimension of the arrays",
            WINDOW_SIZES,
            "a window that folds is not reversed",
            SCALAR_STARTS,
            FOLDING_REGION,
        ),
    ),
    OpDef(
        "select-and-scatter",
        3,
        3,
        (*_WINDOW, *required(select=AttrKind.CALLEE, scatter=AttrKind.CALLEE)),
        (
            "window has an entry for each dimension of the first operand",
            WINDOW_SIZES,
            "a window that selects is neither dilated nor reversed",
            "the second operand has an element for each position of the window",
            "all operands have one element type, and the third is a scalar",
            "select takes two scalars of the element type and returns pred[]",
            "scatter takes two scalars of the element type and returns one",
        ),
    ),
)
