"""Commands of `nccrt` beside run and list: explain, diff, bench, and calibrate.

Also the timeline of `nccrt run --trace`, written with a progress bar on a terminal.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from ncc_runtime.cli_options import (
    PlaceWords,
    algorithm_option,
    check_outputs_of,
    files_of,
    filled,
    ignore_memory_option,
    loaded,
    place_of,
    place_options,
    program_argument,
    program_of_words,
    shown_count,
    size,
    strict_option,
    trip_counts,
    warn,
)
from ncc_runtime.command_line import check_written

if TYPE_CHECKING:
    import numpy as np

    from ncc_runtime.execution.trace import Trace
    from ncc_runtime.lowering.executable import Executable
    from ncc_runtime.report.bench import Case, Measured
    from ncc_runtime.runtime import Model


DEFAULT_BYTES = 32 << 20
"""The size of a bench without sizes; assumed: the default of nccl-tests."""


@click.command()
@program_argument
@place_options
@click.option("--save-plan", "save", type=click.Path(), metavar="FILE", help="Write the plans.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def explain(program: Sequence[str], place: PlaceWords, save: str | None, as_json: bool) -> None:
    """Say for every collective of PROGRAM which algorithms could fill it, and why one does."""
    from ncc_runtime.neff.whole_file import check_target, write_whole
    from ncc_runtime.report import explain as report
    from ncc_runtime.report.explain import as_text

    if save is not None:
        check_outputs_of({"--save-plan": save}, place, files_of(program))
        check_target(save)
    model = loaded(program, place)
    explanation = report.explained(model.executable, place.algorithms, model.plans)
    if save is not None:
        write_whole(save, report.saved(explanation))
    click.echo(json.dumps(report.as_json(explanation)) if as_json else as_text(explanation))
    warn(model)


@click.command()
@program_argument
@click.option("--on", "places", metavar="SPEC", multiple=True, help="A place; give two.")
@algorithm_option
@strict_option
@ignore_memory_option
@click.option(
    "--trip-count",
    "counts",
    metavar="NAME=N",
    multiple=True,
    callback=trip_counts,
    help="How often each loop of that name runs, or which branch, where data decides.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def diff(program: Sequence[str], places: Sequence[str], as_json: bool, **words: Any) -> None:
    """Say what another place changes: algorithms, transports, links, instructions, time."""
    from ncc_runtime.report import diff as report
    from ncc_runtime.report.diff import as_text

    if len(places) != 2:
        raise click.UsageError(f"--on is given {len(places)} times; two places are compared")
    sides = [
        PlaceWords(
            on,
            {},
            words["algorithms"],
            words["strict"],
            ignore_memory=words["ignore_memory"],
        )
        for on in places
    ]
    targets = [place_of(place) for place in sides]
    compiled = program_of_words(program)
    first, second = (
        filled(compiled, place, where) for place, where in zip(sides, targets, strict=True)
    )
    runs = [
        model.run(values=False, verify=False, trip_counts=words["counts"], clock=True)
        for model in (first, second)
    ]
    comparison = report.compared((first.executable, second.executable), (runs[0], runs[1]))
    click.echo(json.dumps(report.as_json(comparison)) if as_json else as_text(comparison))


@click.command()
@click.argument("op", metavar="OP")
@click.option("-r", "--nworkers", "ranks", type=click.IntRange(2), required=True, help="Ranks.")
@click.option("-N", "--nnodes", type=click.IntRange(1), help="Instances, as --nodes.")
@click.option("-b", "--minbytes", "least", metavar="MIN", callback=size, help="[32MB]")
@click.option("-e", "--maxbytes", "most", metavar="MAX", callback=size, help="[MIN]")
@click.option("-f", "--stepfactor", "factor", type=click.IntRange(2), help="Sizes by factors [2].")
@click.option("-i", "--stepbytes", "step", metavar="STEP", callback=size, help="Sizes by steps.")
@click.option("-d", "--datatype", "dtype", default="fp32", show_default=True)
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
@click.option("--report-to-json-file", "report_file", type=click.Path(), metavar="F")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def bench(op: str, place: PlaceWords, **words: Any) -> None:
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
    text = json.dumps(report.as_json(lines, where))
    if words["report_file"]:
        write_whole(words["report_file"], f"{text}\n".encode())
    if not words["as_json"]:
        heading = f"{lines[0].case.operator.name}: {model.executable.placement.ranks} ranks on "
        heading += f"{topology.nodes} x {topology.name}, lnc {topology.lnc}, {where['placement']}"
        text = report.as_text(lines, heading, show_algorithm=words["show_algorithm"])
    click.echo(text)
    warn(model)


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


@click.command()
@click.argument("rows", metavar="ROWS.json", type=click.Path())
@click.option("--out", metavar="PRESET.toml", type=click.Path(), help="Write a topology file.")
@click.option("--shipped", is_flag=True, help="Fit nothing: how far the built-in constants are.")
@click.option("--leave-one-out", is_flag=True, help="Also predict each table from the others.")
@click.option("--summary", is_flag=True, help="Print tables, not every row.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def calibrate(rows: str, out: str | None, *, shipped: bool, **words: bool) -> None:
    """Fit the free constants of each generation to the measured ROWS, and print what is left.

    ROWS.json is {"rows": [...]}; a row has table, instance, ranks, op, dtype, size_bytes, time_us
    and may have nodes, lnc and pair. With several instance types, --out writes a file for each.
    """
    from ncc_runtime.calibration import preset, residuals
    from ncc_runtime.calibration.predict import Predictor
    from ncc_runtime.calibration.rows import read_rows
    from ncc_runtime.neff.whole_file import check_target, write_whole

    if out is not None and shipped:
        raise click.UsageError("--out writes what is fitted, and --shipped fits nothing")
    if out is not None:
        check_target(out, (".toml",))  # before minutes are spent
    measured = read_rows(rows)
    if out is not None:
        for file in preset.targets(out, (row.instance for row in measured)).values():
            check_written({"--out": str(file)}, [rows])
    with shown_count("calibration", "runs of the clock") as watch:
        calibration = residuals.calibrated(
            Predictor(watch), measured, is_fitted=not shipped, leave_one_out=words["leave_one_out"]
        )
    if words["as_json"]:
        click.echo(json.dumps(residuals.as_json(calibration)))
    else:
        click.echo(residuals.as_text(calibration, every_row=not words["summary"]))
    for file, text in preset.presets(calibration, out) if out is not None else ():
        write_whole(file, text.encode())
        click.echo(f"wrote {file}", err=True)
    if not shipped and (doubt := residuals.doubt(calibration)):
        click.echo(f"warning: {doubt}", err=True)


@attrs.frozen
class TimelineRequest:
    """The file of a timeline, and the ranks that it shows; None: all."""

    path: str
    ranks: Sequence[int] | None

    def chosen(self, executable: "Executable") -> "np.ndarray | None":
        """The ranks as a mask; wrong usage for ranks that the program has not."""
        if self.ranks is None:
            return None
        import numpy as np

        count, simulated, last = executable.ranks, executable.representatives, max(self.ranks)
        if last >= count:
            raise click.UsageError(
                f"--trace-ranks: rank {last} is not below the program's {count} ranks"
            )
        if last >= simulated:
            raise click.UsageError(
                f"--trace-ranks: rank {last} does what rank {last % simulated} does, whose "
                f"instance stands for all; name ranks below {simulated}"
            )
        return np.isin(np.arange(simulated), self.ranks)

    def write(self, trace: "Trace", chosen: "np.ndarray | None") -> None:
        """Write the file, with a progress bar on a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        from ncc_runtime.report.timeline.write import write_timeline

        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        silent = not sys.stderr.isatty()
        bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=silent)
        with bar:
            task = bar.add_task(f"events to {self.path}", total=trace.count(chosen))
            write_timeline(self.path, trace, chosen, lambda events: bar.advance(task, events))


def timeline_request(words: Mapping[str, Any]) -> TimelineRequest | None:
    """The options `trace` and `trace_ranks`; None if there is no timeline to write."""
    path, ranks = words["trace"], words["trace_ranks"]
    if path is None:
        if ranks is not None:
            raise click.UsageError("--trace-ranks goes with --trace FILE")
        return None
    if words["no_clock"]:
        raise click.UsageError("--trace needs the clock; leave out --no-clock")
    from ncc_runtime.neff.whole_file import check_target
    from ncc_runtime.report.timeline.write import SUFFIXES

    check_target(path, SUFFIXES)
    return TimelineRequest(path, ranks)
