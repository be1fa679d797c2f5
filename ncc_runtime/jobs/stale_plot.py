"""`nccrt stale --plot`: time bought and loss over time, as a picture."""

import io
from typing import Any

from ncc_runtime.jobs.stale_report import StaleReport


def plotted(report: StaleReport, file_name: str) -> bytes:
    """SVG or PNG by the file's name; equal reports give equal bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = report.rows
    # ids of an SVG are random without a salt, and letters as paths depend on no viewer's fonts
    settings: dict[str, Any] = {"svg.hashsalt": "nccrt", "svg.fonttype": "path"}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **settings}):
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        time, loss = figure.subplots(1, 2)
        ordered = sorted(rows, key=lambda row: row.first)
        first = [row.first for row in ordered]
        time.plot(first, [row.median_us for row in ordered], marker=".", label="median")
        time.plot(first, [row.p99_us for row in ordered], marker=".", label="99 % of the steps")
        if report.closed_form_us:
            expected = sorted(report.closed_form_us.items())
            time.plot(*zip(*expected, strict=True), linestyle="--", label="closed form, mean")
        undisturbed_us = report.run.undisturbed.time_ps / 1e6
        time.axhline(undisturbed_us, color="grey", linestyle=":", label="undisturbed")
        time.set_xlabel("contributions that a step waits for")
        time.set_ylabel("time of a step (us)")
        for training in (report.run.synchronous, *report.run.partial):
            if training.losses:
                passed = training.times_ps.cumsum() / 1e6
                loss.plot(passed, training.losses, label=f"first {training.first}")
        loss.set_xlabel("time (us)")
        loss.set_ylabel(report.run.loss_name or "loss")
        for axes in (time, loss):
            axes.grid(visible=True, which="major", alpha=0.3)
            if axes.lines:
                axes.legend()
        figure.suptitle(f"{report.model}: {report.place}", fontsize=10)
        out = io.BytesIO()
        is_svg = file_name.endswith(".svg")
        # without a date, which would differ every time
        figure.savefig(
            out, format="svg" if is_svg else "png", metadata={"Date": None} if is_svg else {}
        )
    return out.getvalue()
