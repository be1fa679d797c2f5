"""The loops of `loops.py` as machine code, and when that is worth having.

To load the machine code takes as long as numpy takes for some millions of elements, and to compile
it, once on a machine, as long as for some thousand millions. So a process begins with numpy, whose
results have the same bits, and goes over to machine code when it has computed as many elements as
would have paid for it: at worst it takes twice as long as if it had known.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import get_annotations
from typing import Any

import numpy as np

from ncc_runtime.execution.values.kernels import loops
from ncc_runtime.machine_code import MachineCode, Signatures

ELEMENTS_IF_KEPT, ELEMENTS_IF_NOT = 10_000_000, 1_000_000_000
"""Elements of a process without machine code, where that lies on disk and where it does not: about
0.05 s and 5 s (`benchmarks/first_run.py`)."""

LEAST = 2048
"""Fewer elements are quicker with numpy: to call a loop takes 2 us."""

_ENTRIES = {
    name: tuple(get_annotations(function).values())[:-1]
    for name, function in vars(loops).items()
    if callable(function) and getattr(function, "__module__", "") == loops.__name__
    if not name.startswith("_")
}
"""Annotations of the arguments, by loop."""


def _signatures() -> Signatures:
    from numba import types

    def type_of(annotation: Any) -> Any:
        if annotation is int:
            return types.int64
        pointer: Callable[[Any], Any] = types.CPointer
        name, *rows = annotation.__metadata__
        elements = pointer(getattr(types, name))
        return pointer(elements) if rows else elements

    return {name: tuple(map(type_of, arguments)) for name, arguments in _ENTRIES.items()}


CODE = MachineCode("kernels", "the kernels", (loops,), _signatures)

Loop = Callable[..., None]
"""Called with arrays, which must be contiguous and of its types, and whole numbers."""


class _Unpaid:
    elements = 0  # of this process, computed without machine code
    loading = threading.Lock()


def loop(name: str, elements: int) -> Loop | None:
    """A loop, for so many elements; None if numpy is to be used."""
    if elements < LEAST:
        return None
    if not CODE.is_loaded:
        _Unpaid.elements += elements
        if _Unpaid.elements < ELEMENTS_IF_KEPT:
            return None
        if _Unpaid.elements < ELEMENTS_IF_NOT and not CODE.is_kept:
            return None
        if not _Unpaid.loading.acquire(blocking=False):
            return None  # another thread loads it; this one does not wait
        try:
            CODE.addresses()
        finally:
            _Unpaid.loading.release()
    return _loops()[name]


@cache
def _loops() -> Mapping[str, Loop]:
    return {name: _called(address, _ENTRIES[name]) for name, address in CODE.addresses().items()}


_RESULT, _ERROR = ctypes.c_int64(), ctypes.c_void_p()
"""Where loops would write a result, and an exception: none has any."""


def _called(address: int, arguments: tuple[Any, ...]) -> Loop:
    kinds = [ctypes.c_int64 if each is int else ctypes.c_void_p for each in arguments]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)(address)
    unused = ctypes.addressof(_RESULT), ctypes.addressof(_ERROR)

    def call(*given: np.ndarray | int) -> None:
        function(
            *unused,
            *(
                each if isinstance(each, int) else each.__array_interface__["data"][0]
                for each in given
            ),
        )

    return call


def pointers(arrays: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Where contiguous arrays lie, for a loop that takes rows."""
    assert all(array.flags.c_contiguous for array in arrays), "rows are contiguous"
    return np.array([array.__array_interface__["data"][0] for array in arrays], np.uint64)
