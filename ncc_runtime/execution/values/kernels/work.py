"""One instruction as kernels see it, what a kernel is, and memory that a thread uses again."""

import math
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

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


class KernelInto(Protocol):
    """A kernel that may write its result into memory that is given, and is no operand's."""

    def __call__(
        self, call: KernelCall, operands: Arrays, out: np.ndarray | None = None, /
    ) -> Arrays: ...


class ThreadMemory(threading.local):
    """Memory for what a thread computes on the way: to find new pages takes the system time."""

    memory: np.ndarray = np.empty(0, np.uint8)

    def of(self, size: int) -> np.ndarray:
        """At least so many bytes; what they hold is undefined."""
        if len(self.memory) < size:
            self.memory = np.empty(size, np.uint8)
        return self.memory

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array in it."""
        size = math.prod(shape) * dtype.itemsize
        return self.of(size)[:size].view(dtype).reshape(shape)
