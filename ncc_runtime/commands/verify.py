"""`nccrt verify`: the proofs."""

from collections.abc import Sequence

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands.options import PlaceWords, loaded, place_options, program_argument


@click.command(
    epilog=examples(
        "nccrt verify step.neff --topology trn1 --algorithm all-reduce=ring",
    )
)
@program_argument
@place_options
@replying
def verify(reply: Reply, program: Sequence[str], place: PlaceWords) -> None:
    """Prove of PROGRAM on its place: no deadlock, no race, and collectives that are right."""
    from ncc_runtime.verify.prove import refuse

    model = loaded(program, place)
    verification = model.verify()
    reply.give(fields=verification.as_dict, text=verification.__str__)
    reply.warn(model.warnings)
    refuse(model.proofs, shown=0)
