"""`nccrt list`: the placed program of one rank, or of several."""

from collections.abc import Sequence

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands.options import (
    PlaceWords,
    loaded,
    place_options,
    program_argument,
    rank_list,
)


def _ranks(context: click.Context, parameter: click.Parameter, text: str) -> Sequence[int] | None:
    """Ranks in order, each once; None for all."""
    listed = None if text == "all" else rank_list(context, parameter, text)
    return None if listed is None else sorted(set(listed))


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
    "ranks",
    metavar="R|R-R,R|all",
    default="0",
    show_default=True,
    callback=_ranks,
    help="Whose queues; of several, what is the same is listed once.",
)
@click.option("--queue", metavar="Q", help="One queue: Tensor, Vector, …, cc0, cc0.dma0.")
@replying
def list_command(
    reply: Reply,
    program: Sequence[str],
    place: PlaceWords,
    ranks: Sequence[int] | None,
    queue: str | None,
) -> None:
    """Print the placed program of a rank, placeholders filled."""
    from ncc_runtime.lowering.listing import as_text, listed_queues, queue_names

    model = loaded(program, place)
    executable = model.executable
    ranks = range(executable.ranks) if ranks is None else ranks
    if ranks[-1] >= executable.ranks:
        raise click.UsageError(
            f"rank {ranks[-1]} is not below the program's {executable.ranks} ranks"
        )
    names = queue_names(executable)
    if queue is not None and queue not in names:
        raise click.UsageError(f"no queue {queue!r}; there are {', '.join(names)}")
    listed = listed_queues(executable, ranks, queue)
    text = as_text(executable, ranks, listed)
    reply.give(
        fields=lambda: {
            "listing": text.splitlines(),
            **executable.placement.as_json(),
            "policy": executable.policy,
            "deterministic": executable.is_deterministic,
            "ranks": list(ranks),
            "queues": [each.as_json() for each in listed],
        },
        text=lambda: text,
    )
    reply.warn(model.warnings)
