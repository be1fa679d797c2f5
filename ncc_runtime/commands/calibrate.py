"""`nccrt calibrate`: constants from measured rows."""

from typing import Any

import click

from ncc_runtime.command_line import Reply, check_written, examples, replying
from ncc_runtime.commands import completion
from ncc_runtime.commands.options import lnc_option
from ncc_runtime.errors import Notice


@click.command(
    epilog=examples(
        "nccrt calibrate rows.json --shipped --summary",
        "nccrt calibrate allr.json --op all_reduce -r 64 --topology trn2 -d bf16 --out mine.toml",
    )
)
@click.argument("files", metavar="ROWS...", type=click.Path(), nargs=-1, required=True)
@click.option("--out", metavar="PRESET.toml", type=click.Path(), help="Write a topology file.")
@click.option("--shipped", is_flag=True, help="Fit nothing: how far the built-in constants are.")
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
    """
    from ncc_runtime.calibration import preset, residuals
    from ncc_runtime.calibration.measured_files import read_measured
    from ncc_runtime.calibration.predict import Predictor
    from ncc_runtime.neff.whole_file import check_target, write_whole
    from ncc_runtime.report.bench import DTYPES, OPERATORS

    if out is not None and shipped:
        raise click.UsageError("--out writes what is fitted, and --shipped fits nothing")
    for key, known in (("op", OPERATORS), ("dtype", DTYPES)):
        if words[key] is not None and words[key] not in known:
            raise click.UsageError(f"no {key} {words[key]!r}; there are {', '.join(known)}")
    if out is not None:
        check_target(out, (".toml",))  # before minutes are spent
    unsaid = {
        key: words[key]
        for key in ("op", "ranks", "nodes", "dtype", "instance", "lnc")
        if words[key] is not None
    }
    measured = tuple(row for file in files for row in read_measured(file, unsaid))
    if out is not None:
        for file in preset.targets(out, (row.instance for row in measured)).values():
            check_written({"--out": str(file)}, files)
    calibration = residuals.calibrated(
        Predictor(), measured, is_fitted=not shipped, leave_one_out=words["leave_one_out"]
    )
    written = []
    for path, text in preset.presets(calibration, out) if out is not None else ():
        write_whole(path, text.encode())
        written.append(str(path))
    reply.give(
        fields=lambda: {**residuals.as_json(calibration), "written": written},
        text=lambda: residuals.as_text(calibration, every_row=not words["summary"]),
    )
    for name in written:
        reply.say(f"wrote {name}")
    if untold := residuals.undetermined(calibration):
        reply.warn([Notice("undetermined", untold, "docs/timing.md#calibration")])
