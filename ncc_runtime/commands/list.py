"""`nccrt list`: the placed program of a rank."""

from collections.abc import Sequence

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands.options import PlaceWords, loaded, place_options, program_argument
from ncc_runtime.errors import InputError


@click.command(
    "list",
    epilog=examples(
        "nccrt list step.neff --topology trn2 --rank 3 --queue cc0.dma0",
    ),
)
@program_argument
@place_options
@click.option(
    "--rank",
    metavar="R",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Whose queues.",
)
@click.option("--queue", metavar="Q", help="One queue: Tensor, Vector, …, cc0, cc0.dma0.")
@replying
def list_command(
    reply: Reply, program: Sequence[str], place: PlaceWords, rank: int, queue: str | None
) -> None:
    """Print the placed program of one rank, placeholders filled."""
    model = loaded(program, place)
    try:
        listing = model.list(rank, queue)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    reply.give(fields=listing.as_dict, text=lambda: listing.text)
    reply.warn(model.warnings)
