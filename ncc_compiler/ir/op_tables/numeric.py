"""Rows of numerical methods: transforms, factorisations, random bits, batch norm, and work of which
only sizes are known.

Their result types: `type_rules/numeric.py`; their meaning: `reference/numeric.py`.
"""

from ncc_compiler.ir.op_tables.op_row import AttributeDef, AttrKind, OpDef, optional, required


def _flag(name: str) -> AttributeDef:
    """A flag that is false by default."""
    return AttributeDef(name, AttrKind.BOOLEAN, False, False)


_BATCH_NORM = (
    "the elements are floats",
    "feature_index is a dimension of the first operand",
    "scale, offset, mean and variance have an element for each index of that dimension",
)
_BATCH_NORM_ATTRIBUTES = required(epsilon=AttrKind.FLOAT, feature_index=AttrKind.INTEGER)

WORK = "ncc.work"
"""Work of which only sizes are known, as in a trace; a custom call in a text."""

AMOUNTS = ("flops", "elements", "bytes_read", "bytes_written")
"""Its sizes: flops of the Tensor engine, elements that another one walks over, bytes of HBM."""

NUMERIC_ROWS = (
    OpDef("batch-norm-training", 3, 3, _BATCH_NORM_ATTRIBUTES, _BATCH_NORM),
    OpDef("batch-norm-inference", 5, 5, _BATCH_NORM_ATTRIBUTES, _BATCH_NORM),
    OpDef(
        "batch-norm-grad",
        5,
        5,
        _BATCH_NORM_ATTRIBUTES,
        (*_BATCH_NORM, "the last operand has the shape of the first"),
    ),
    OpDef(
        "fft",
        1,
        1,
        required(fft_type=AttrKind.WORD, fft_length=AttrKind.INTEGERS),
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
            AttributeDef("transpose_a", AttrKind.WORD, False, "NO_TRANSPOSE"),
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
        required(distribution=AttrKind.WORD),
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
        required(algorithm=AttrKind.WORD),
        (
            "algorithm is rng_three_fry, rng_philox or rng_default",
            "the state is u64[2], or u64[3] where the algorithm is not rng_three_fry",
            "the result is a new state and an array of integers",
        ),
    ),
    OpDef(
        WORK,
        0,
        None,
        (
            AttributeDef("engine", AttrKind.WORD, False, "Tensor"),
            *(AttributeDef(name, AttrKind.INTEGER, False, 0) for name in AMOUNTS),
            AttributeDef("dtype", AttrKind.WORD, False, "bf16"),
            *optional(duration_ps=AttrKind.INTEGER),
        ),
        (
            "the result is an array",
            "engine is Tensor, Vector, Scalar, GpSimd or Sync",
            "flops, elements, bytes_read, bytes_written and duration_ps are from 0 to 2^60",
            "dtype is an element type",
        ),
        has_side_effect=True,
    ),
)
