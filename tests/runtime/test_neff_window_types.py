"""Types of instructions with windows and of numerical methods: what is accepted, what not."""

import pytest

from ncc_runtime.neff.program import AttributeValue
from tests.runtime.signatures import NOT_LESS, SUM, breaches, signature

Attributes = dict[str, AttributeValue]
Row = tuple[str, str, Attributes]


def convolution(**changed: AttributeValue) -> Attributes:
    plain: Attributes = {"feature_groups": 1, "batch_groups": 1, "dim_labels": "b0f_0io->b0f"}
    return {"window": "{size=3}", **plain, **changed}


def scatter(window: str, select: int = 1, scattered: int = 0) -> Attributes:
    return {"window": window, "select_region": select, "scatter_region": scattered}


def solve(**changed: AttributeValue) -> Attributes:
    flags: Attributes = {"left_side": True, "lower": True, "unit_diagonal": False}
    return {**flags, "transpose_a": "NO_TRANSPOSE", **changed}


def reduce(window: str, region: int = 0) -> Attributes:
    return {"window": window, "region": region}


def fft(kind: str, *length: int) -> Attributes:
    return {"fft_type": kind, "fft_length": length}


IMAGE, KERNEL = "f32[2,8,4]", "f32[3,4,6]"
ACCEPTED: list[Row] = [
    ("convolution", f"f32[2,6,6] = {IMAGE} {KERNEL}", convolution()),
    (
        "convolution",
        f"f32[2,8,6] = {IMAGE} f32[3,2,6]",
        convolution(window="{size=3 pad=1_1}", feature_groups=2),
    ),
    ("convolution", "s32[1,6,6] = s8[2,8,4] s8[3,4,6]", convolution(batch_groups=2)),
    ("convolution", "f32[6,2,6] = f32[4,8,2] f32[3,4,6]", convolution(dim_labels="f0b_0io->0bf")),
    ("reduce-window", "f32[2,2] = f32[2,3] f32[]", reduce("{size=1x2}")),
    ("select-and-scatter", "f32[4] = f32[4] f32[2] f32[]", scatter("{size=2 stride=2}")),
    ("fft", "c64[2,5] = f32[2,8]", fft("RFFT", 8)),
    ("fft", "f64[2,8] = c128[2,5]", fft("IRFFT", 2, 8)),
    ("fft", "c64[3] = c64[3]", fft("FFT", 3)),
    ("cholesky", "f32[2,3,3] = f32[2,3,3]", {"lower": False}),
    ("triangular-solve", "f32[3,2] = f32[3,3] f32[3,2]", solve()),
    ("triangular-solve", "c64[2,3] = c64[3,3] c64[2,3]", solve(left_side=False)),
    ("rng-bit-generator", "u64[2] u8[7] = u64[2]", {"algorithm": "rng_three_fry"}),
    ("rng-bit-generator", "u64[3] u32[] = u64[3]", {"algorithm": "rng_default"}),
]

REFUSED: list[tuple[str, str, Attributes, str]] = [
    (
        "convolution",
        f"f32[2,6,6] = {IMAGE} {KERNEL}",
        convolution(window="3"),
        "is not of the form",
    ),
    ("convolution", f"f32[2,6,6] = {IMAGE} {KERNEL}", convolution(dim_labels="b"), "not of the"),
    ("convolution", "f32[2,6] = f32[2,8] f32[3,4,6]", convolution(), "f32[2,8] does not have the"),
    (
        "convolution",
        f"f32[2,7,6] = {IMAGE} {KERNEL}",
        convolution(window="{size=2}"),
        "as large as",
    ),
    (
        "convolution",
        f"f32[2,6,6] = {IMAGE} {KERNEL}",
        convolution(window="{size=3 stride=0}"),
        "below 1",
    ),
    (
        "convolution",
        f"f32[2,6,6] = {IMAGE} {KERNEL}",
        convolution(feature_groups=2),
        "do not divide into 2",
    ),
    (
        "convolution",
        f"f32[1,6,6] = {IMAGE} {KERNEL}",
        convolution(batch_groups=0),
        "one of them must be 1",
    ),
    (
        "convolution",
        "f32[1,6,5] = f32[2,8,4] f32[3,4,5]",
        convolution(batch_groups=2),
        "not divide",
    ),
    ("convolution", f"f32[2,7,6] = {IMAGE} {KERNEL}", convolution(), "operands make [2,6,6]"),
    ("convolution", f"c64[2,6,6] = {IMAGE} {KERNEL}", convolution(), "do not make c64[2,6,6]"),
    ("reduce-window", "f32[2,2] = f32[2,3]", reduce("{size=1x2}"), "1 operands, 2 needed"),
    (
        "reduce-window",
        "f32[2,2] = f32[2,3] f32[]",
        reduce("{size=2}"),
        "does not have 2 dimensions",
    ),
    ("reduce-window", "f32[2,2] = f32[2,3] f32[]", reduce("{size=}"), "is not of the form"),
    ("reduce-window", "f32[2,2] = f32[2,3] f32[]", reduce("{size=1x0}"), "below 1"),
    (
        "reduce-window",
        "f32[2,2] = f32[2,3] f32[]",
        reduce("{size=1x2 rhs_reversal=0x1}"),
        "reversed",
    ),
    ("reduce-window", "f32[2,3] = f32[2,3] f32[]", reduce("{size=1x2}"), "operands make [2,2]"),
    (
        "reduce-window",
        "f32[2,2] = f32[2,3] f32[1]",
        reduce("{size=1x2}"),
        "initial value is f32[1]",
    ),
    (
        "reduce-window",
        "f32[2,2] = f32[2,3] f32[]",
        reduce("{size=1x2}", 2),
        "region 2, there are 2",
    ),
    ("reduce-window", "f32[2,2] = f32[2,3] f32[]", reduce("{size=1x2}", 1), "does not fold"),
    ("reduce-window", "f32[2] f32[2] = f32[2] f32[3] f32[] f32[]", reduce("{size=1}"), "differ"),
    (
        "select-and-scatter",
        "f32[4] = f32[4] f32[2] f32[]",
        scatter("{size=2}"),
        "has [3] positions",
    ),
    ("select-and-scatter", "f32[4] = f32[4] s32[3] f32[]", scatter("{size=2}"), "source is s32[3]"),
    ("select-and-scatter", "f32[4] = f32[4] f32[3] s32[]", scatter("{size=2}"), "initial value is"),
    (
        "select-and-scatter",
        "f32[3] = f32[4] f32[3] f32[]",
        scatter("{size=2}"),
        "operands make [4]",
    ),
    ("select-and-scatter", "f32[4] = f32[4] f32[3] f32[]", scatter("{size=2}", 0), "does not fold"),
    ("select-and-scatter", "f32[4] = f32[4] f32[3] f32[]", scatter("{size=2}", 1, 1), "fold"),
    (
        "select-and-scatter",
        "f32[4] = f32[4] f32[2] f32[]",
        scatter("{size=2 rhs_dilate=2}"),
        "is dilated",
    ),
    ("select-and-scatter", "f32[4] = f32[4] f32[2] f32[]", scatter("{size=2x2}"), "1 dimensions"),
    ("fft", "c64[3] = f32[3]", fft("FFT", 3), "fft_type 'FFT' on f32"),
    ("fft", "c64[3] = c64[3]", fft("DCT", 3), "fft_type 'DCT' on c64"),
    ("fft", "c64[3] = c64[3]", fft("FFT", 3, 3), "fft_length is [3, 3] for c64[3]"),
    ("fft", "c64[3] = c64[3]", fft("FFT", 4), "does not end in fft_length [4]"),
    ("fft", "c64[8] = f32[8]", fft("RFFT", 8), "operands make [5]"),
    ("fft", "c128[5] = f32[8]", fft("RFFT", 8), "operands make c64"),
    ("cholesky", "f32[2,3] = f32[2,3]", {"lower": True}, "does not end in a square"),
    ("cholesky", "s32[3,3] = s32[3,3]", {"lower": True}, "not defined on s32"),
    ("cholesky", "f32[3,3] = f32[3,3]", {"lower": 1}, "lower is int, must be bool"),
    ("triangular-solve", "f32[3,2] = f32[3,2] f32[3,2]", solve(), "does not end in a square"),
    ("triangular-solve", "f32[2,3] = f32[3,3] f32[2,3]", solve(), "does not fit f32[2,3]"),
    ("triangular-solve", "f64[3,2] = f32[3,3] f64[3,2]", solve(), "does not fit f64[3,2]"),
    (
        "triangular-solve",
        "f32[3,2] = f32[3,3] f32[3,2]",
        solve(transpose_a="T"),
        "transpose_a is 'T'",
    ),
    ("rng-bit-generator", "u64[2] = u64[2]", {"algorithm": "rng_philox"}, "1 results, must be 2"),
    ("rng-bit-generator", "u64[3] u8[7] = u64[3]", {"algorithm": "rng_three_fry"}, "has no state"),
    (
        "rng-bit-generator",
        "u64[2] u8[7] = u64[2]",
        {"algorithm": "rng_dice"},
        "known: rng_three_fry",
    ),
    (
        "rng-bit-generator",
        "u64[3] u8[7] = u64[2]",
        {"algorithm": "rng_philox"},
        "operands make [2]",
    ),
    (
        "rng-bit-generator",
        "u64[2] f32[7] = u64[2]",
        {"algorithm": "rng_philox"},
        "must be integers",
    ),
]


@pytest.mark.parametrize(("opcode", "types", "attributes"), ACCEPTED)
def test_what_an_opcode_means_is_accepted(opcode: str, types: str, attributes: Attributes) -> None:
    assert breaches(signature(opcode, types, attributes, (SUM, NOT_LESS))) == []


@pytest.mark.parametrize(("opcode", "types", "attributes", "complaint"), REFUSED)
def test_types_that_do_not_agree_are_refused(
    opcode: str, types: str, attributes: Attributes, complaint: str
) -> None:
    found = breaches(signature(opcode, types, attributes, (SUM, NOT_LESS)))
    assert any(complaint in one for one in found), found
