"""`nccrt stale --plot`: time bought and loss over time, as a picture."""

from typing import Any

from ncc_runtime.jobs.stale_report import StaleReport
from ncc_runtime.report.plot_file import picture


def plotted(report: StaleReport, file_name: str) -> bytes:
    """SVG or PNG by the file's name; equal reports give equal bytes."""
    rows = report.rows

    def draw(figure: Any) -> None:
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

    return picture(file_name, f"{report.model}: {report.place}", draw)
