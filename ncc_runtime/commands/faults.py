"""`nccrt faults`: what faults during a run do."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands.options import (
    PlaceWords,
    check_outputs_of,
    exec_timeout_option,
    fault_options,
    files_of,
    loaded,
    memory_option,
    place_options,
    plot_option,
    program_argument,
    threads_option,
)
from ncc_runtime.commands.steps import duration
from ncc_runtime.errors import InputError

if TYPE_CHECKING:
    from ncc_runtime.array_files import StoredArray
    from ncc_runtime.faults.outcome import Laboratory
    from ncc_runtime.faults.single_faults import FaultClass
    from ncc_runtime.faults.watchdog import Heartbeat


def _period_and_misses(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[float, int] | None:
    """`10us` or `10us,5`: seconds, and so many beats in a row that must be missing."""
    if text is None:
        return None
    period, comma, misses = text.partition(",")
    if comma and not (
        misses.isascii() and misses.isdigit() and 0 < len(misses) < 6 and int(misses)
    ):
        raise click.BadParameter(f"{misses!r} is no number of beats from 1 to 99999")
    seconds = duration(context, parameter, period)
    if not seconds or seconds > 10**6:
        raise click.BadParameter(f"{period} is no period of more than 0 and at most 1000000s")
    return seconds, int(misses or 3)


@click.command(
    epilog=examples(
        "nccrt faults step.neff --topology trn2 --all dma.lost",
        "nccrt faults step.neff --fault 'at 60us: rank 3 dead'",
        "nccrt faults step.neff --fault 'rank * slow by lognormal(1, 0.1)' --runs 200",
        "nccrt faults step.neff --on trn2,nodes=2 --all bit.transfer --runs 100 --seed 1",
    )
)
@program_argument
@place_options
@fault_options
@exec_timeout_option
@click.option(
    "--all",
    "class_name",
    metavar="CLASS",
    help="Try every single fault of a class, such as dma.lost, rank.dead, link.down, bit.transfer.",
)
@click.option(
    "--runs",
    metavar="N",
    type=click.IntRange(1),
    help="With --all: try N faults, drawn from the seed [all, of bits 200]. With --fault: "
    "times of N runs, with seeds from --seed on, and with --exec-timeout how many take longer.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of what is drawn: faults, and missing inputs.",
)
@click.option(
    "--outcomes",
    is_flag=True,
    help="With --fault and --runs: count what the runs come to, with values where needed.",
)
@plot_option("With --fault and --runs: draw the times of the runs, and who was the slowest.")
@click.option(
    "--heartbeat",
    metavar="PERIOD[,N]",
    callback=_period_and_misses,
    help="With --fault: when ranks would miss N [3] beats in a row of the one before, and what "
    "beats cost. With --runs: how often they do though the run ends.",
)
@click.option(
    "--checksum",
    type=click.Choice(["dma", "gpsimd"]),
    help="With --fault: whether sums of transfers, by DMA engines or GpSimd, find flipped bits, "
    "and what they cost.",
)
@click.option("--inputs", type=click.Path(), help="As those of `nccrt run`.")
@threads_option
@memory_option
@click.option("--no-verify", is_flag=True, help="Without proofs: all values are compared.")
@replying
def faults(reply: Reply, program: Sequence[str], place: PlaceWords, **words: Any) -> None:
    """Say of faults during a run of PROGRAM what they do: nothing, wrong values, a stall, why."""
    from ncc_runtime import array_files
    from ncc_runtime.faults.single_faults import class_named
    from ncc_runtime.neff.whole_file import check_target
    from ncc_runtime.options import RunOptions
    from ncc_runtime.report.plot_file import check_can_plot
    from ncc_runtime.report.run import facts, heading

    given_faults, is_seeded = words["faults"], bool(words["faults"] and words["runs"])
    if bool(given_faults) == bool(words["class_name"]):
        raise click.UsageError("give --fault TEXT or --faults FILE.toml, or --all CLASS")
    for option in ("outcomes", "plot"):
        if words[option] and not is_seeded:
            raise click.UsageError(f"--{option} goes with --fault and --runs")
    for option in ("exec_timeout", "heartbeat", "checksum"):
        if words[option] is not None and not given_faults:
            raise click.UsageError(f"--{option.replace('_', '-')} goes with --fault or --faults")
    if words["checksum"] and is_seeded:
        raise click.UsageError("--checksum goes with --fault, without --runs")
    try:
        kind = class_named(words["class_name"]) if words["class_name"] else None
    except InputError as error:
        raise click.UsageError(f"--all: {error}") from error
    read = [*files_of(program), *([words["inputs"]] if words["inputs"] else [])]
    check_outputs_of({"--plot": words["plot"]}, place, read)
    if words["plot"]:
        check_target(words["plot"])
        check_can_plot()
    model = loaded(program, place)
    inputs: contextlib.AbstractContextManager[Mapping[str, StoredArray]]
    inputs = contextlib.nullcontext({})
    if words["inputs"]:
        inputs = array_files.open_arrays(words["inputs"])
    options = RunOptions(
        memory_bytes=words["memory"],
        threads=words["threads"],
        verify=not words["no_verify"],
    )
    first = heading(model.executable).splitlines()[0]
    with inputs as given:
        laboratory = model.laboratory(given, seed=words["seed"], options=options)
        if kind is not None:
            fields, text = _tried(laboratory, kind, words, first)
        elif is_seeded:
            fields, text = _seeded(laboratory, words, first)
        else:
            fields, text = _reported(laboratory, words, first)
    reply.give(fields=lambda: {**facts(model.executable), **fields}, text=lambda: text)
    reply.warn(model.warnings)


def _heartbeat(words: Mapping[str, Any]) -> "Heartbeat | None":
    from ncc_runtime.faults.watchdog import Heartbeat

    if words["heartbeat"] is None:
        return None
    period, misses = words["heartbeat"]
    return Heartbeat(max(1, round(period * 1e12)), misses)


Answer = tuple[Mapping[str, Any], str]
"""Keys of the object beside those of the place, and the text."""


def _tried(
    laboratory: "Laboratory", kind: "FaultClass", words: Mapping[str, Any], heading: str
) -> Answer:
    """Every single fault of a class."""
    from ncc_runtime.faults import campaign
    from ncc_runtime.faults.single_faults import faults_of

    there_are, chosen = faults_of(kind, laboratory, words["runs"], words["seed"])
    found = campaign.campaign(laboratory, kind, there_are, chosen)
    return campaign.as_json(found), campaign.as_text(found, heading)


def _reported(laboratory: "Laboratory", words: Mapping[str, Any], heading: str) -> Answer:
    """Faults in one run."""
    from ncc_runtime.faults.report import reported
    from ncc_runtime.faults.watchdog import Summing, exec_timeout_ps

    found = reported(
        laboratory,
        words["faults"],
        words["seed"],
        exec_timeout_ps(words["exec_timeout"]),
        beat=_heartbeat(words),
        summing=Summing(words["checksum"]) if words["checksum"] else None,
    )
    return {"fault_report": found.as_json()}, "\n".join([heading, *found.lines()])


def _seeded(laboratory: "Laboratory", words: Mapping[str, Any], heading: str) -> Answer:
    """Faults in a run for each of many seeds."""
    from ncc_runtime.faults import campaign, detectors, seeds
    from ncc_runtime.faults.single_faults import given
    from ncc_runtime.faults.watchdog import exec_timeout_ps
    from ncc_runtime.neff.whole_file import write_whole

    seconds, beat = words["exec_timeout"], _heartbeat(words)
    timeout_ps = None if seconds is None else exec_timeout_ps(seconds)
    numbers = range(words["seed"], words["seed"] + words["runs"])
    found = seeds.seeded(laboratory.clock, words["faults"], numbers)
    alarms = detectors.false_alarms_of_seeds(
        laboratory.clock, words["faults"], found, timeout_ps, beat
    )
    fields = {
        "seeds": seeds.as_json(found),
        "false_alarms": [each.as_json() for each in alarms],
    }
    lines = [heading, *map(str, words["faults"]), *seeds.lines(found)]
    lines += [each.line() for each in alarms]
    if words["plot"]:
        write_whole(words["plot"], seeds.plotted(found, heading, words["plot"]))
    if words["outcomes"]:
        kind, chosen = given(words["faults"], laboratory, numbers)
        counted = campaign.campaign(laboratory, kind, len(chosen), chosen)
        fields |= campaign.as_json(counted)
        lines.append(campaign.as_text(counted))
    return fields, "\n".join(lines)
