"""Rows of the ops that are whole numerical methods: transforms, factorisations, random bits."""

from collections.abc import Mapping

from ncc_compiler.ir.op_row import AttributeDef, Kind, OpDef, required


def _flag(name: str) -> AttributeDef:
    """A flag that is false where it is not written."""
    return AttributeDef(name, Kind.BOOLEAN, False, False)


NUMERIC_ROWS = (
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

REFUSED: Mapping[str, str] = {
    "rng": "XLA leaves its numbers open; rng-bit-generator says them",
    "rng-get-and-update-state": "its state is kept by a device, outside of the program; "
    "rng-bit-generator takes and returns it",
}
"""Ops that are known and will not be: why."""
