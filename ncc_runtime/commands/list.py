"""`nccrt list`: the placed program of a rank."""

from collections.abc import Sequence

import click

from ncc_runtime.command_line import Reply, replying
from ncc_runtime.commands.options import PlaceWords, loaded, place_options, program_argument


@click.command("list")
@program_argument
@place_options
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True)
@click.option("--queue", metavar="Q", help="One queue: Tensor, Vector, …, cc0, cc0.dma0.")
@replying
def list_command(
    reply: Reply, program: Sequence[str], place: PlaceWords, rank: int, queue: str | None
) -> None:
    """Print the placed program of one rank, placeholders filled."""
    from ncc_runtime.lowering.listing import list_executable, queue_names

    model = loaded(program, place)
    executable = model.executable
    if rank >= executable.ranks:
        raise click.UsageError(f"rank {rank} is not below the program's {executable.ranks} ranks")
    names = queue_names(executable)
    if queue is not None and queue not in names:
        raise click.UsageError(f"no queue {queue!r}; there are {', '.join(names)}")
    text = list_executable(executable, rank, queue)
    reply.give(fields=lambda: {"listing": text.splitlines()}, text=lambda: text)
    reply.warn(model.warnings)
