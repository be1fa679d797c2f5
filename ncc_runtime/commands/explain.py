"""`nccrt explain`: why an algorithm was chosen."""

from collections.abc import Sequence

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands.options import (
    PlaceWords,
    check_outputs_of,
    files_of,
    loaded,
    place_options,
    program_argument,
)


@click.command(
    epilog=examples(
        "nccrt explain step.neff --on trn2,placement=spread",
        "nccrt explain step.neff --save-plan plan.json",
    )
)
@program_argument
@place_options
@click.option("--save-plan", "save", type=click.Path(), metavar="FILE", help="Write the plans.")
@replying
def explain(reply: Reply, program: Sequence[str], place: PlaceWords, save: str | None) -> None:
    """Say for every collective of PROGRAM which algorithms could fill it, and why one does."""
    from ncc_runtime.neff.whole_file import check_target, write_whole
    from ncc_runtime.report import explain as report

    if save is not None:
        check_outputs_of({"--save-plan": save}, place, files_of(program))
        check_target(save)
    model = loaded(program, place)
    explanation = model.explain()
    if save is not None:
        write_whole(save, report.saved(explanation))
    reply.give(fields=explanation.as_dict, text=explanation.__str__)
    reply.warn(model.warnings)
