"""What `nccrt stale` prints: time bought and gradients lost, for each number of contributions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.jobs.stale import StaleRun, Training
from ncc_runtime.machine_model.timing import PS_PER_S
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.report.text_table import text_table

_PS_PER_US = 1_000_000


@attrs.frozen
class TrainingRow:
    """One training of a table."""

    first: int
    median_us: float
    p99_us: float  # of the steps the one that 99 % are not above
    worst_us: float
    total_us: float
    steps_per_s: float
    counted: float  # share of the contributions that were counted in their own step
    late: float  # share that was added in a later step, or is still carried at the end
    lost: float  # share that was dropped, or never begun since a worker was busy
    late_by_worker: tuple[float, ...]  # share of the steps in which it was not counted
    loss: float | None  # of the last step
    to_loss_us: float | None  # until a step had the target loss; None: none had it
    distance: float | None
    closed_form_us: float | None  # expected time of a step


def row_of(
    run: StaleRun, training: Training, target: float | None, closed_form_us: float | None
) -> TrainingRow:
    times_us = training.times_ps / _PS_PER_US
    counted, begun = float(training.taken.mean()), float(training.begun.mean())
    late = begun - counted if run.late == "next" else 0.0
    reached = None if target is None else training.reached_ps(target)
    return TrainingRow(
        first=training.first,
        median_us=float(np.median(times_us)),
        p99_us=float(np.quantile(times_us, 0.99, method="inverted_cdf")),
        worst_us=float(times_us.max()),
        total_us=float(times_us.sum()),
        steps_per_s=len(times_us) * PS_PER_S / int(training.times_ps.sum()),
        counted=counted,
        late=late,
        lost=1 - counted - late,
        late_by_worker=tuple((1 - training.taken.mean(axis=0)).tolist()),
        loss=training.losses[-1] if training.losses else None,
        to_loss_us=None if reached is None else reached / _PS_PER_US,
        distance=training.distance,
        closed_form_us=closed_form_us,
    )


def _number(value: float | None) -> float | None:
    """What JSON has a number for: a training that ends in NaN has no loss."""
    return value if value is not None and math.isfinite(value) else None


@attrs.frozen(eq=False)
class StaleReport:
    """The rows of all trainings, the synchronous one first."""

    model: str
    where: Mapping[str, Any]  # as `Placement.as_json`, with the policy
    place: str  # as other commands say it
    faults: tuple[str, ...]
    seed: int
    bound: int | None
    run: StaleRun
    target: float | None  # the loss that is looked for
    closed_form_us: Mapping[int, float]  # by `first`, where the faults have one

    @property
    def rows(self) -> list[TrainingRow]:
        trainings = (self.run.synchronous, *self.run.partial)
        return [
            row_of(self.run, each, self.target, self.closed_form_us.get(each.first))
            for each in trainings
        ]

    def as_json(self) -> dict[str, Any]:
        run = self.run
        trainings = (run.synchronous, *run.partial)
        return {
            "model": self.model,
            **self.where,
            "late": run.late,
            "workers": run.workers.tolist(),
            "steps": len(run.synchronous.steps),
            "faults_of_steps": list(self.faults),
            "seed": self.seed,
            "bound": self.bound,
            "undisturbed_us": run.undisturbed.time_ps / _PS_PER_US,
            "loss_name": run.loss_name,
            "target_loss": _number(self.target),
            "trainings": [
                {
                    **attrs.asdict(row),
                    "loss": _number(row.loss),
                    "distance": _number(row.distance),
                    "times_us": (each.times_ps / _PS_PER_US).tolist(),
                    "losses": list(map(_number, each.losses)),
                }
                for row, each in zip(self.rows, trainings, strict=True)
            ],
        }

    def as_text(self) -> str:
        run, rows = self.run, self.rows
        count, size = run.workers.shape
        fate = "dropped" if run.late == "drop" else "added in the next step"
        if self.bound is not None:
            fate += f", at most {self.bound} step{'s' * (self.bound != 1)} late"
        columns = self._columns(rows)
        lines = [
            f"{self.model}: {self.place}",
            f"{count} workers of {size} rank{'s' * (size != 1)}; late gradients are {fate}",
            f"{len(run.synchronous.steps)} steps, seeds {self.seed} and up: "
            + ("; ".join(self.faults) or "nothing goes wrong"),
            *text_table(tuple(columns), list(zip(*columns.values(), strict=True))),
            f"undisturbed, all wait for all: {run.undisturbed.time_ps / _PS_PER_US:.3f} us",
        ]
        lines += [line for row in rows[1:] for line in _late_line(row, run)]
        return "\n".join(lines)

    def _columns(self, rows: Sequence[TrainingRow]) -> dict[str, list[str]]:
        """The table by heading; columns that say nothing are left out."""
        columns = {
            "first": [f"{row.first}" for row in rows],
            "median us": [f"{row.median_us:.3f}" for row in rows],
            "p99 us": [f"{row.p99_us:.3f}" for row in rows],
            "worst us": [f"{row.worst_us:.3f}" for row in rows],
            "steps/s": [f"{row.steps_per_s:,.1f}" for row in rows],
            "counted": [f"{row.counted:.1%}" for row in rows],
        }
        if self.closed_form_us:
            mean = [f"{row.total_us / len(self.run.synchronous.steps):.3f}" for row in rows]
            columns |= {
                "mean us": mean,
                "closed form": [_or_dash(row.closed_form_us, ".3f") for row in rows],
            }
        if self.run.late == "next":
            columns["late"] = [f"{row.late:.1%}" for row in rows]
        columns["lost"] = [f"{row.lost:.1%}" for row in rows]
        if any(row.loss is not None for row in rows):
            columns["last loss"] = [_or_dash(row.loss, ".4g") for row in rows]
        if self.target is not None:
            columns[f"us to {self.target:.4g}"] = [_or_dash(row.to_loss_us, ".3f") for row in rows]
        if any(row.distance is not None for row in rows):
            columns["distance"] = [_or_dash(row.distance, ".3g") for row in rows]
        return columns


def _or_dash(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)


def _late_line(row: TrainingRow, run: StaleRun) -> list[str]:
    """Who was late most often."""
    plural = "s" * (run.workers.shape[1] > 1)
    worst = sorted(range(len(row.late_by_worker)), key=lambda w: -row.late_by_worker[w])[:3]
    named = [
        f"rank{plural} {ranks_text(run.workers[w])} in {row.late_by_worker[w]:.0%}"
        for w in worst
        if row.late_by_worker[w]
    ]
    return [f"first {row.first}: late most often {', '.join(named)} of the steps"] if named else []
