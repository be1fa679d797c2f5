"""Kernels with their machine code from the first element, and without any."""

import pytest

from ncc_runtime.execution.values.kernels import compiled
from ncc_runtime.machine_code import MachineCode

WAYS = ("machine code", "numpy")


def compute_by(way: str, patch: pytest.MonkeyPatch) -> None:
    """Let kernels use machine code wherever there is some, or nowhere."""
    if way == "machine code":
        compiled.CODE.addresses()
        patch.setattr(compiled, "LEAST", 0)
    else:
        patch.setattr(MachineCode, "is_loaded", False)
        patch.setattr(compiled, "ELEMENTS_IF_KEPT", 1 << 62)
