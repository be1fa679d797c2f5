"""The host memory of a run, against what the host has free."""

from ncc_runtime.errors import InputError
from ncc_runtime.host_limits import free_bytes
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.options import FREE_SHARE, RunOptions


def check_budget(executable: Executable, options: RunOptions, held_bytes: int = 0) -> None:
    """Refuse a run whose arrays would not fit, before any is allocated.

    `held_bytes` are kept from an earlier run: the host has them no longer free.
    """
    if not options.values:
        return
    required = needed_bytes(executable, options)
    budget = budget_bytes(options, held_bytes)
    if budget is not None and required > budget:
        raise InputError(
            f"the values of {executable.ranks} ranks need {required} bytes of host memory and the "
            f"budget is {budget}; --no-values predicts the time without them, --memory raises it"
        )


def check_slice(required: int, options: RunOptions) -> None:
    """Refuse to compute trip counts if the slice of the program that they follow from won't fit."""
    budget = budget_bytes(options)
    if budget is not None and required > budget:
        raise InputError(
            f"what predicates follow from needs {required} bytes of host memory and the budget is "
            f"{budget}; --trip-count says how often a loop runs, --memory raises it"
        )


def budget_bytes(options: RunOptions, held_bytes: int = 0) -> int | None:
    """Host bytes that the run may take; None where it is not known."""
    if options.memory_bytes is not None:
        return options.memory_bytes
    free = free_bytes()
    return None if free is None else int((free + held_bytes) * FREE_SHARE)


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
