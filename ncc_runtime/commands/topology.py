"""`nccrt topology list` and `show`."""

from typing import Any

import click

from ncc_runtime.command_line import check_written
from ncc_runtime.commands.options import down_option, known_placement, slow_option


@click.group()
def topology() -> None:
    """Show what programs can be placed on."""


@topology.command("list")
def topology_list() -> None:
    """List the instance types that are known."""
    from ncc_runtime.report.topology.text import list_topologies

    for row in list_topologies():
        names = ", ".join((row.name, *row.aliases))
        joins = f"can be joined over {row.joins}" if row.joins else "one instance only"
        example = "example: " if row.is_example else ""
        counts = f"chips {row.chips:>3}, ranks {row.ranks:>3}"
        click.echo(f"{names:<27} {counts}, {joins:<29} {example}{row.summary}")


@topology.command("show")
@click.argument("name", metavar="T")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True)
@click.option("--lnc", type=click.IntRange(1, 2))
@click.option("--ranks", type=click.IntRange(1), help="Show where this many ranks are placed.")
@click.option("--placement", default="linear", show_default=True)
@down_option
@slow_option
@click.option("--svg", type=click.Path(), metavar="FILE", help="Draw it into an SVG file.")
def topology_show(name: str, svg: str | None, ranks: int | None, **where: Any) -> None:
    """Draw topology T as text, with its rates and their sources, or as SVG."""
    from ncc_runtime.neff.whole_file import check_target, write_whole
    from ncc_runtime.placement import place
    from ncc_runtime.report.topology.text import describe
    from ncc_runtime.topology.graph import build

    known_placement(where["placement"])
    if svg is not None:
        check_written({"--svg": svg}, [name, where["placement"]])
        check_target(svg)
    faults = (*where["down"], *where["slow"])
    built = build(name, where["nodes"], where["lnc"], faults)
    placed = place(built, ranks, where["placement"]) if ranks else None
    if svg is None:
        click.echo(describe(built, placed))
        return
    from ncc_runtime.report.topology.svg import as_svg

    write_whole(svg, as_svg(built, placed).encode())
    click.echo(f"{svg}: {built.name} drawn")
