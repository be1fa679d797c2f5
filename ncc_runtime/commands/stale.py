"""`nccrt stale`: steps that take the first gradients, beside steps that wait for all."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands.options import (
    PlaceWords,
    check_outputs_of,
    fault_options,
    files_of,
    loaded,
    memory_option,
    place_options,
    plot_option,
    program_argument,
    threads_option,
)


def _numbers(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    words = text.split(",")
    if not all(
        word.isascii() and word.isdigit() and len(word) <= 7 and int(word) for word in words
    ):
        raise click.BadParameter(f"{text!r} are no numbers such as 64,62,60")
    numbers = [int(word) for word in words]
    if len(set(numbers)) < len(numbers):
        raise click.BadParameter(f"{text!r} has a number twice")
    return numbers


def _finite(_: click.Context, __: click.Parameter, number: float | None) -> float | None:
    if number is not None and not math.isfinite(number):
        raise click.BadParameter(f"{number} is no loss")
    return number


@click.command(
    epilog=examples(
        'nccrt stale backup.neff --first 15 --draw arg2 --fault "rank * late by exponential(20us)"',
        "nccrt stale backup.neff --on trn2 --first 15,12 --bound 2 --steps 50 --no-values",
    )
)
@program_argument
@place_options
@click.option(
    "--first",
    "firsts",
    metavar="K[,K]...",
    required=True,
    callback=_numbers,
    help="Contributions that a step waits for; of several each has its row.",
)
@click.option(
    "--bound",
    metavar="S",
    type=click.IntRange(0),
    help="All wait for a gradient that would be more than S steps late (stale-synchronous "
    "parallel); for programs that add late gradients [none].",
)
@fault_options
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    help="Steps of each training.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Fills missing inputs, those that are fed back alike on all workers; step s draws its "
    "faults with seed N + s.",
)
@click.option(
    "--inputs",
    type=click.Path(),
    metavar="F",
    help="arg0, arg1, … of the first step, as for nccrt run.",
)
@click.option(
    "--batches",
    type=click.Path(),
    metavar="F",
    help="Inputs that change, with a row for each step in front; the first follows the last.",
)
@click.option(
    "--draw",
    metavar="ARG",
    multiple=True,
    help="An input that is drawn anew at every step, from the seed.",
)
@click.option(
    "--feed",
    metavar="OUT=ARG[,OUT=ARG]...",
    help="Which outputs are inputs of the next step: out0=arg0, out0-3=arg2-5 [as the model's "
    "input_output_alias says].",
)
@click.option(
    "--loss",
    metavar="OUT",
    help="The output that is the loss, by name or number [the first single float that is not fed "
    "back].",
)
@click.option(
    "--target",
    metavar="X",
    callback=_finite,
    type=float,
    help="The loss to compare times to [that of the last synchronous step].",
)
@click.option("--no-values", is_flag=True, help="Times only.")
@click.option("--no-verify", is_flag=True, help="Run it without a proof that it is right.")
@threads_option
@memory_option
@plot_option("Draw time over K, and loss over time.")
@replying
def stale(reply: Reply, program: Sequence[str], place: PlaceWords, **words: Any) -> None:
    """Run steps of PROGRAM that take the first K gradients, beside steps that wait for all.

    PROGRAM was compiled with --partial-all-reduce drop, as with backup workers, or next, where late
    gradients are added in the next step. Its steps run under faults that are drawn anew for each;
    the table says what not waiting buys in time, and what it costs: gradients lost, the loss, and
    how far the state ends from that of synchronous steps.
    """
    from ncc_runtime import array_files
    from ncc_runtime.faults.resolve import joined, resolved
    from ncc_runtime.faults.stale import StepClock
    from ncc_runtime.jobs.stale import closed_forms_us, trained
    from ncc_runtime.jobs.stale_plot import plotted
    from ncc_runtime.jobs.stale_report import StaleReport
    from ncc_runtime.neff.whole_file import check_target, write_whole
    from ncc_runtime.options import RunOptions
    from ncc_runtime.report.plot_file import check_can_plot
    from ncc_runtime.step_inputs import pairs_in

    given_files = [words[name] for name in ("inputs", "batches") if words[name]]
    check_outputs_of({"--plot": words["plot"]}, place, [*files_of(program), *given_files])
    if words["plot"]:
        check_target(words["plot"])
        check_can_plot()
    if words["no_values"]:
        for name in ("loss", "target", "draw", "batches"):
            if words[name] not in (None, ()):
                raise click.UsageError(f"--no-values leaves nothing to do for --{name}")
    faults = words["faults"]
    model = loaded(program, place)
    executable, seed, steps = model.executable, words["seed"], words["steps"]
    clock = StepClock(executable)
    options = RunOptions(
        values=not words["no_values"],
        threads=words["threads"],
        memory_bytes=words["memory"],
        verify=not words["no_verify"],
    )
    with contextlib.ExitStack() as stack:
        inputs, batches = (
            stack.enter_context(array_files.open_arrays(words[name])) if words[name] else {}
            for name in ("inputs", "batches")
        )
        run = trained(
            model,
            clock,
            [joined(resolved(clock.clock, faults, seed + step)) for step in range(steps)],
            words["firsts"],
            bound=words["bound"],
            loss=words["loss"],
            feed=None if words["feed"] is None else dict(pairs_in(words["feed"])),
            inputs=inputs,
            batches=batches,
            draw=words["draw"],
            seed=seed,
            options=options,
        )
    losses = run.synchronous.losses
    placement = executable.placement
    report = StaleReport(
        model=executable.program.name,
        where={**placement.as_json(), "policy": executable.policy},
        place=f"{executable.ranks} ranks on {placement.where}; policy {executable.policy}",
        faults=tuple(map(str, faults)),
        seed=seed,
        bound=words["bound"],
        run=run,
        target=losses[-1] if words["target"] is None and losses else words["target"],
        closed_form_us=closed_forms_us(run, faults),
    )
    if words["plot"]:
        write_whole(words["plot"], plotted(report, words["plot"]))
    reply.give(fields=report.as_json, text=report.as_text)
    reply.warn(model.warnings)
