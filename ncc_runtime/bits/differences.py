"""How far two arrays of one type are apart: elements, absolute, relative, units of last place."""

from typing import Any

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels.numbers import total_order


@attrs.frozen
class BitDifference:
    """Between two results that should be one; elements of all ranks."""

    elements: int
    differing: int = 0  # whose bits differ
    absolute: float = 0.0  # the largest |a - b|, of finite numbers
    relative: float = 0.0  # the largest |a - b| / max(|a|, |b|)
    ulps: int = 0  # the largest number of steps from a to b through all numbers of the type
    not_finite: int = 0  # that differ, and are no number on one side or infinite; in none of these

    def joined(self, other: "BitDifference", times: int = 1) -> "BitDifference":
        """This and `times` others that are alike."""
        return BitDifference(
            self.elements + times * other.elements,
            self.differing + times * other.differing,
            max(self.absolute, other.absolute),
            max(self.relative, other.relative),
            max(self.ulps, other.ulps),
            self.not_finite + times * other.not_finite,
        )

    @property
    def text(self) -> str:
        """`12 of 64 elements differ, by at most 1.2e-07, 2.4e-07 relative, 3 ULPs`."""
        if not self.differing:
            return f"none of {self.elements} elements differs"
        text = (
            f"{self.differing} of {self.elements} elements differ, by at most {self.absolute:.3g}, "
            f"{self.relative:.3g} relative, {self.ulps} ULPs"
        )
        return f"{text}; {self.not_finite} not finite" if self.not_finite else text

    def as_json(self) -> dict[str, Any]:
        """Its figures by name."""
        return attrs.asdict(self)


def difference(one: np.ndarray, other: np.ndarray) -> BitDifference:
    """Between two arrays of one shape and type; of complex numbers the parts are compared."""
    if one.dtype.kind == "c":
        one, other = (np.ascontiguousarray(array).view(array.real.dtype) for array in (one, other))
    one, other = (np.ascontiguousarray(array).reshape(-1) for array in (one, other))
    carrier = np.dtype(f"u{one.dtype.itemsize}")
    at = np.flatnonzero(one.view(carrier) != other.view(carrier))
    if not len(at):
        return BitDifference(one.size)
    left, right = one[at], other[at]
    is_float = left.dtype.kind == "f" or "float" in left.dtype.name
    if not is_float:
        apart = np.array([abs(int(a) - int(b)) for a, b in zip(left, right, strict=True)])
        largest = np.array(
            [max(abs(int(a)), abs(int(b))) for a, b in zip(left, right, strict=True)]
        )
        relative = float(np.max(apart / np.maximum(largest, 1)))
        most = int(apart.max())
        return BitDifference(one.size, len(at), float(most), relative, most)
    wide = [array.astype(np.float64) for array in (left, right)]
    finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
    first, second = (array[finite] for array in wide)
    with np.errstate(over="ignore"):  # of numbers near the largest of 64 bits it is infinite
        apart = np.abs(first - second)
    scale = np.maximum(np.abs(first), np.abs(second))
    places = [total_order(array[finite]).astype(np.int64) for array in (left, right)]
    # as unsigned numbers, for the distance of two of 64 bits may take all of these
    steps = np.maximum(*places).view(np.uint64) - np.minimum(*places).view(np.uint64)
    return BitDifference(
        one.size,
        len(at),
        float(apart.max(initial=0.0)),
        float(np.max(apart / np.where(scale > 0, scale, 1.0), initial=0.0)),
        int(steps.max(initial=0)),
        int(np.count_nonzero(~finite)),
    )
