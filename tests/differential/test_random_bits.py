"""`rng-bit-generator` gives XLA's bits: tables made by XLA's CPU backend (jaxlib 0.10.2)."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.neff.shared.dtypes import DType
from tests.reference_runs import run_text

KEY, FULL = 0x0123456789ABCDEF, 2**64 - 2
STATES = {2: [KEY, FULL], 3: [KEY, FULL, 5]}
TABLES = [
    (
        "rng_three_fry",
        "u32[6]",
        [KEY, 1],
        [2968789339, 3784990900, 188576916, 2901984476, 2862930057, 1798685940],
    ),
    (
        "rng_three_fry",
        "u32[3,5]",
        [KEY, 7],
        [
            *(2968789339, 3784990900, 188576916, 2901984476, 2862930057),
            *(1973758215, 3554510355, 902882801, 2396094436, 2083461592),
            *(3732519869, 387185944, 2963079838, 2105865281, 1822680882),
        ],
    ),
    (
        "rng_three_fry",
        "u32[3,2]",
        [KEY, 1],
        [2968789339, 3784990900, 188576916, 2901984476, 2862930057, 1798685940],
    ),
    ("rng_three_fry", "u32[]", [KEY, FULL + 1], [2968789339]),
    (
        "rng_three_fry",
        "u64[3]",
        [KEY, 1],
        [16256412134126395739, 12463928418108273812, 7725297290937948297],
    ),
    ("rng_three_fry", "u8[5]", [KEY, 1], [91, 180, 148, 220, 137]),
    ("rng_three_fry", "u16[2,3]", [KEY, 1], [8539, 29844, 55433, 24756, 50396, 50420]),
    (
        "rng_philox",
        "u32[6]",
        [KEY, 0, 6],
        [2991864669, 3496577105, 3464049218, 340274284, 4029125062, 3927975662],
    ),
    (
        "rng_philox",
        "u64[2,3]",
        [KEY, 1, 6],
        [
            *(15017684316909222749, 1461466924913865282, 16870527011803075014),
            *(13940036665178798388, 7703966140085595377, 16007391673089120826),
        ],
    ),
    ("rng_philox", "u8[5]", [KEY, 0, 6], [93, 81, 66, 108, 198]),
    ("rng_philox", "u16[5]", [KEY, 0, 6], [15197, 34897, 12866, 11372, 37318]),
    ("rng_philox", "u4[5]", [KEY, 0, 6], [13, 1, 2, 12, 6]),
    (
        "rng_philox",
        "u32[5]",
        [KEY, 0],
        [172511636, 1103493126, 3598856174, 948282324, 1105943027],
    ),
    (
        "rng_default",
        "u32[5]",
        [KEY, 0],
        [172511636, 1103493126, 3598856174, 948282324, 1105943027],
    ),
    ("rng_default", "u64[]", [KEY, FULL + 1, 5], [15017684316909222749]),
    ("rng_philox", "u32[0]", [KEY, FULL, 5], []),
]
every_table = pytest.mark.parametrize(("algorithm", "kind", "after", "numbers"), TABLES)


def program(algorithm: str, kind: str, size: int) -> str:
    line = f"ROOT r = (u64[{size}], {kind}) rng-bit-generator(s), algorithm={algorithm}"
    return f"s = u64[{size}] parameter(0)\n{line}\n"


def state_of(size: int) -> np.ndarray:
    return np.array([STATES[size]], np.uint64)


@every_table
def test_the_executor_gives_the_bits_of_xla(algorithm, kind, after, numbers):
    neff = ncc_compiler.compile_text(program(algorithm, kind, len(after)))
    state, bits = ncc_runtime.load(neff).run([state_of(len(after))]).outputs
    assert state[0].tolist() == after
    assert bits[0].astype(np.uint64).ravel().tolist() == numbers


@every_table
def test_the_reference_gives_the_bits_of_xla(algorithm, kind, after, numbers):
    state, bits = run_text(program(algorithm, kind, len(after)), state_of(len(after)))
    assert state[0].tolist() == after
    assert bits[0].astype(np.uint64).ravel().tolist() == numbers


@pytest.mark.parametrize("kind", ["s8", "s16", "s32", "s64", "s4"])
def test_signed_numbers_have_the_bits_of_unsigned_ones(kind):
    signed, unsigned = (
        ncc_runtime.load(ncc_compiler.compile_text(program("rng_philox", f"{name}[9]", 2)))
        .run([state_of(2)])
        .outputs[1]
        for name in (kind, kind.replace("s", "u"))
    )
    mask = 2 ** DType(kind).bits - 1
    assert [int(x) & mask for x in signed[0]] == [int(x) & mask for x in unsigned[0]]


def test_ranks_with_other_states_get_other_bits():
    text = "HloModule m, num_partitions=3\n" + program("rng_three_fry", "u32[4,3]", 2)
    states = np.array([[KEY, 0], [KEY + 1, 0], [KEY, 6]], np.uint64)
    _, bits = ncc_runtime.load(ncc_compiler.compile_text(text)).run([states]).outputs
    _, wanted = run_text(text, states)
    np.testing.assert_array_equal(bits, wanted)
    assert len({row.tobytes() for row in bits}) == 3
