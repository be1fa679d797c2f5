"""`nccrt calibrate`: constants from measured rows."""

import click

from ncc_runtime.command_line import Reply, check_written, examples, replying
from ncc_runtime.errors import Notice


@click.command(
    epilog=examples(
        "nccrt calibrate rows.json --shipped --summary",
    )
)
@click.argument("rows", metavar="ROWS.json", type=click.Path())
@click.option("--out", metavar="PRESET.toml", type=click.Path(), help="Write a topology file.")
@click.option("--shipped", is_flag=True, help="Fit nothing: how far the built-in constants are.")
@click.option("--leave-one-out", is_flag=True, help="Also predict each table from the others.")
@click.option("--summary", is_flag=True, help="Print tables, not every row.")
@replying
def calibrate(reply: Reply, rows: str, out: str | None, *, shipped: bool, **words: bool) -> None:
    """Fit the free constants of each generation to the measured ROWS, and print what is left.

    ROWS.json is {"rows": [...]}; a row has table, instance, ranks, op, dtype, size_bytes, time_us
    and may have nodes, lnc, pair and algorithm. With several instance types, --out writes a file
    for each.
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
    calibration = residuals.calibrated(
        Predictor(), measured, is_fitted=not shipped, leave_one_out=words["leave_one_out"]
    )
    written = []
    for file, text in preset.presets(calibration, out) if out is not None else ():
        write_whole(file, text.encode())
        written.append(str(file))
    reply.give(
        fields=lambda: {**residuals.as_json(calibration), "written": written},
        text=lambda: residuals.as_text(calibration, every_row=not words["summary"]),
    )
    for name in written:
        reply.say(f"wrote {name}")
    if not shipped and (doubt := residuals.doubt(calibration)):
        reply.warn([Notice("few-rows", doubt, "docs/timing.md#calibration")])
