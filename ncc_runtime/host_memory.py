"""The host memory of a run, against what the host has free."""

from typing import Any

import attrs

from ncc_runtime.errors import InputError
from ncc_runtime.host_limits import free_bytes
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.memory import size_text
from ncc_runtime.options import FREE_SHARE, RunOptions

BESIDE_BYTES = 56 << 20
"""What a run takes beside its arrays: libraries that values need, pages that are taken in part. Of
it llvmlite with the machine code of kernels is 50 MiB, loaded where that pays."""

SHOWN_BYTES = 1 << 30
"""From here on the text of a run says what it needs; `--json` always does."""


@attrs.frozen
class HostMemory:
    """Host memory that the values of a run take at their height, in bytes, worked out before it.

    - `ranks`: the memory of the virtual devices, as far as the run writes it
    - `inputs`: arrays that are drawn, loaded, converted or cut; not those that the caller has
    - `outputs`: arrays that the caller gets; ranks with equal ones share one
    - `scratch`: what is computed on the way, on all threads, and what is small
    - `budget`: what it may take; None where the system does not say what is free
    - `processes`: what each process of the run needs; the other figures are those of this one
    """

    ranks: int
    inputs: int
    outputs: int
    scratch: int
    budget: int | None = None
    processes: tuple[int, ...] = ()

    @property
    def needed(self) -> int:
        """All of it."""
        return self.ranks + self.inputs + self.outputs + self.scratch

    def as_json(self) -> dict[str, Any]:
        """The object that `nccrt run --json` prints."""
        found = {"needed": self.needed, **attrs.asdict(self)}
        if not self.processes:
            del found["processes"]
        return found

    def __str__(self) -> str:
        """`host memory 3.2 GiB for values: ranks 2.0 GiB, inputs …; it may take 18.1 GiB`."""
        parts = [
            f"{name} {size_text(getattr(self, name))}"
            for name in ("ranks", "inputs", "outputs", "scratch")
        ]
        several = len(self.processes)
        whose = f" of each of {several} processes" if several else ""
        may = "" if self.budget is None else f"; it may take {size_text(self.budget)}"
        most = size_text(max(self.needed, *self.processes) if several else self.needed)
        return f"host memory {most}{whose} for values: {', '.join(parts)}{may}"

    def check(self, ranks: int) -> None:
        """Refuse a run whose arrays would not fit, before any is allocated."""
        if self.budget is not None and self.needed > self.budget:
            raise InputError(
                f"the values of {ranks} ranks need {self.needed} bytes of host memory and the "
                f"budget is {self.budget}; --no-values predicts the time without them, --memory "
                "raises it, and several processes share them (docs/processes.md)"
            )


def check_slice(required: int, options: RunOptions) -> None:
    """Refuse to compute trip counts if the slice of the program that they follow from won't fit."""
    budget = budget_bytes(options)
    if budget is not None and required > budget:
        raise InputError(
            f"what predicates follow from needs {required} bytes of host memory and the budget is "
            f"{budget}; --trip-count says how often a loop runs, --memory raises it"
        )


def budget_bytes(options: RunOptions, held_bytes: int = 0, processes: int = 1) -> int | None:
    """Host bytes that the run may take in this process; None where it is not known.

    `held_bytes` are kept from an earlier run: the host has them no longer free. `processes` of the
    run share the host.
    """
    if options.memory_bytes is not None:
        return options.memory_bytes
    free = free_bytes(processes)
    return None if free is None else int((free + held_bytes) * FREE_SHARE)


def literal_memory(executable: Executable, options: RunOptions) -> HostMemory:
    """Of a run that performs every row, as runs with faults do: every rank's memory is written."""
    inputs = outputs = 0
    for stage in executable.stages:
        tensors, ranks = stage.program.tensors, len(stage.ranks)
        inputs += ranks * sum(tensors[tensor].size_bytes for tensor in stage.program.inputs)
        outputs += ranks * sum(tensors[tensor].size_bytes for tensor in stage.program.outputs)
    arena = executable.ranks * executable.hbm_bytes
    return HostMemory(arena, inputs, outputs, BESIDE_BYTES, budget_bytes(options))
