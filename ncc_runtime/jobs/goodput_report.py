"""`nccrt goodput`: the table, the JSON and the picture."""

from collections.abc import Sequence
from typing import Any

from ncc_runtime.jobs.goodput import FailureModel, GoodputRow, whole_steps
from ncc_runtime.report.plot_file import figure_axis, picture
from ncc_runtime.report.text_table import text_table


def _named(model: FailureModel, step_s: float) -> dict[str, dict[str, Any]]:
    """The best interval, Young's and Daly's."""
    return {
        name: {
            "interval_s": interval_s,
            "steps": (steps := whole_steps(model, interval_s, step_s)),
            "goodput": model.goodput(steps * step_s),
        }
        for name, interval_s in (
            ("best", model.best_s),
            ("young", model.young_s),
            ("daly", model.daly_s),
        )
    }


def as_json(model: FailureModel, step_s: float, rows: Sequence[GoodputRow]) -> dict[str, Any]:
    """What `--json` prints; times in seconds, shares from 0 to 1."""
    return {
        "step_s": step_s,
        "checkpoint_s": model.checkpoint_s,
        "restart_s": model.restart_s,
        "detect_s": model.detect_s,
        "mtbf_s": model.mtbf_s,
        **_named(model, step_s),
        "rows": [
            {
                "steps": row.steps,
                "interval_s": row.interval_s,
                "goodput": row.goodput,
                "simulated": row.simulated,
                "standard_error": row.error,
                "lost": {name.replace(" ", "_"): share for name, share in row.lost.items()},
            }
            for row in rows
        ],
    }


def heading(model: FailureModel, step_s: float) -> str:
    """The figures that the table follows from."""
    return (
        f"step {_time(step_s)}, checkpoint {_time(model.checkpoint_s)}, detection "
        f"{_time(model.detect_s)}, restart {_time(model.restart_s)}; the job fails every "
        f"{_time(model.mtbf_s)} on average"
    )


def as_text(model: FailureModel, step_s: float, rows: Sequence[GoodputRow]) -> str:
    """The table; shares in percent."""
    named = _named(model, step_s)
    titles = {"best": "best", "young": "Young", "daly": "Daly"}
    figures = ("steps", "interval", "goodput", "simulated", "± error")
    headings = (*figures, "checkpoints", "lost work", "restarts", "")
    cells = []
    for row in rows:
        marks = [titles[name] for name, found in named.items() if found["steps"] == row.steps]
        cells.append(
            (
                f"{row.steps}",
                _time(row.interval_s),
                f"{100 * row.goodput:.3f}%",
                "" if row.simulated is None else f"{100 * row.simulated:.3f}%",
                "" if row.error is None else f"{100 * row.error:.3f}%",
                *(f"{100 * share:.3f}%" for share in row.lost.values()),
                ", ".join(marks),
            )
        )
    lines = [heading(model, step_s), *text_table(headings, cells, words=(len(headings) - 1,))]
    lines += (
        f"{titles[name]}: every {_time(found['interval_s'])}, {found['steps']} steps; goodput "
        f"{100 * found['goodput']:.3f}%"
        for name, found in named.items()
    )
    return "\n".join(lines)


def _time(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"


def plotted(
    model: FailureModel, step_s: float, rows: Sequence[GoodputRow], file_name: str
) -> bytes:
    """The picture: expected goodput over the interval, what was simulated, and the formulas."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot(
            [row.interval_s for row in rows],
            [100 * row.goodput for row in rows],
            marker=".",
            label="expected",
        )
        played = [row for row in rows if row.simulated is not None]
        axes.errorbar(
            [row.interval_s for row in played],
            [100 * (row.simulated or 0.0) for row in played],
            yerr=[200 * (row.error or 0.0) for row in played],
            linestyle="none",
            marker="x",
            color="black",
            label="simulated, ± 2 standard errors",
        )
        styles = (("best", "-", model.best_s), ("Young", "--", model.young_s))
        for name, style, interval_s in (*styles, ("Daly", ":", model.daly_s)):
            if interval_s > 0:  # checkpoints that cost nothing have no best interval
                axes.axvline(interval_s, linestyle=style, color="grey", label=name)
        figure_axis(axes, "time between checkpoints (s)", "x")
        axes.set_ylabel("goodput (%)")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend()

    return picture(file_name, heading(model, step_s), draw)
