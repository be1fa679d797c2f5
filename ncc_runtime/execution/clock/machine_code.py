"""The clock's kernel as machine code (`ncc_runtime/machine_code.py`), called on a ClockState.

What looks for the code is imported when it is needed: that takes longer than most runs of the
kernel without it (`uncompiled.py`).
"""

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

from ncc_runtime.execution.clock import kernel, max_min, tables
from ncc_runtime.execution.clock.tables import RECORDS, ClockState
from ncc_runtime.machine_code import MachineCode, Signatures

_KINDS = tuple(RECORDS.get(field, np.dtype(np.int64)) for field in ClockState._fields)
"""Of the tables of a ClockState, in order."""


def _signatures() -> Signatures:
    import numba

    state = ClockState(*(np.zeros(1, kind) for kind in _KINDS))
    return {kernel.run.__name__: (vars(numba)["typeof"](state),)}


CODE = MachineCode("clock", "the clock", (max_min, kernel), _signatures, sources=(tables,))


def run(machine: ClockState) -> int:
    """As `kernel.run`. The first call loads the machine code, or compiles it."""
    return _kernel()(machine)


@cache
def _kernel() -> Callable[[ClockState], int]:
    """`kernel.run` as a function of a ClockState, as numba passes it."""
    # for each array who counts it and its owner (nobody does), its length, the bytes of an item,
    # where it lies, its shape and its strides
    arguments = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 7 * len(_KINDS)
    address = CODE.addresses()[kernel.run.__name__]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *arguments)(address)

    def called(machine: ClockState) -> int:
        passed: list[int] = []
        for table, kind in zip(machine, _KINDS, strict=True):
            assert table.dtype == kind, "the machine code knows records of one kind"
            assert table.ndim == 1, "tables are lists of records"
            assert table.flags.c_contiguous, "records stand one after another"
            place = table.__array_interface__["data"][0]
            passed += [0, 0, len(table), table.itemsize, place, len(table), table.itemsize]
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        status = function(ctypes.addressof(result), ctypes.addressof(error), *passed)
        assert status == 0, "the kernel raises nothing"
        return result.value

    return called
