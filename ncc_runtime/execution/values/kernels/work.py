"""One instruction as kernels see it, and what a kernel is."""

from collections.abc import Callable, Mapping

import attrs
import numpy as np

from ncc_runtime.neff.program import AttributeValue, Program, Region, Typed


@attrs.frozen(eq=False)
class KernelCall:
    """One instruction on some ranks: what a kernel needs beside its operands."""

    program: Program
    opcode: str
    attributes: Mapping[str, AttributeValue]
    results: tuple[Typed, ...]
    ranks: np.ndarray  # (r,) int32

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        value = self.attributes[name]
        assert isinstance(value, tuple), f"{self.opcode}.{name} is {value!r}"
        return value

    def integer(self, name: str) -> int:
        """An attribute that is one integer."""
        value = self.attributes[name]
        assert isinstance(value, int), f"{self.opcode}.{name} is {value!r}"
        return value

    def region(self, name: str = "region") -> Region:
        """The region that an attribute names."""
        return self.program.regions[self.integer(name)]


Arrays = list[np.ndarray]
Kernel = Callable[[KernelCall, Arrays], Arrays]
"""Results, each [ranks, *shape], from operands of that form."""
