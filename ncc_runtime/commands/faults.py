"""`nccrt faults`: what faults during a run do."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands.options import (
    PlaceWords,
    loaded,
    place_options,
    program_argument,
    size,
)
from ncc_runtime.errors import InputError

if TYPE_CHECKING:
    from ncc_runtime.array_files import StoredArray


@click.command(
    epilog=examples(
        "nccrt faults step.neff --topology trn2 --all dma.lost",
        "nccrt faults step.neff --fault 'at 60us: rank 3 dead'",
        "nccrt faults step.neff --on trn2,nodes=2 --all bit.transfer --runs 500 --seed 1",
    )
)
@program_argument
@place_options
@click.option(
    "--fault",
    "specs",
    metavar="SPEC",
    multiple=True,
    help="A fault, such as 'at 60us: rank 3 dead'; several come in one run.",
)
@click.option(
    "--all",
    "class_name",
    metavar="CLASS",
    help="Try every single fault of a class, such as dma.lost, rank.dead, link.down, bit.transfer.",
)
@click.option(
    "--runs",
    metavar="N",
    type=click.IntRange(1),
    help="With --all: try N faults, drawn from the seed [all, of bits 200]. With --fault: N seeds.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of what is drawn: faults, and missing inputs.",
)
@click.option("--inputs", type=click.Path(), help="As those of `nccrt run`.")
@click.option(
    "--memory",
    metavar="BYTES",
    callback=size,
    help="Host memory it may take [80 % of what is free].",
)
@click.option("--no-verify", is_flag=True, help="Without proofs: all values are compared.")
@replying
def faults(reply: Reply, program: Sequence[str], place: PlaceWords, **words: Any) -> None:
    """Say of faults during a run of PROGRAM what they do: nothing, wrong values, a stall, why."""
    from ncc_runtime import array_files
    from ncc_runtime.faults import campaign
    from ncc_runtime.faults.single_faults import class_named, faults_of
    from ncc_runtime.faults.single_faults import given as given_faults
    from ncc_runtime.options import RunOptions
    from ncc_runtime.report.run import facts, heading

    if bool(words["specs"]) == bool(words["class_name"]):
        raise click.UsageError("give --fault SPEC, or --all CLASS")
    try:
        kind = class_named(words["class_name"]) if words["class_name"] else None
    except InputError as error:
        raise click.UsageError(f"--all: {error}") from error
    model = loaded(program, place)
    inputs: contextlib.AbstractContextManager[Mapping[str, StoredArray]]
    inputs = contextlib.nullcontext({})
    if words["inputs"]:
        inputs = array_files.open_arrays(words["inputs"])
    options = RunOptions(memory_bytes=words["memory"], verify=not words["no_verify"])
    with inputs as given:
        laboratory = model.laboratory(given, seed=words["seed"], options=options)
        if kind is None:
            runs = words["runs"] or 1
            kind, chosen = given_faults(words["specs"], laboratory, runs, words["seed"])
            there_are = runs
        else:
            there_are, chosen = faults_of(kind, laboratory, words["runs"], words["seed"])
        result = campaign.campaign(laboratory, kind, there_are, chosen)
    reply.give(
        fields=lambda: {**facts(model.executable), **campaign.as_json(result)},
        text=lambda: campaign.as_text(result, heading(model.executable).splitlines()[0]),
    )
    reply.warn(model.warnings)
