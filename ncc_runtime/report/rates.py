"""How often a program would run in a second, and how much of the matrix engines' peak it uses.

Model flops utilisation is what the matrix products of the program take at the published peak of
the element type that has most of them, over the time that the run takes (Chowdhery et al., PaLM,
2022, appendix B, from the program's own products instead of a formula for the model): products that
are computed a second time to save memory count again, and elementwise work does not count.

    utilisation = flops of all ranks / (time x ranks x peak of one rank)
"""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from ncc_runtime.execution.clock.costs import instruction_dtype
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel
from ncc_runtime.neff.isa import OPCODES, Engine, Shape
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.report.row_texts import program_of


@attrs.frozen
class Rates:
    """Of one run, of all ranks together."""

    steps_per_s: float  # runs in a second
    flops_by_dtype: dict[DType, int]  # of matrix products and convolutions, most first
    peak_flops_per_s: int  # of one rank, in the type that has most flops; 0: there are none
    peak_source: str
    utilisation: float | None
    tokens_per_s: float | None  # where it is known how many a run has

    @property
    def flops(self) -> int:
        return sum(self.flops_by_dtype.values())


def rates_of(trace: Trace, tokens: int | None = None) -> Rates | None:
    """The rates of a run that takes time; `tokens` are those of one run, on all ranks."""
    if not trace.time_ps:
        return None
    executable = trace.executable
    instances = executable.ranks // executable.representatives  # each does as much
    flops: dict[DType, int] = {}
    contracts = {name for name, row in OPCODES.items() if row.shape is Shape.CONTRACT}
    multiplying = [
        number
        for number in trace.queues_of(EngineQueue)
        if isinstance(queue := executable.queues[number], EngineQueue)
        and contracts.intersection(queue.table.opcode_names)
    ]
    for number, events in trace.blocks(multiplying):
        queue = executable.queues[number]
        assert isinstance(queue, EngineQueue)
        table, program = queue.table, program_of(executable, queue)
        is_product = np.isin(table.opcode_names, list(contracts))[table.opcode]
        rows, times = np.unique(trace.row[events], return_counts=True)
        rows, times = rows[is_product[rows]], times[is_product[rows]]
        for row, count in zip(rows.tolist(), times.tolist(), strict=True):
            dtype = instruction_dtype(program, table, row)
            assert dtype is not None, "matrix products have operands"
            flops[dtype] = flops.get(dtype, 0) + count * instances * int(table.flops[row])
    flops = dict(sorted(flops.items(), key=lambda item: -item[1]))
    steps_per_s = PS_PER_S / trace.time_ps
    peak, source, share = 0, "", None
    if total := sum(flops.values()):
        dtype = next(iter(flops))
        topology = executable.topology
        peak = TimingModel.from_topology(topology).work_per_s(Engine.TENSOR, dtype)
        figure = topology.figures.get(f"engine.Tensor.flops_per_s.{dtype.value}")
        source = "" if figure is None else figure.source
        share = total * steps_per_s / (executable.ranks * peak)
    return Rates(
        steps_per_s=steps_per_s,
        flops_by_dtype=flops,
        peak_flops_per_s=peak,
        peak_source=source,
        utilisation=share,
        tokens_per_s=None if tokens is None else tokens * steps_per_s,
    )


def rates_json(rates: Rates) -> dict[str, Any]:
    """The object `rates` of a run."""
    return {
        "steps_per_s": rates.steps_per_s,
        "tokens_per_s": rates.tokens_per_s,
        "matrix_flops": rates.flops,
        "matrix_flops_by_dtype": {
            dtype.value: flops for dtype, flops in rates.flops_by_dtype.items()
        },
        "peak_dtype": next((dtype.value for dtype in rates.flops_by_dtype if rates.flops), None),
        "peak_flops_per_s_of_a_rank": rates.peak_flops_per_s or None,
        "peak_source": rates.peak_source or None,
        "model_flops_utilisation": rates.utilisation,
    }


def rates_lines(rates: Rates, ranks: int) -> Iterator[str]:
    """Steps in a second, then the utilisation where there are matrix products."""
    tokens = "" if rates.tokens_per_s is None else f", {rates.tokens_per_s:,.1f} tokens/s"
    yield f"{rates.steps_per_s:,.3f} steps/s, where one run is a step{tokens}"
    if rates.utilisation is None:
        return
    dtypes = list(rates.flops_by_dtype)
    mixed = [
        f"{rates.flops_by_dtype[dtype] / rates.flops:.1%} of the flops are {dtype.value}"
        for dtype in dtypes[1:]
        if rates.flops_by_dtype[dtype]
    ]
    share = f"{rates.utilisation:.1%}" if rates.utilisation >= 0.001 else "less than 0.1%"
    yield (
        f"model flops utilisation {share}: matrix products of {_flops(rates.flops / ranks)} a "
        f"rank, whose peak in {dtypes[0].value} is {_flops(rates.peak_flops_per_s)}/s"
        f"{''.join(f'; {text}' for text in mixed)}"
    )


def _flops(amount: float) -> str:
    """With a prefix, four digits."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= size:
            return f"{amount / size:.4g} {prefix}flop"
    return f"{amount:.4g} flop"
