"""Loops that become machine code: every index is one of the array's, from the start."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ncc_runtime.execution.values.kernels import compiled, loops
from ncc_runtime.execution.values.kernels.conversions import byte_tables
from ncc_runtime.neff.shared.dtypes import DType

COUNT = 300
E5M2 = byte_tables(DType.F8E5M2.numpy)
E8M0 = byte_tables(DType.F8E8M0FNU.numpy)


class Checked:
    """An array, or rows, as a pointer to it is used: it takes no index from the end, nor beyond."""

    def __init__(self, elements: Any) -> None:
        self.elements = elements

    def __getitem__(self, at: int) -> Any:
        assert 0 <= at < len(self.elements), at
        return self.elements[at]

    def __setitem__(self, at: int, element: Any) -> None:
        assert 0 <= at < len(self.elements), at
        self.elements[at] = element


def numbers(kind: str) -> np.ndarray:
    """Any bits, so NaNs, infinities and negative numbers too."""
    raw = np.random.default_rng(0).integers(0, 256, COUNT * np.dtype(kind).itemsize, np.uint8)
    return raw.view(kind)


def both_ways(name: str, arguments: Sequence[Any]) -> None:
    """Performed in Python on checked arrays, and as machine code; they must leave the same bits."""
    own = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
    checked = [Checked(one) if isinstance(one, np.ndarray) else one for one in own]
    with np.errstate(all="ignore"):
        getattr(loops, name)(*checked)
    run(name)(*arguments)
    for one, other in zip(own, arguments, strict=True):
        if isinstance(one, np.ndarray):
            assert one.tobytes() == other.tobytes()


def run(name: str) -> Callable[..., None]:
    compiled.CODE.addresses()
    found = compiled.loop(name, compiled.LEAST)
    assert found is not None
    return found


def conditions() -> np.ndarray:
    return numbers("u1") & np.uint8(1)


def selections(kind: str, name: str) -> dict[str, tuple[str, list[Any]]]:
    return {
        f"{name}, steps {step} {other}": (
            name,
            [
                conditions(),
                numbers(kind)[: COUNT if step else 1],
                step,
                numbers(kind)[::-1].copy()[: COUNT if other else 1],
                other,
                np.zeros(COUNT, kind),
                COUNT,
            ],
        )
        for step in (0, 1)
        for other in (0, 1)
    }


def empty(kind: str) -> np.ndarray:
    return np.zeros(COUNT, kind)


CASES: dict[str, tuple[str, list[Any]]] = {
    one[0]: one
    for one in (
        ("widen_bfloat16", [numbers("u2"), empty("f4"), COUNT]),
        ("widen_float16", [numbers("u2"), empty("f4"), COUNT]),
        ("widen_byte", [numbers("u1"), empty("f4"), E5M2.widened, COUNT]),
        ("narrow_bfloat16", [numbers("f4"), empty("u2"), COUNT, 1]),
        ("narrow_float16", [numbers("f4"), empty("u2"), COUNT, 1]),
        ("narrow_byte", [numbers("f4"), empty("u1"), E5M2.narrowed.view(np.uint8), COUNT]),
        ("round_to_bfloat16", [numbers("f4"), COUNT]),
        ("round_to_float16", [numbers("f4"), COUNT]),
        ("round_to_byte", [numbers("f4"), E5M2.rounded, E5M2.limits, COUNT]),
        ("maximum_float32", [numbers("f4"), numbers("f4")[::-1].copy(), COUNT]),
        ("minimum_float32", [numbers("f4"), numbers("f4")[::-1].copy(), COUNT]),
        ("maximum_float64", [numbers("f8"), numbers("f8")[::-1].copy(), COUNT]),
        ("minimum_float64", [numbers("f8"), numbers("f8")[::-1].copy(), COUNT]),
    )
}
for _rows, _size in ((1, 300), (3, 100), (2, 129), (37, 8), (300, 1), (60, 5), (4, 0)):
    _stack = np.zeros(loops.STACK_WORDS, np.int64)
    CASES[f"sum_rows {_rows} {_size}"] = (
        "sum_rows",
        [numbers("f4"), empty("f4"), _rows, _size, _stack],
    )
    for _name in ("largest_of_rows", "smallest_of_rows") if _size else ():
        arguments = [numbers("u4"), empty("u4"), _rows, _size]
        CASES[f"{_name} {_rows} {_size}"] = (_name, arguments)
    _room = np.zeros(_size + 1, np.float32)
    for _name, *_more in (
        ("sum_rows_of_bfloat16", _room),
        ("largest_of_bfloat16_rows",),
        ("smallest_of_bfloat16_rows",),
    ):
        if _size:
            arguments = [numbers("u2"), empty("u2"), _rows, _size, *_more]
            CASES[f"{_name} {_rows} {_size}"] = (_name, arguments)
_TARGETS = np.random.default_rng(1).integers(0, 20, 100)
for _join in (loops.ADD, loops.MULTIPLY, loops.MAXIMUM, loops.MINIMUM):
    _given = [_join, numbers("f4")[:60].copy(), 20, 3, _TARGETS, numbers("f4"), 100]
    _lists = [np.full(20, loops.NOTHING), np.full(100, loops.NOTHING)]
    _partial = [np.zeros(7 * 3, np.float32), np.zeros(7, np.int64)]
    CASES[f"join_updates {_join}"] = ("join_updates", [*_given, *_lists, *_partial])
CASES["round_to_byte by table"] = (
    "round_to_byte",
    [numbers("f4"), E8M0.rounded, E8M0.limits, COUNT],
)
for _size, _kind in ((1, "u1"), (2, "u2"), (4, "u4"), (8, "i8")):
    CASES |= selections(_kind, f"select_{_size}")


@pytest.mark.parametrize("case", CASES)
def test_a_loop_takes_no_index_that_its_arrays_have_not(case: str) -> None:
    name, arguments = CASES[case]
    both_ways(name, arguments)


@pytest.mark.parametrize("kind", [loops.BFLOAT16, loops.FLOAT16, loops.BYTE])
@pytest.mark.parametrize("join", [loops.ADD, loops.MULTIPLY, loops.MAXIMUM, loops.MINIMUM])
def test_a_sum_of_leaves_and_registers_takes_none_either(
    kind: int, join: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step reads leaves by their numbers and registers by ~number, here over several tiles."""
    steps = np.array([0, 1, 2, 0, 1, 1, 1, 2, 2, ~0, 0, 2, 3, ~1, 0, ~0], np.int64)
    monkeypatch.setattr(loops, "TILE", 128)  # of the loop in Python; it has the same bits
    of_bytes, of_halves = np.array([numbers("u1")] * 3), np.array([numbers("u2")] * 3)
    tables = (E5M2.widened, E5M2.canonical.view(np.uint8), E5M2.rounded, E5M2.limits)
    found: list[list[np.ndarray]] = []
    for way in ("python", "machine code"):
        results, registers = [empty("u1"), empty("u2")], np.zeros((3, loops.TILE), np.float32)
        if way == "python":
            rows = [Checked([Checked(row) for row in some]) for some in (of_bytes, of_halves)]
            places = [Checked(one) for one in results]
            memory: Any = Checked([Checked(row) for row in registers])
            plain: list[Any] = [Checked(table) for table in tables]
            with np.errstate(all="ignore"):
                loops.evaluate(
                    kind, join, Checked(steps), 3, COUNT, *rows, *places, memory, 2, *plain
                )  # type: ignore[arg-type]
        else:
            large = np.zeros((3, 32768), np.float32)
            run("evaluate")(
                kind,
                join,
                steps,
                3,
                COUNT,
                *(compiled.pointers(some) for some in (of_bytes, of_halves)),
                *results,
                compiled.pointers(large),
                2,
                *tables,
            )
        found.append(results)
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


def test_arrays_are_pointers_of_which_numba_takes_indices_as_they_are() -> None:
    """So what is asked of other indices, whether they count from the end, is not asked here."""
    from numba import types

    arguments = {one for signature in compiled._signatures().values() for one in signature}
    assert all(isinstance(one, (types.Integer, types.CPointer)) for one in arguments)
