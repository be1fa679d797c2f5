"""Rows of the ops that slide a window over dimensions, and the sentences of sums and folds."""

from ncc_compiler.ir.op_row import AttributeDef, Kind, OpDef, required
from ncc_runtime.neff.windows import Window

_WINDOW = (AttributeDef("window", Kind.WINDOW, False, Window()),)

WINDOW_SIZES = "sizes, strides and dilations of the window are at least 1"
FACTORS = "the operands are both numbers that are not complex, or of one type"
PRODUCTS = "the result is of the operands' kind: an integer needs integers, a float takes both"
START_FOR_EACH = "there are as many initial values as arrays"
ONE_SHAPE = "the arrays have one shape"
SCALAR_STARTS = "each initial value is a scalar of its array's element type"
FOLDING_REGION = "to_apply takes the element types twice and returns them once"

WINDOW_ROWS = (
    OpDef(
        "convolution",
        2,
        2,
        (
            *_WINDOW,
            *required(dim_labels=Kind.LABELS),
            AttributeDef("feature_group_count", Kind.INTEGER, False, 1),
            AttributeDef("batch_group_count", Kind.INTEGER, False, 1),
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
        (*_WINDOW, *required(to_apply=Kind.CALLEE)),
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
        (*_WINDOW, *required(select=Kind.CALLEE, scatter=Kind.CALLEE)),
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
"""Rows of the table of ops."""
