"""`nccrt bench`: nccom-test's sweep over sizes, predicted."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands import completion
from ncc_runtime.commands.options import (
    PlaceWords,
    check_outputs_of,
    filled,
    place_of,
    place_options,
    size,
)

if TYPE_CHECKING:
    from ncc_runtime.report.bench import Case, Measured
    from ncc_runtime.runtime import Model

DEFAULT_BYTES = 32 << 20
"""The size of a bench without sizes; assumed: the default of nccl-tests."""


@click.command(
    epilog=examples(
        "nccrt bench all_reduce -r 64 -b 1MB -e 64MB --topology trn2",
        "nccrt bench all_gather -r 8 -b 4KB -d bf16 --check --show-algorithm",
    )
)
@click.argument("op", metavar="OP", shell_complete=completion.operator)
@click.option("-r", "--nworkers", "ranks", type=click.IntRange(2), required=True, help="Ranks.")
@click.option("-N", "--nnodes", type=click.IntRange(1), help="Instances, as --nodes.")
@click.option(
    "-b", "--minbytes", "least", metavar="MIN", callback=size, help="Smallest size [32MB]."
)
@click.option("-e", "--maxbytes", "most", metavar="MAX", callback=size, help="Largest size [MIN].")
@click.option("-f", "--stepfactor", "factor", type=click.IntRange(2), help="Sizes by factors [2].")
@click.option("-i", "--stepbytes", "step", metavar="STEP", callback=size, help="Sizes by steps.")
@click.option(
    *("-d", "--datatype", "dtype"),
    default="fp32",
    show_default=True,
    shell_complete=completion.datatype,
    help="Type of the elements.",
)
@click.option(
    "-n",
    "--iters",
    "iterations",
    type=click.IntRange(1, 1000),
    default=1,
    help="Runs of --check [1].",
)
@click.option(
    "--check",
    "mode",
    type=click.Choice(["random", "all_ones"]),
    is_flag=False,
    flag_value="random",
    help="Compute values too, and compare them; --check=all_ones gives ones.",
)
@place_options
@click.option("--show-algorithm", is_flag=True, help="Add the column algorithm.")
@click.option(
    *("--report-to-json-file", "report_file"),
    type=click.Path(),
    metavar="F",
    help="Write the rows to this file too, as JSON.",
)
@replying
def bench(reply: Reply, op: str, place: PlaceWords, **words: Any) -> None:
    """Predict time and bandwidth of collective OP over all ranks, size by size.

    OP is all_reduce, all_gather, reduce_scatter, alltoall, alltoallv, all_gatherv, permute or
    sendrecv; those that end in v have variable sizes, and here full slots.
    """
    from ncc_runtime.neff.whole_file import check_target, write_whole
    from ncc_runtime.report import bench as report

    if words["nnodes"] is not None:
        if place.on is not None or "nodes" in place.words:
            raise click.UsageError("-N and --nodes or --on say the same thing")
        place = attrs.evolve(place, words={**place.words, "nodes": words["nnodes"]})
    if words["report_file"]:
        check_outputs_of({"--report-to-json-file": words["report_file"]}, place)
        check_target(words["report_file"])
    cases = _cases(op, words)
    measured = [_measured(case, place, words["mode"]) for case in cases]
    lines, model = [line for line, _ in measured], measured[-1][1]
    topology = model.executable.topology
    where = {
        "topology": topology.name,
        "nodes": topology.nodes,
        "lnc": topology.lnc,
        "placement": model.executable.placement.strategy,
    }
    if words["report_file"]:
        text = json.dumps(report.as_json(lines, where))
        write_whole(words["report_file"], f"{text}\n".encode())
    heading = f"{lines[0].case.operator.name}: {model.executable.placement.ranks} ranks on "
    heading += f"{topology.nodes} x {topology.name}, lnc {topology.lnc}, {where['placement']}"
    reply.give(
        fields=lambda: report.as_json(lines, where),
        text=lambda: report.as_text(lines, heading, show_algorithm=words["show_algorithm"]),
    )
    reply.warn(model.warnings)


def _cases(op: str, words: dict[str, Any]) -> "Sequence[Case]":
    from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, sizes

    if op not in OPERATORS:
        raise click.UsageError(f"no operator {op!r}; there are {', '.join(OPERATORS)}")
    if words["dtype"] not in DTYPES:
        raise click.UsageError(f"no type {words['dtype']!r}; there are {', '.join(DTYPES)}")
    if words["factor"] is not None and words["step"] is not None:
        raise click.UsageError("-f and -i exclude each other")
    least = DEFAULT_BYTES if words["least"] is None else words["least"]
    most = least if words["most"] is None else words["most"]
    if not 0 < least <= most:
        raise click.UsageError(f"sizes go from {least} to {most} bytes, which are none")
    if words["step"] == 0:
        raise click.UsageError("-i 0 leads nowhere")
    operator, dtype = OPERATORS[op], DTYPES[words["dtype"]]
    return [
        Case(operator, words["ranks"], dtype, size_bytes, words["iterations"])
        for size_bytes in sizes(least, most, words["factor"], words["step"])
    ]


def _measured(case: "Case", place: PlaceWords, mode: str | None) -> "tuple[Measured, Model]":
    """The price of the case where it is placed; a run, with values, only to check them."""
    import numpy as np

    from ncc_runtime.report import bench as report
    from ncc_runtime.report.bench import program_of_case

    # without a check one run is enough, as the clock times each of them alike
    timed = case if mode is not None else attrs.evolve(case, iterations=1)
    model = filled(program_of_case(timed), place, place_of(place), times_only=mode is None)
    if mode is not None:
        given = report.operands(case, mode, np.random.default_rng(0))
        run = model.run([given], clock=False)
        report.check(case, given, run.outputs[0])
    return report.measured(case, model.executable, mode), model
