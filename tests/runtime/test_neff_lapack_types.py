"""Signatures of routines of linear algebra that a file must not have, and what is said of them."""

import pytest

import ncc_compiler
from ncc_runtime.neff.program import AttributeValue, BufferId, Tensor
from ncc_runtime.neff.rules.signature import Signature
from ncc_runtime.neff.rules.types import type_breaches
from ncc_runtime.neff.shared.dtypes import DType
from tests.lapack_calls import calls


def tensors(text: str) -> tuple[Tensor, ...]:
    """`f32[2,3] s32[]` as tensors."""
    found = []
    for one in text.split():
        name, _, inside = one.rstrip("]").partition("[")
        shape = tuple(map(int, inside.split(","))) if inside else ()
        found.append(Tensor("t", BufferId(0), DType(name), shape))
    return tuple(found)


def breaches(operands: str, results: str, **attributes: AttributeValue) -> list[str]:
    return [*type_breaches(Signature("lapack", tensors(results), tensors(operands), attributes))]


@pytest.mark.parametrize(
    ("operands", "results", "attributes", "said"),
    [
        ("f32[3,3]", "f32[3,3] s32[]", {"routine": "potrs"}, "routine is 'potrs', known: potrf"),
        ("f32[3,3]", "f32[3,3] s32[]", {"routine": "potrf"}, "uplo of potrf is None"),
        ("f32[3,3]", "f32[3,3] s32[]", {"routine": "potrf", "uplo": "LU"}, "uplo of potrf is 'LU'"),
        ("f32[3,3]", "f32[3,3] f32[3]", {"routine": "geqrf", "uplo": "L"}, "no option uplo"),
        ("f32[3,2]", "f32[3,2] s32[]", {"routine": "potrf", "uplo": "L"}, "must be [3,3]"),
        ("f32[3]", "f32[3] f32[3]", {"routine": "geqrf"}, "must be [m,n]"),
        ("bf16[3,3]", "bf16[3,3] bf16[3]", {"routine": "geqrf"}, "not defined for bf16"),
        ("f32[3,2]", "f32[3,2] f32[3]", {"routine": "geqrf"}, "gives (f32[3,2], f32[2])"),
        ("f32[2,3] f32[2]", "f32[2,3]", {"routine": "orgqr"}, "reflectors <= columns <= rows"),
        ("f32[3,3] f64[2]", "f32[3,3]", {"routine": "orgqr"}, "must be of f32"),
        ("f32[2,3,3] f32[1,2]", "f32[2,3,3]", {"routine": "orgqr"}, "must be [2,k]"),
        (
            "f32[3,2] f32[2] f32[4,4]",
            "f32[4,4]",
            {"routine": "ormqr", "side": "L", "trans": "N"},
            "do not fit a side of 4",
        ),
        (
            "f32[3,3]",
            "f32[3,3] f32[2] s32[]",
            {"routine": "gehrd", "ilo": 1, "ihi": 4},
            "ilo 1 and ihi 4 for a size of 3",
        ),
    ],
)
def test_a_signature_that_no_routine_has_is_refused(
    operands: str, results: str, attributes: dict[str, AttributeValue], said: str
) -> None:
    [found] = breaches(operands, results, **attributes)
    assert said in found


@pytest.mark.parametrize("vectors", ["f32[3,3] f32[2,2]", "f32[3,2] f32[2,2]"])
def test_room_for_vectors_that_are_not_computed_is_of_either_size(vectors: str) -> None:
    results = f"f32[3,2] f32[2] {vectors} s32[]"
    assert not breaches("f32[3,2]", results, routine="gesdd", jobz="N")


def test_the_clock_counts_multiplications_and_additions_of_every_matrix() -> None:
    """On matrices of 5 x 5, three of them: half the flops, and the elements that are written."""
    wanted = {
        "potrf": (125 // 3, 3 * 25 + 3),
        "geqrf": (2 * 125 - 2 * 125 // 3, 3 * 25 + 3 * 5),
        "hetrd": (4 * 125 // 3, 3 * (25 + 5 + 4 + 4 + 1)),
        "gehrd": (10 * 125 // 3, 3 * (25 + 4 + 1)),
    }
    for routine, (flops, written) in wanted.items():
        fits = [one for one in calls("c", (3,)) if one.name.startswith(f"{routine} ")]
        [text, *_] = [one.text for one in fits if "5,5" in one.text]
        [row] = [
            table[pc]
            for table in ncc_compiler.compile_text(text).program.queues.values()
            for pc, name in enumerate(table.names())
            if name == "lapack"
        ]
        assert row.elements == 3 * flops // 2 + written
