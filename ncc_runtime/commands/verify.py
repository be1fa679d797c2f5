"""`nccrt verify`: the proofs."""

from collections.abc import Sequence

import click

from ncc_runtime.command_line import Reply, replying
from ncc_runtime.commands.options import PlaceWords, loaded, place_options, program_argument


@click.command()
@program_argument
@place_options
@replying
def verify(reply: Reply, program: Sequence[str], place: PlaceWords) -> None:
    """Prove of PROGRAM on its place: no deadlock, no race, and collectives that are right."""
    from ncc_runtime.report import run as report
    from ncc_runtime.verify.prove import refuse

    model = loaded(program, place)
    facts = (model.executable, model.proofs)
    reply.give(fields=lambda: report.as_json(*facts), text=lambda: report.as_text(*facts))
    reply.warn(model.warnings)
    refuse(model.proofs, shown=0)
