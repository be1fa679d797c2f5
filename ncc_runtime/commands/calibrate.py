"""`nccrt calibrate`: constants from measured rows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ncc_runtime.command_line import Reply, check_written, examples, replying
from ncc_runtime.commands import completion
from ncc_runtime.commands.options import lnc_option, plot_option
from ncc_runtime.errors import Notice

if TYPE_CHECKING:
    from ncc_runtime.calibration.residuals import Calibration
    from ncc_runtime.calibration.rows import MeasuredRow
    from ncc_runtime.calibration.steps import StepRow


@click.command(
    epilog=examples(
        "nccrt calibrate rows.json --shipped --summary",
        "nccrt calibrate allr.json --op all_reduce -r 64 --topology trn2 -d bf16 --out mine.toml",
    )
)
@click.argument("files", metavar="ROWS...", type=click.Path(), nargs=-1, required=True)
@click.option("--out", metavar="PRESET.toml", type=click.Path(), help="Write a topology file.")
@click.option(
    "--shipped/--fit",
    help="Fit nothing: how far the built-in constants are; or fit them, as by default.",
)
@click.option("--leave-one-out", is_flag=True, help="Also predict each table from the others.")
@click.option("--summary", is_flag=True, help="Print tables, not every row.")
@click.option(
    "--op",
    metavar="OP",
    shell_complete=completion.operator,
    help="The operator of files that do not say it.",
)
@click.option("-r", "--nworkers", "ranks", type=click.IntRange(2), help="Their ranks.")
@click.option("-N", "--nnodes", "nodes", type=click.IntRange(1), help="Their instances [1].")
@click.option(
    *("-d", "--datatype", "dtype"), shell_complete=completion.datatype, help="Their element type."
)
@click.option(
    *("--topology", "instance"),
    metavar="T",
    shell_complete=completion.topology,
    help="Their instance type.",
)
@lnc_option
@plot_option("Draw measured beside predicted times, with bands of errors; extra [plot].")
@replying
def calibrate(
    reply: Reply, files: tuple[str, ...], out: str | None, *, shipped: bool, **words: Any
) -> None:
    """Fit the free constants of each generation to the measured ROWS, and print what is left.

    ROWS is {"rows": [...]}; a row has table, instance, ranks, op, dtype, size_bytes, time_us and
    may have nodes, lnc, pair and algorithm. Or it is a report of nccom-test (JSON, CSV or its
    table), of which options say what it does not: its results name neither operator nor machine.
    Keys beside its results may say it, too: op, ranks, nodes, lnc, dtype, instance. With several
    instance types, --out writes a file for each.

    ROWS may also have {"steps": [...]}, whole steps that were measured: program, a path of a .neff,
    or programs, {path: how often it runs}; instance, time_us; and nodes, lnc, table, name.
    """
    from ncc_runtime.calibration import preset, residuals
    from ncc_runtime.calibration.constants import STEPS_BEGIN
    from ncc_runtime.calibration.predict import Predictor
    from ncc_runtime.calibration.steps import StepPredictor
    from ncc_runtime.neff.whole_file import check_target, write_whole
    from ncc_runtime.report.bench import DTYPES, OPERATORS

    if out is not None and shipped:
        raise click.UsageError("--out writes what is fitted, and --shipped fits nothing")
    for key, known in (("op", OPERATORS), ("dtype", DTYPES)):
        if words[key] is not None and words[key] not in known:
            raise click.UsageError(f"no {key} {words[key]!r}; there are {', '.join(known)}")
    if out is not None:
        check_target(out, (".toml",))  # before minutes are spent
    if words["plot"] is not None:
        from ncc_runtime.report.plot_file import check_can_plot

        check_target(words["plot"])
        check_written({"--plot": words["plot"]}, files)
        check_can_plot()
    unsaid = {
        key: words[key]
        for key in ("op", "ranks", "nodes", "dtype", "instance", "lnc")
        if words[key] is not None
    }
    measured, steps = _rows(files, unsaid)
    if out is not None:
        instances = [row.instance for row in measured] + [row.instance for row in steps]
        for file in preset.targets(out, instances).values():
            check_written({"--out": str(file)}, files)
    asked = {"is_fitted": not shipped, "leave_one_out": words["leave_one_out"]}
    of_collectives: Calibration | None = None
    of_steps: Calibration | None = None
    if measured:
        of_collectives = residuals.calibrated(Predictor(), measured, **asked)
    if steps:
        found = None if of_collectives is None else of_collectives.constants
        of_steps = residuals.calibrated(StepPredictor(found), steps, begin=STEPS_BEGIN, **asked)
    calibrations = [one for one in (of_collectives, of_steps) if one is not None]
    written = []
    for path, text in preset.presets(calibrations, out) if out is not None else ():
        write_whole(path, text.encode())
        written.append(str(path))
    if words["plot"] is not None:
        from ncc_runtime.calibration.residual_plot import plotted

        write_whole(words["plot"], plotted(calibrations, words["plot"]))
    reply.give(
        fields=lambda: {**residuals.as_json(of_collectives, of_steps), "written": written},
        text=lambda: "\n\n".join(
            residuals.as_text(one, every_row=not words["summary"]) for one in calibrations
        ),
    )
    for name in written:
        reply.say(f"wrote {name}")
    for one in calibrations:
        if untold := residuals.undetermined(one):
            reply.warn([Notice("undetermined", untold, "docs/timing.md#calibration")])


def _rows(
    files: Sequence[str], unsaid: Mapping[str, object]
) -> "tuple[tuple[MeasuredRow, ...], tuple[StepRow, ...]]":
    """Rows of collectives and of steps; a file has either, or both."""
    from ncc_runtime.calibration.measured_files import has_rows, read_measured
    from ncc_runtime.calibration.steps import read_steps

    measured: tuple[MeasuredRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    for file in files:
        of_file = read_steps(file)
        steps += of_file
        if not of_file or has_rows(file):
            measured += read_measured(file, unsaid)
    return measured, steps
