"""`nccrt sweep`: many points at once, each computed once; and the best layout of a model."""

import contextlib
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ncc_runtime.command_line import Reply, check_written, examples, replying
from ncc_runtime.commands import completion
from ncc_runtime.commands.options import plot_option, rank_list
from ncc_runtime.errors import InputError, Notice

if TYPE_CHECKING:
    from ncc_runtime.sweep.results import PointResult
    from ncc_runtime.sweep.sweep import Sweep
    from ncc_runtime.sweep.sweep_file import PointWords


def _axes(_: click.Context, __: click.Parameter, text: str) -> list[str]:
    axes = text.split(",")
    if len(set(axes)) < len(axes) or not all(axis.isidentifier() for axis in axes):
        raise click.BadParameter(f"{text!r} are no names of axes, such as data,model")
    return axes


@click.command(
    epilog=examples(
        "nccrt sweep sizes.toml --csv sizes.csv --plot sizes.svg",
        "nccrt sweep sizes.toml --dask tcp://10.0.0.1:8786",
        "nccrt sweep --best train.py:step --ranks 64 --on trn2 --on trn1",
    )
)
@click.argument("file", metavar="[SWEEP.toml]", type=click.Path(), required=False)
@click.option(
    "--best",
    "model",
    metavar="FILE.py:FUNCTION",
    help="Try all layouts of a model of JAX, whose function takes its mesh.",
)
@click.option(
    "--ranks",
    metavar="N[,N]...",
    callback=rank_list,
    help="With --best: over how many ranks.",
)
@click.option(
    "--axes",
    metavar="AXIS,…",
    default="data,model",
    show_default=True,
    callback=_axes,
    help="With --best: the axes of its mesh, the outermost first; of a model in stages theirs.",
)
@click.option(
    "--on",
    "places",
    metavar="SPEC",
    multiple=True,
    shell_complete=completion.place,
    help="With --best: where, in one word such as trn2,nodes=2; each is tried [trn2].",
)
@click.option(
    "-O",
    "level",
    type=click.IntRange(0, 2),
    default=1,
    show_default=True,
    help="With --best: the level of nccc's optimisation.",
)
@click.option(
    "--samples",
    metavar="N",
    help="With --best: compare times of a sample; how many a run is of, as 512 or 8*data.",
)
@click.option(
    *("-o", "--out"),
    metavar="F.jsonl",
    type=click.Path(),
    help="Where results are kept, a line a point; those that are there are not computed again "
    "[SWEEP.jsonl].",
)
@click.option(
    *("-j", "--jobs"),
    metavar="N",
    type=click.IntRange(1, 4096),
    help="Processes of this machine [one for each processor].",
)
@click.option(
    "--dask",
    "cluster",
    metavar="ADDRESS",
    help="The scheduler of a Dask cluster, tcp://HOST:PORT or its scheduler file, whose workers "
    "compute in place of this machine; extra [dask].",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    help="A point that takes longer has failed [none].",
)
@click.option("--again", is_flag=True, help="Compute once more what was refused or has failed.")
@click.option(
    "--top",
    metavar="N",
    type=click.IntRange(1),
    help="Rows of each task that the table shows [so many that there are 60].",
)
@click.option("--csv", metavar="F", type=click.Path(), help="Write all rows to this file, as CSV.")
@plot_option("Draw times over sizes, or of the best points, and over instances; extra [plot].")
@click.option(
    "--series",
    metavar="KEY",
    help="With --plot: the key of points whose words have a line each [the first that varies].",
)
@replying
def sweep(reply: Reply, file: str | None, model: str | None, **words: Any) -> None:
    """Compute all points that SWEEP.toml says, on all processors or a cluster.

    A sweep that was stopped, however it was, goes on where it was when the command is given again.
    """
    from ncc_runtime.neff.whole_file import check_target
    from ncc_runtime.report.plot_file import check_can_plot
    from ncc_runtime.sweep import sweep as points
    from ncc_runtime.sweep.layouts import layouts
    from ncc_runtime.sweep.plot import check_series
    from ncc_runtime.sweep.store import result_file
    from ncc_runtime.sweep.sweep_file import SweepFile
    from ncc_runtime.sweep.workers import Workers, check_can_use, processors

    if (file is None) == (model is None):
        raise click.UsageError("give SWEEP.toml, or --best FILE.py:FUNCTION")
    if file is not None and words["ranks"] is not None:
        raise click.UsageError("--ranks is for --best; SWEEP.toml says its own")
    if words["series"] is not None and not words["plot"]:
        raise click.UsageError("--series is for --plot")
    if words["cluster"] is not None and words["jobs"] is not None:
        raise click.UsageError("--jobs is of this machine, and --dask of another")
    name = file or model or ""
    source, _, function = name.partition(".py:")
    source = name if file is not None else f"{source}.py"
    out = words["out"] or f"{Path(source).with_suffix('')}{'-' * bool(function)}{function}.jsonl"
    written = {"--out": out, "--csv": words["csv"], "--plot": words["plot"]}
    check_written(written, [source])
    for target in filter(None, written.values()):
        check_target(target)
    if words["plot"]:
        check_can_plot()
    workers = Workers(words["jobs"] or processors(), words["cluster"])
    check_can_use(workers)
    folder = Path(f"{Path(out).with_suffix('')}.programs")
    if file is not None:
        read = SweepFile(file)
        found = points.read(read.points, read.error, folder, workers.processes)
    else:
        if words["ranks"] is None:
            raise click.UsageError("--best needs --ranks, over how many")
        common = {"level": words["level"]}
        if words["samples"] is not None:
            common["samples"] = words["samples"]
        tried = layouts(name, words["ranks"], words["axes"], words["places"], common)
        found = points.read(tried, _wrong_option, folder, workers.processes)
    if words["series"] is not None:
        check_series(words["series"], [point.words.shown for point in found.points])
    with result_file(out) as results, interrupted_by(signal.SIGTERM):
        if results.broken:
            fact = f"{out}: {results.broken} lines are no results of this version, and do not count"
            reply.warn([Notice("broken-lines", fact, "docs/sweeps.md#results")])
        try:
            found.compute(results, workers, words["timeout"], again=words["again"])
        except KeyboardInterrupt:
            _give(reply, found, results.results, name, words)
            raise
        _give(reply, found, results.results, name, words)


@contextlib.contextmanager
def interrupted_by(number: signal.Signals) -> Iterator[None]:
    """KeyboardInterrupt inside when that signal comes: schedulers send SIGTERM for Control-C."""
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _wrong_option(_: "PointWords", error: Exception) -> Exception:
    return click.UsageError(f"--{getattr(error, 'key', '')}: {error}")


def _give(
    reply: Reply,
    sweep: "Sweep",
    results: "Mapping[str, PointResult]",
    name: str,
    words: Mapping[str, Any],
) -> None:
    """What there is: all, or of a sweep that is stopped a part."""
    from ncc_runtime.neff.whole_file import write_whole
    from ncc_runtime.sweep.report import SweepReport, in_order

    rows = in_order(list(sweep.rows(results)))
    report = SweepReport(name, tuple(rows), len(sweep.points) - len(rows))
    if words["csv"]:
        write_whole(words["csv"], report.as_csv().encode())
    if words["plot"] and any(row.is_done for row in rows):
        from ncc_runtime.sweep.plot import plotted

        write_whole(words["plot"], plotted(report, words["plot"], words["series"]))
    reply.give(fields=report.as_json, text=lambda: report.as_text(words["top"]))
    if rows and not report.left and not any(row.is_done for row in rows):
        raise InputError(f"no point of {name} could be computed")
