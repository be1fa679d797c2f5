"""What memory of the host a run would take."""

from ncc_runtime.errors import InputError
from ncc_runtime.free_memory import free_bytes
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.options import FREE_SHARE, RunOptions


def check_budget(executable: Executable, options: RunOptions, held_bytes: int = 0) -> None:
    """Refuse a run whose arrays would not fit, before any is allocated.

    `held_bytes` are kept from an earlier run: the host has them no longer free.
    """
    if not options.values:
        return
    need = needed_bytes(executable, options)
    budget = options.memory_bytes
    if budget is None:
        free = free_bytes()
        if free is None:
            return
        budget = int((free + held_bytes) * FREE_SHARE)
    if need > budget:
        raise InputError(
            f"the values of {executable.ranks} ranks need {need} bytes of host memory and the "
            f"budget is {budget}; --no-values predicts the time without them, --memory raises it"
        )


def needed_bytes(executable: Executable, options: RunOptions) -> int:
    """Host bytes of a run with values: every rank's memory, inputs and outputs beside it."""
    arena = executable.ranks * executable.hbm_bytes
    beside = sum(
        len(stage.ranks) * stage.program.tensors[tensor].size_bytes
        for stage in executable.stages
        for tensor in (*stage.program.inputs, *stage.program.outputs)
    )
    owners = arena * 4 if options.checked else 0  # one int32 a byte
    return arena + owners + beside
