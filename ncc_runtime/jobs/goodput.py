"""Goodput under failures: which share of the time does steps that count, over checkpoint intervals.

A job of M seconds between failures (exponential, of all parts together) does τ seconds of steps,
then writes a checkpoint for C seconds. A failure at any moment sends it back to the last
checkpoint, after D seconds of detection and R of restart, in which it may fail again. Then the
expected time of an interval is M e^((D+R)/M) (e^((τ+C)/M) - 1).

Sources: J. W. Young, A first order approximation to the optimum checkpoint interval, Communications
of the ACM 17, 1974; J. T. Daly, A higher order estimate of the optimum checkpoint interval for
restart dumps, Future Generation Computer Systems 22, 2006.
"""

import math

import attrs
import numpy as np

from ncc_runtime.errors import InputError

MOST_ATTEMPTS = 10_000
"""Where an interval takes more attempts than this on average, at its work and at coming back, it is
not simulated."""

MOST_DRAWS = 2 * 10**8
"""Nor where all intervals together take more draws of a failure: these are some seconds."""


@attrs.frozen
class FailureModel:
    """The figures of a job, in seconds."""

    checkpoint_s: float
    restart_s: float
    detect_s: float
    mtbf_s: float  # mean time between failures of the whole job

    def __attrs_post_init__(self) -> None:
        if not 0 < self.mtbf_s < math.inf:
            raise InputError(f"a mean time between failures of {self.mtbf_s} s is no time")
        if math.log(MOST_ATTEMPTS) * self.mtbf_s < self.down_s:
            raise InputError(
                f"the job fails every {self.mtbf_s:.6g} s on average and needs {self.down_s:.6g} s "
                "to come back, which it never does"
            )

    @property
    def down_s(self) -> float:
        """From a failure until the job runs again, if nothing else fails meanwhile."""
        return self.detect_s + self.restart_s

    def expected_s(self, interval_s: float) -> float:
        """The expected time of an interval with its checkpoint; infinite where it is beyond."""
        mtbf = self.mtbf_s
        exponent = (interval_s + self.checkpoint_s) / mtbf
        if exponent > 600:
            return math.inf
        return mtbf * math.exp(self.down_s / mtbf) * math.expm1(exponent)

    def goodput(self, interval_s: float) -> float:
        """The expected share of time that does steps that count, 0 to 1."""
        return interval_s / self.expected_s(interval_s)

    def lost(self, interval_s: float) -> dict[str, float]:
        """The expected shares of time that are lost: to checkpoints, lost work and restarts."""
        expected = self.expected_s(interval_s)
        if math.isinf(expected):
            return {"checkpoints": 0.0, "lost work": 1.0, "restarts": 0.0}
        failures = math.expm1((interval_s + self.checkpoint_s) / self.mtbf_s)
        restarts = failures * self.mtbf_s * math.expm1(self.down_s / self.mtbf_s)
        work = expected - interval_s - self.checkpoint_s - restarts
        return {
            "checkpoints": self.checkpoint_s / expected,
            "lost work": max(0.0, work) / expected,
            "restarts": restarts / expected,
        }

    @property
    def best_s(self) -> float:
        """The interval of the highest expected goodput: the root of τ = M (1 - e^(-(τ+C)/M))."""
        low, high = 0.0, self.mtbf_s
        for _ in range(200):
            middle = (low + high) / 2
            grows = middle + self.mtbf_s * math.expm1(-(middle + self.checkpoint_s) / self.mtbf_s)
            low, high = (low, middle) if grows > 0 else (middle, high)
        return high

    @property
    def young_s(self) -> float:
        """Young's first-order interval."""
        return math.sqrt(2 * self.checkpoint_s * self.mtbf_s)

    @property
    def daly_s(self) -> float:
        """Daly's higher-order interval."""
        if self.checkpoint_s >= 2 * self.mtbf_s:
            return self.mtbf_s
        ratio = self.checkpoint_s / (2 * self.mtbf_s)
        return self.young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.checkpoint_s


@attrs.frozen
class GoodputRow:
    """One checkpoint interval."""

    steps: int
    interval_s: float
    goodput: float  # expected
    simulated: float | None  # None: too many attempts
    error: float | None  # standard error of the simulated
    lost: dict[str, float]


def simulated(
    model: FailureModel, interval_s: float, runs: int, generator: np.random.Generator
) -> tuple[float, float] | None:
    """Goodput and its standard error of so many intervals that are played; None: hopeless."""
    needed = interval_s + model.checkpoint_s
    # e^(needed/M) attempts at the work, and after each that fails e^(down/M) at coming back
    exponent = (needed + model.down_s) / model.mtbf_s
    if exponent > math.log(MOST_ATTEMPTS) or runs * math.exp(exponent) > MOST_DRAWS:
        return None
    time: np.ndarray = np.zeros(runs)
    working = np.arange(runs)
    while len(working):
        until = generator.exponential(model.mtbf_s, len(working))
        time[working] += np.minimum(until, needed)
        working = working[until < needed]
        down = working
        while len(down):  # a failure in detection or restart begins these again
            until = generator.exponential(model.mtbf_s, len(down))
            time[down] += np.minimum(until, model.down_s)
            down = down[until < model.down_s]
    mean = float(time.mean())
    error = float(time.std(ddof=1)) / math.sqrt(runs)
    return interval_s / mean, interval_s / mean**2 * error


def whole_steps(model: FailureModel, interval_s: float, step_s: float) -> int:
    """The number of steps next to an interval that has the higher goodput."""
    fewer = max(1, math.floor(interval_s / step_s))
    return max((fewer, fewer + 1), key=lambda steps: model.goodput(steps * step_s))


def around(model: FailureModel, step_s: float) -> list[int]:
    """Numbers of steps around the best and the formulas, rising."""
    best = model.best_s / step_s
    spread = {max(1, round(best * 2.0**power)) for power in range(-4, 5)}
    formulas = (model.best_s, model.young_s, model.daly_s)
    return sorted(spread | {whole_steps(model, each, step_s) for each in formulas})


def rows_of(
    model: FailureModel, step_s: float, intervals: list[int], runs: int, seed: int
) -> list[GoodputRow]:
    """A row for each number of steps between checkpoints."""
    rows = []
    for number, steps in enumerate(intervals):
        interval_s = steps * step_s
        found = simulated(model, interval_s, runs, np.random.default_rng([seed, number]))
        rows.append(
            GoodputRow(
                steps,
                interval_s,
                model.goodput(interval_s),
                found and found[0],
                found and found[1],
                model.lost(interval_s),
            )
        )
    return rows
