"""`nccrt sweep`: many settings at once, each computed once; and the best layout of a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ncc_runtime.command_line import Reply, check_written, examples, replying
from ncc_runtime.commands.options import plot_file
from ncc_runtime.errors import InputError

if TYPE_CHECKING:
    from ncc_runtime.sweep.sweep import Sweep


@click.command(
    epilog=examples(
        "nccrt sweep sizes.toml --csv sizes.csv --plot sizes.svg",
        "nccrt sweep sizes.toml --dask tcp://10.0.0.1:8786",
    )
)
@click.argument("file", metavar="SWEEP.toml", type=click.Path())
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
    help="Processes of this machine [a processor each].",
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
@click.option("--again", is_flag=True, help="Compute points that have failed once more.")
@click.option(
    "--top",
    metavar="N",
    type=click.IntRange(1),
    help="Rows of each task that the table shows [all, up to 60 rows].",
)
@click.option("--csv", metavar="F", type=click.Path(), help="Write all rows to this file, as CSV.")
@click.option(
    "--plot",
    metavar="F.svg|F.png",
    type=click.Path(),
    callback=plot_file,
    help="Draw times over sizes, and over instances with the front; extra [plot].",
)
@click.option(
    "--series", metavar="KEY", help="Which key of the points has a line for each of its words."
)
@replying
def sweep(reply: Reply, file: str, **words: Any) -> None:
    """Compute all points that SWEEP.toml says, on all processors or a cluster.

    A sweep that was stopped, however it was, goes on where it was when the command is given again.
    """
    from ncc_runtime.sweep import sweep as points
    from ncc_runtime.sweep.sweep_file import SweepFile
    from ncc_runtime.sweep.workers import Workers, processors

    out = words["out"] or str(Path(file).with_suffix(".jsonl"))
    _check_files(out, [file], words)
    if words["cluster"] is not None and words["jobs"] is not None:
        raise click.UsageError("--jobs is of this machine, and --dask of another")
    read = SweepFile(file)
    found = points.read(read.points, read.error)
    workers = Workers(words["jobs"] or processors(), words["cluster"])
    _perform(reply, found, workers, out, file, words)


def _check_files(out: str, read: Sequence[str], words: Mapping[str, Any]) -> None:
    """Refuse before the work what could not be written or drawn after it."""
    from ncc_runtime.neff.whole_file import check_target
    from ncc_runtime.report.plot_file import check_can_plot

    written = {"--out": out, "--csv": words["csv"], "--plot": words["plot"]}
    check_written(written, read)
    for target in filter(None, written.values()):
        check_target(target)
    if words["plot"]:
        check_can_plot()


def _perform(
    reply: Reply,
    sweep: "Sweep",
    workers: Any,
    out: str,
    name: str,
    words: Mapping[str, Any],
) -> None:
    """Compute what is left, then say what there is; also of a sweep that is stopped."""
    from ncc_runtime.sweep.store import result_file

    with result_file(out) as results:
        try:
            sweep.compute(results, workers, words["timeout"], again=words["again"])
        except KeyboardInterrupt:
            _give(reply, sweep, results.results, name, words)
            raise
        _give(reply, sweep, results.results, name, words)


def _give(
    reply: Reply,
    sweep: "Sweep",
    results: Mapping[str, Any],
    name: str,
    words: Mapping[str, Any],
) -> None:
    from ncc_runtime.neff.whole_file import write_whole
    from ncc_runtime.sweep.report import SweepReport, in_order

    rows = in_order(list(sweep.rows(results)))
    report = SweepReport(name, tuple(rows), len(sweep.points) - len(rows))
    if words["csv"]:
        write_whole(words["csv"], report.as_csv().encode())
    reply.give(fields=report.as_json, text=lambda: report.as_text(words["top"]))
    if rows and not report.left and not any(row.is_done for row in rows):
        raise InputError(f"no point of {name} could be computed")
