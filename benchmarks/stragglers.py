"""Synchronous steps whose ranks are slowed by draws, beside the closed form of the largest draw.

A step is a product on every rank, then an all-reduce over all. The engines of each rank take as
many times as long as is drawn for it, anew in every run. `slowest` is how much later the last rank
has its product, on average, `closed form` what order statistics say of the maximum of so many
draws, `step` how much longer the whole step takes.

Run: python benchmarks/stragglers.py [--runs 200] [--plot stragglers.svg]
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ncc_runtime.execution.disturbance import NOTHING
from ncc_runtime.faults.laws import Draws, Law
from ncc_runtime.faults.order_statistics import expected_maximum
from ncc_runtime.faults.seeds import run_seeds
from ncc_runtime.report.text_table import text_table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the program is that of the tests

from tests.faults.straggling import (
    data_parallel_step,
    last_trigger_us,
    slowed_by,
    timer,
)

RANKS = (2, 4, 8, 16, 32, 64)
LAWS = (
    Draws(Law.UNIFORM, 1.0, 2.0),
    Draws(Law.EXPONENTIAL, 1.0, 0.5),
    Draws(Law.NORMAL, 1.5, 0.1, least=1.0),
    Draws(Law.LOGNORMAL, 1.0, 0.4, least=1.0),
    Draws(Law.PARETO, 1.0, 3.0),
)


def measured(draws: Draws, ranks: int, runs: int) -> tuple[float, float, float, float, float]:
    """Slowest, its standard error, closed form, step, all in us; seconds that the runs took."""
    executable = data_parallel_step(ranks)
    timed = timer(executable)
    whole = timed(NOTHING)
    usual_us = last_trigger_us(whole)
    twice = slowed_by(Draws(Law.UNIFORM, 2.0, 2.0), executable)
    compute_us = last_trigger_us(timed(twice(0))) - usual_us
    last_us: list[float] = []

    def noted(disturbance: Any) -> Any:
        trace = timed(disturbance)
        last_us.append(last_trigger_us(trace) - usual_us)
        return trace

    began = time.perf_counter()
    found = run_seeds(whole, noted, slowed_by(draws, executable), range(runs))
    seconds = time.perf_counter() - began
    error_us = float(np.std(last_us, ddof=1)) / len(last_us) ** 0.5
    step_us = (found.mean_ps - whole.time_ps) / 1e6
    closed_us = (expected_maximum(draws, ranks) - 1) * compute_us
    return float(np.mean(last_us)), error_us, closed_us, step_us, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--plot", metavar="F.svg")
    arguments = parser.parse_args()
    curves: dict[str, list[tuple[float, float, float, float, float]]] = {}
    rows = []
    for draws in LAWS:
        name = f"{draws.law} {draws.first:g}, {draws.second:g}"
        for ranks in RANKS:
            found = measured(draws, ranks, arguments.runs)
            curves.setdefault(name, []).append(found)
            slowest, error, closed, step, seconds = found
            rows.append(
                (
                    name,
                    str(ranks),
                    f"{slowest:.1f}",
                    f"{error:.2f}",
                    f"{closed:.1f}",
                    f"{step:.1f}",
                    f"{seconds:.2f}",
                )
            )
    headings = ("factor", "ranks", "slowest", "s.e.", "closed form", "step", "s")
    print(f"{arguments.runs} runs each, times in us; s: seconds of one core for all runs")
    print("\n".join(text_table(headings, rows, words=(0,))))
    if arguments.plot:
        from ncc_runtime.report.plot_file import count_axis, picture

        def draw(figure: Any) -> None:
            axes = figure.subplots()
            for name, points in curves.items():
                closed = axes.plot(RANKS, [point[2] for point in points], label=name)[0]
                slowest, errors = [point[0] for point in points], [2 * point[1] for point in points]
                axes.errorbar(RANKS, slowest, errors, fmt=".", color=closed.get_color())
            count_axis(axes, RANKS, "ranks")
            axes.set_ylabel("slowest rank later by (us)")
            axes.legend(title="factor")
            axes.grid(visible=True, alpha=0.3)

        heading = "mean of the slowest rank: runs with two standard errors, lines the closed form"
        Path(arguments.plot).write_bytes(picture(arguments.plot, heading, draw))


if __name__ == "__main__":
    main()
