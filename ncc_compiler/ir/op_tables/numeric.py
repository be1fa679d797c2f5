"""Rows of the ops that are whole numerical methods: transforms, factorisations, random bits.

Rows of the ops that slide a window over dimensions, and the sentences of sums and folds.
"""

from ncc_compiler.ir.op_tables.op_row import AttributeDef, Kind, OpDef, required
from ncc_runtime.neff.shared.windows import Window


def _flag(name: str) -> AttributeDef:
    """A flag that is false where it is not written."""
    return AttributeDef(name, Kind.BOOLEAN, False, False)


BATCH_NORM = (
    "the elements are floats",
    "feature_index is a dimension of the first operand",
    "scale, offset, mean and variance have an element for each index of that dimension",
)
_NORMALISED = required(epsilon=Kind.FLOAT, feature_index=Kind.INTEGER)

NUMERIC_ROWS = (
    OpDef("batch-norm-training", 3, 3, _NORMALISED, BATCH_NORM),
    OpDef("batch-norm-inference", 5, 5, _NORMALISED, BATCH_NORM),
    OpDef(
        "batch-norm-grad",
        5,
        5,
        _NORMALISED,
        (*BATCH_NORM, "the last operand has the shape of the first"),
    ),
    OpDef(
        "fft",
        1,
        1,
        required(fft_type=Kind.WORD, fft_length=Kind.INTEGERS),
        (
            "fft_type is FFT, IFFT, RFFT or IRFFT",
            "fft_length has one to three entries, not more than the operand has dimensions",
            "RFFT takes f32 or f64, all others take complex numbers",
            "the operand's last dimensions are fft_length; IRFFT takes half of the last, plus one",
        ),
    ),
    OpDef(
        "cholesky",
        1,
        1,
        (_flag("lower"),),
        (
            "the elements are floats or complex numbers",
            "the operand's last two dimensions are a square",
        ),
    ),
    OpDef(
        "triangular-solve",
        2,
        2,
        (
            _flag("left_side"),
            _flag("lower"),
            _flag("unit_diagonal"),
            AttributeDef("transpose_a", Kind.WORD, False, "NO_TRANSPOSE"),
        ),
        (
            "the operands have one element type, floats or complex numbers",
            "the first operand's last two dimensions are a square",
            "the operands have the same dimensions but for the last two",
            "the second operand has as many rows as the square, or columns without left_side",
            "transpose_a is NO_TRANSPOSE, TRANSPOSE or ADJOINT",
        ),
    ),
    OpDef(
        "rng",
        2,
        2,
        required(distribution=Kind.WORD),
        (
            "distribution is rng_uniform or rng_normal",
            "the operands are scalars of the result's element type",
            "rng_uniform gives floats or integers, rng_normal floats",
        ),
    ),
    OpDef(
        "rng-bit-generator",
        1,
        1,
        required(algorithm=Kind.WORD),
        (
            "algorithm is rng_three_fry, rng_philox or rng_default",
            "the state is u64[2], or u64[3] where the algorithm is not rng_three_fry",
            "the result is a new state and an array of integers",
        ),
    ),
)
"""Rows of the table of ops."""


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
