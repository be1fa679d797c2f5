"""Stragglers by name: ranks that are slow or launch late, by a number or drawn for each.

    rank * late by exponential(20us)       rank 3 slow by 2       rank 0-7 slow by lognormal(1, 0.3)

`slow by` says how many times as long the engines of a rank take, 1 at least; `late by` how much
later than the others the host launches it. Every draw is by a seed, rank by rank in order.
"""

import enum
import math
import re
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.disturbance import FULL_SPEED, Disturbance, QueueSpeed
from ncc_runtime.faults.kth_of_n import expected_kth
from ncc_runtime.lowering.executable import EngineQueue, Executable

_UNITS_PS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
_MOST_PS = 10**15  # a quarter of an hour, far from where times no longer add up
_NUMBER = r"\d{1,15}(?:\.\d{1,9})?(?:e-?\d{1,2})?"
_FAULT = re.compile(
    rf"rank (?P<ranks>\*|\d{{1,7}}(?:-\d{{1,7}})?) (?P<kind>slow|late) by "
    rf"(?:(?P<law>[a-z]+)\((?P<words>[^()]*)\)|(?P<number>{_NUMBER}\s*(?:[numkp]?s)?))"
)
_EXAMPLE = "such as rank * late by exponential(20us), rank 3 slow by 2"


class StragglerLaw(enum.Enum):
    """Distributions, and the parameters that they have."""

    EXACTLY = ("exactly", 1)  # the number
    UNIFORM = ("uniform", 2)  # least, most
    EXPONENTIAL = ("exponential", 1)  # mean of what is added to not being late or slow
    NORMAL = ("normal", 2)  # mean, standard deviation; below the floor it counts as the floor
    LOGNORMAL = ("lognormal", 2)  # median, standard deviation of the logarithm
    PARETO = ("pareto", 2)  # least, exponent of the tail


@attrs.frozen
class Straggler:
    """One fault: which ranks, what, and how much."""

    text: str
    ranks: tuple[int, int] | None  # first and last; None: all
    is_late: bool
    law: StragglerLaw
    numbers: tuple[float, ...]  # picoseconds where it is late

    @property
    def floor(self) -> float:
        """What a rank has that is not slow or late."""
        return 0.0 if self.is_late else 1.0

    def exceeded(self, share: np.ndarray) -> np.ndarray:
        """What a share of the draws exceed, for shares between 0 and 1."""
        from scipy.special import ndtri  # slow to import

        a, b = (*self.numbers, 0.0)[:2]
        drawn: dict[StragglerLaw, Callable[[], np.ndarray]] = {
            StragglerLaw.EXACTLY: lambda: np.full(np.shape(share), a),
            StragglerLaw.UNIFORM: lambda: b - (b - a) * share,
            StragglerLaw.EXPONENTIAL: lambda: self.floor - a * np.log(share),
            StragglerLaw.NORMAL: lambda: a - b * ndtri(share),
            StragglerLaw.LOGNORMAL: lambda: a * np.exp(-b * ndtri(share)),
            StragglerLaw.PARETO: lambda: a * share ** (-1 / b),
        }
        return np.maximum(drawn[self.law](), self.floor)

    def drawn(self, ranks: int, generator: np.random.Generator) -> dict[int, float]:
        """The draw of each rank that it concerns."""
        first, last = self.ranks or (0, ranks - 1)
        if last >= ranks:
            raise InputError(f"{self.text}: the program has ranks 0 to {ranks - 1}")
        values = self.exceeded(1 - generator.random(ranks))
        return dict(zip(range(first, last + 1), values[first : last + 1].tolist(), strict=True))


def straggler(text: str) -> Straggler:
    """What a text says; InputError for another form, with an example."""
    match = _FAULT.fullmatch(" ".join(text.split()))
    if match is None:
        raise InputError(f"{text!r} is no fault, {_EXAMPLE}")
    is_late = match["kind"] == "late"
    words = [match["number"]] if match["law"] is None else match["words"].split(",")
    known = {law.value[0]: law for law in StragglerLaw}
    law = StragglerLaw.EXACTLY if match["law"] is None else known.get(match["law"])
    if law is None:
        raise InputError(f"{text!r}: no distribution {match['law']}; there are {', '.join(known)}")
    if len(words) != law.value[1]:
        raise InputError(f"{text!r}: {law.value[0]} has {law.value[1]} numbers, not {len(words)}")
    without_unit = {StragglerLaw.LOGNORMAL: 1, StragglerLaw.PARETO: 1}.get(law)
    numbers = tuple(
        _number(text, word.strip(), is_time=is_late and k != without_unit)
        for k, word in enumerate(words)
    )
    if law is StragglerLaw.UNIFORM and numbers[0] > numbers[1]:
        raise InputError(f"{text!r}: uniform has the least number first")
    if law is StragglerLaw.PARETO and numbers[1] <= 1:
        raise InputError(f"{text!r}: a pareto exponent of 1 or less has no mean; give more than 1")
    first, _, last = match["ranks"].partition("-")
    ranks = None if first == "*" else (int(first), int(last or first))
    if ranks is not None and ranks[0] > ranks[1]:
        raise InputError(f"{text!r}: no ranks {match['ranks']}; the first comes first")
    return Straggler(" ".join(text.split()), ranks, is_late, law, numbers)


def _number(text: str, word: str, *, is_time: bool) -> float:
    match = re.fullmatch(rf"({_NUMBER})\s*([a-z]*)", word)
    unit = 1 if match is None or not is_time else _UNITS_PS.get(match[2], 0)
    if match is None or not unit or (not is_time and match[2]):
        what = "no time such as 20us" if is_time else "no number such as 1.5"
        raise InputError(f"{text!r}: {word!r} is {what}")
    value = float(match[1]) * unit
    if value > _MOST_PS or not math.isfinite(value):
        raise InputError(f"{text!r}: {word!r} is more than any run takes")
    return value


def disturbance_of(
    executable: Executable, stragglers: Sequence[Straggler], seed: int
) -> Disturbance:
    """What goes wrong in a run; of several faults of a rank all hold. InputError for no rank."""
    generator = np.random.default_rng(seed)
    late_ps: dict[int, int] = {}
    factors: dict[int, float] = {}
    for each in stragglers:
        for rank, value in each.drawn(executable.ranks, generator).items():
            if each.is_late:
                late_ps[rank] = late_ps.get(rank, 0) + min(round(value), _MOST_PS)
            else:
                factors[rank] = factors.get(rank, 1.0) * value
    engines = [
        number for number, queue in enumerate(executable.queues) if isinstance(queue, EngineQueue)
    ]
    speeds = [
        QueueSpeed(queue, rank, max(1, round(FULL_SPEED / factor)))
        for rank, factor in factors.items()
        for queue in engines
    ]
    return Disturbance(queues=tuple(speeds), late_start_ps=late_ps)


def expected_kth_worker(fault: Straggler, k: int, workers: int, ranks_of_one: int) -> float:
    """The mean of the k-th of the workers, each as late as its last rank."""

    def exceeded(share: np.ndarray) -> np.ndarray:
        # a worker of m ranks is within a value with the m-th power of a rank's probability
        return fault.exceeded(-np.expm1(np.log1p(-share) / ranks_of_one))

    return expected_kth(exceeded, k, workers)
