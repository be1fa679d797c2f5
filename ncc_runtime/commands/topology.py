"""`nccrt topology list` and `show`."""

from typing import Any

import click

from ncc_runtime.command_line import Reply, check_written, examples, replying
from ncc_runtime.commands import completion
from ncc_runtime.commands.options import down_option, known_placement, lnc_option, slow_option


@click.group(
    epilog=examples(
        "nccrt topology list",
        "nccrt topology show trn2 --ranks 8 --svg trn2.svg",
    )
)
def topology() -> None:
    """Show what programs can be placed on."""


@topology.command(
    "list",
    epilog=examples(
        "nccrt topology list --json",
    ),
)
@replying
def topology_list(reply: Reply) -> None:
    """List the instance types that are known."""
    from ncc_runtime.report.topology.text import topologies

    known = topologies()
    reply.give(fields=known.as_dict, text=known.__str__)


@topology.command(
    "show",
    epilog=examples(
        "nccrt topology show trn2 --nodes 2",
        "nccrt topology show own.toml --ranks 8 --svg own.svg",
    ),
)
@click.argument("name", metavar="T", shell_complete=completion.topology)
@click.option(
    "--nodes",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Instances.",
)
@lnc_option
@click.option(
    "--ranks", metavar="N", type=click.IntRange(1), help="Show where this many ranks are placed."
)
@click.option(
    "--placement",
    metavar="linear|spread|FILE.json",
    default="linear",
    show_default=True,
    shell_complete=completion.placement,
    help="How --ranks are placed.",
)
@down_option
@slow_option
@click.option("--svg", type=click.Path(), metavar="FILE", help="Draw it into an SVG file.")
@replying
def topology_show(
    reply: Reply, name: str, svg: str | None, ranks: int | None, **where: Any
) -> None:
    """Draw topology T as text, with its rates and their sources, or as SVG."""
    from ncc_runtime.neff.whole_file import check_target, write_whole
    from ncc_runtime.placement import place
    from ncc_runtime.report.topology.svg import as_svg
    from ncc_runtime.report.topology.text import as_json, describe
    from ncc_runtime.topology.graph import build

    known_placement(where["placement"])
    if svg is not None:
        check_written({"--svg": svg}, [name, where["placement"]])
        check_target(svg)
    faults = (*where["down"], *where["slow"])
    built = build(name, where["nodes"], where["lnc"], faults)
    placed = place(built, ranks, where["placement"]) if ranks else None
    if svg is not None:
        write_whole(svg, as_svg(built, placed).encode())
    drawn = "" if svg is None else f"{svg}: {built.name} drawn"
    reply.give(fields=lambda: as_json(built, placed), text=lambda: drawn or describe(built, placed))
