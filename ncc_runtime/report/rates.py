"""How often a program would run in a second, and how much of the matrix engines' peak it uses.

Utilisations are what the matrix products of the program take at the published peak of the element
type that has most of them, over the time that the run takes (Chowdhery et al., PaLM, 2022,
appendix B, from the program's own products instead of a formula for the model). Model flops leave
out what is computed a second time (`recomputed.py`), hardware flops count it; elementwise work
counts in neither.

    utilisation = flops of all ranks / (time x ranks x peak of one rank)
"""

import re
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.report.recomputed import CountedProduct, counted_products
from ncc_runtime.report.row_texts import program_of

MOST_WORK = 10**15
"""What one run may be said to do."""

_AMOUNT = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*"
_NOUNS = r"[^\W\d_][\w-]*(?: [^\W\d_][\w-]*)*"
_PER_STEP = re.compile(rf"\s*({_AMOUNT})(?:\s+({_NOUNS}))?\s*")
_COUNTED = frozenset({"step", "token"})
"""Units that other figures are told of, too; any amount of them is in the plural."""


@attrs.frozen
class PerStep:
    """What all ranks together do in one run: 8192 tokens, 32 sequences, 1 step."""

    amount: int = attrs.field(validator=[attrs.validators.ge(1), attrs.validators.le(MOST_WORK)])
    unit: str  #: in the plural

    @classmethod
    def parse(cls, text: str) -> "PerStep":
        """From `8192 tokens`; a number alone is of tokens. InputError for anything else."""
        match = _PER_STEP.fullmatch(text)
        if match is None:
            raise InputError(
                f"{text!r} is no amount and what it is of, as in '8192 tokens' or '32 sequences'"
            )
        digits = re.sub("[_,]", "", match[1]).lstrip("0")
        if len(digits) > len(str(MOST_WORK)) or not 1 <= int(digits or "0") <= MOST_WORK:
            raise InputError(f"{text!r}: the amount is from 1 to {MOST_WORK:,}")
        amount, unit = int(digits), match[2] or "tokens"
        if (amount == 1 and not unit.endswith("s")) or unit in _COUNTED:
            unit += "es" if unit.endswith(("ch", "sh", "x")) else "s"
        return cls(amount, unit)

    @property
    def is_of_steps(self) -> bool:
        """Whether it says how many steps one run is."""
        return self.unit == "steps"

    @property
    def text(self) -> str:
        """As it reads: `8,192 tokens`."""
        return f"{self.amount:,} {self.unit}"


def per_step_of(words: "str | int | PerStep | None") -> PerStep | None:
    """What one run does, from how it is said; InputError if it is not."""
    return PerStep.parse(str(words)) if isinstance(words, str | int) else words


@attrs.frozen
class Rates:
    """Of one run, of all ranks together.

    - `runs_per_s`: runs in a second, if the next began when this one ends
    - `flops_by_dtype`: of matrix products and convolutions, most first
    - `repeated_flops`: those of them that compute again what another has
    - `peak_flops_per_s`: of one rank, in the type that has most flops; 0 if there are none
    - `per_step`: what one run does, where that is known
    """

    runs_per_s: float
    ranks: int
    flops_by_dtype: dict[DType, int]
    repeated_flops: int
    peak_flops_per_s: int
    peak_source: str
    per_step: PerStep | None = None

    @property
    def flops(self) -> int:
        """Of all types, with what is computed again."""
        return sum(self.flops_by_dtype.values())

    @property
    def steps_per_s(self) -> float:
        """Steps in a second; one run is one step, unless it is said to be several."""
        return self.per_s("steps") or self.runs_per_s

    @property
    def model_flops_utilisation(self) -> float | None:
        """Of the peak of all ranks, without what is computed again; None without products."""
        return self._utilisation(self.flops - self.repeated_flops)

    @property
    def hardware_flops_utilisation(self) -> float | None:
        """Of the peak of all ranks, with what is computed again; None without products."""
        return self._utilisation(self.flops)

    def _utilisation(self, flops: int) -> float | None:
        if not self.flops:
            return None
        return flops * self.runs_per_s / (self.ranks * self.peak_flops_per_s)

    def per_s(self, unit: str) -> float | None:
        """How many of a unit in a second; None if it is another's or not known."""
        if self.per_step is None or self.per_step.unit != unit:
            return None
        return self.per_step.amount * self.runs_per_s

    def as_dict(self) -> dict[str, Any]:
        """The object `rates` of a run."""
        return rates_json(self)

    def __str__(self) -> str:
        return "\n".join(rates_lines(self))


def rates_of(trace: Trace, per_step: str | int | PerStep | None = None) -> Rates | None:
    """The rates of a run that takes time; `per_step` is what it does, on all ranks together."""
    if not trace.time_ps:
        return None
    executable = trace.executable
    flops, repeated = _flops_of(trace)
    peak, source = 0, ""
    if sum(flops.values()):
        dtype = next(iter(flops))
        topology = executable.topology
        peak = TimingModel.from_topology(topology).work_per_s(Engine.TENSOR, dtype)
        figure = topology.figures.get(f"engine.Tensor.flops_per_s.{dtype.value}")
        source = "" if figure is None else figure.source
    return Rates(
        runs_per_s=PS_PER_S / trace.time_ps,
        ranks=executable.ranks,
        flops_by_dtype=flops,
        repeated_flops=repeated,
        peak_flops_per_s=peak,
        peak_source=source,
        per_step=per_step_of(per_step),
    )


def _flops_of(trace: Trace) -> tuple[dict[DType, int], int]:
    """Flops of all products by type, most first, and of those that are computed again."""
    executable = trace.executable
    instances = executable.ranks // executable.representatives  # each does as much
    flops, repeated = dict[DType, int](), 0
    products: dict[int, dict[tuple[Engine, int], tuple[CountedProduct, ...]]] = {}  # by program
    for number, events in trace.blocks(trace.queues_of(EngineQueue)):
        queue = executable.queues[number]
        assert isinstance(queue, EngineQueue)
        program = program_of(executable, queue)
        if id(program) not in products:
            products[id(program)] = counted_products(program)
        rows, times = np.unique(trace.row[events], return_counts=True)
        for row, count in zip(rows.tolist(), times.tolist(), strict=True):
            for one in products[id(program)].get((queue.engine, row), ()):
                work = count * instances * one.product.flops
                flops[one.product.dtype] = flops.get(one.product.dtype, 0) + work
                repeated += work * one.is_repeated
    return dict(sorted(flops.items(), key=lambda item: -item[1])), repeated


def rates_json(rates: Rates) -> dict[str, Any]:
    """The object `rates` of a run."""
    per_step = rates.per_step
    return {
        "steps_per_s": rates.steps_per_s,
        "tokens_per_s": rates.per_s("tokens"),
        "per_step": None
        if per_step is None
        else {
            "amount": per_step.amount,
            "unit": per_step.unit,
            "per_s": rates.per_s(per_step.unit),
        },
        "matrix_flops": rates.flops,
        "repeated_matrix_flops": rates.repeated_flops,
        "matrix_flops_by_dtype": {
            dtype.value: flops for dtype, flops in rates.flops_by_dtype.items()
        },
        "peak_dtype": next((dtype.value for dtype in rates.flops_by_dtype if rates.flops), None),
        "peak_flops_per_s_of_a_rank": rates.peak_flops_per_s or None,
        "peak_source": rates.peak_source or None,
        "model_flops_utilisation": rates.model_flops_utilisation,
        "hardware_flops_utilisation": rates.hardware_flops_utilisation,
    }


def rates_lines(rates: Rates) -> Iterator[str]:
    """Steps in a second, then the utilisation where there are matrix products."""
    per_step, of_what = rates.per_step, ""
    run = "a step"
    if per_step is not None and not per_step.is_of_steps:
        run += f" of {per_step.text}"
        of_what = f", {rates.per_s(per_step.unit):,.1f} {per_step.unit}/s"
    elif per_step is not None and per_step.amount > 1:
        run = per_step.text
    yield f"{rates.steps_per_s:,.3f} steps/s, where one run is {run}{of_what}"
    model, hardware = rates.model_flops_utilisation, rates.hardware_flops_utilisation
    if model is None or hardware is None:
        return
    again = ""
    if rates.repeated_flops:
        again = (
            f"; hardware flops utilisation {_share(hardware)} with "
            f"{_flops(rates.repeated_flops / rates.ranks)} computed again"
        )
    dtypes = list(rates.flops_by_dtype)
    mixed = [
        f"{rates.flops_by_dtype[dtype] / rates.flops:.1%} of the flops are {dtype.value}"
        for dtype in dtypes[1:]
        if rates.flops_by_dtype[dtype]
    ]
    once = (rates.flops - rates.repeated_flops) / rates.ranks
    yield (
        f"model flops utilisation {_share(model)}: matrix products of {_flops(once)} a "
        f"rank, whose peak in {dtypes[0].value} is {_flops(rates.peak_flops_per_s)}/s{again}"
        f"{''.join(f'; {text}' for text in mixed)}"
    )


def _share(part: float) -> str:
    return f"{part:.1%}" if part >= 0.001 else "less than 0.1%"


def _flops(amount: float) -> str:
    """With a prefix, four digits."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= size:
            return f"{amount / size:.4g} {prefix}flop"
    return f"{amount:.4g} flop"
