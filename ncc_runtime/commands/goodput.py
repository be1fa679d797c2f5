"""`nccrt goodput`: what failures leave of a job's time, and how often to write checkpoints."""

import re
from collections.abc import Sequence
from typing import Any

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands.options import plot_option
from ncc_runtime.commands.steps import duration


def _numbers(_: click.Context, __: click.Parameter, text: str | None) -> Sequence[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}(?:,[1-9]\d{0,8})*", text, re.ASCII):
        raise click.BadParameter(f"{text!r} are no numbers of steps, such as 100,200,400")
    return sorted({int(word) for word in text.split(",")})


@click.command(
    epilog=examples(
        "nccrt goodput --step-time 1.2s --checkpoint-time 40s --mtbf 50000h --parts 1024",
        "nccrt goodput --step-time 1.2s --checkpoint-time 40s --mtbf 48h --plot goodput.svg",
    )
)
@click.option(
    "--step-time",
    metavar="TIME",
    required=True,
    callback=duration,
    help="Of one step, as `nccrt run` predicts it.",
)
@click.option(
    "--checkpoint-time",
    metavar="TIME",
    required=True,
    callback=duration,
    help="To write one checkpoint; steps wait meanwhile.",
)
@click.option(
    "--mtbf",
    metavar="TIME",
    required=True,
    callback=duration,
    help="Mean time between failures of one part: a chip, an instance; failures are exponential.",
)
@click.option(
    "--parts",
    metavar="N",
    type=click.IntRange(1, 10**9),
    default=1,
    show_default=True,
    help="How many such parts there are, each of which stops the job.",
)
@click.option(
    "--restart-time",
    metavar="TIME",
    callback=duration,
    help="From detection until the job runs again [60s, assumed].",
)
@click.option(
    "--detect-time",
    metavar="TIME",
    callback=duration,
    help="From a failure until it is noticed [30s, NEURON_RT_EXEC_TIMEOUT].",
)
@click.option(
    "--every",
    metavar="N,N,…",
    callback=_numbers,
    help="Steps between checkpoints [around the best, Young's and Daly's].",
)
@click.option(
    "--runs",
    metavar="N",
    type=click.IntRange(2, 10**7),
    default=20_000,
    show_default=True,
    help="Intervals that are played, for each row.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of what is played.",
)
@plot_option("Draw the table: .svg or .png, [plot] extra.")
@replying
def goodput(reply: Reply, **words: Any) -> None:
    """Tell how much of a job's time does steps that count, over checkpoint intervals."""
    from ncc_runtime.jobs import goodput_report
    from ncc_runtime.jobs.goodput import FailureModel, around, rows_of
    from ncc_runtime.jobs.job import DETECT_S, RESTART_S
    from ncc_runtime.neff.whole_file import check_target, write_whole
    from ncc_runtime.report.plot_file import check_can_plot

    for name in ("step_time", "mtbf"):
        if not words[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} must be above 0")
    if words["plot"]:
        check_target(words["plot"], (".svg", ".png"))
        check_can_plot()
    restart, detect, step_s = words["restart_time"], words["detect_time"], words["step_time"]
    model = FailureModel(
        checkpoint_s=words["checkpoint_time"],
        restart_s=RESTART_S if restart is None else restart,
        detect_s=DETECT_S if detect is None else detect,
        mtbf_s=words["mtbf"] / words["parts"],
    )
    intervals = list(words["every"] or around(model, step_s))
    rows = rows_of(model, step_s, intervals, words["runs"], words["seed"])
    if words["plot"]:
        write_whole(words["plot"], goodput_report.plotted(model, step_s, rows, words["plot"]))
    reply.give(
        fields=lambda: goodput_report.as_json(model, step_s, rows),
        text=lambda: goodput_report.as_text(model, step_s, rows),
    )
