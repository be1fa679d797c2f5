"""`nccrt diff`: what another place or another choice changes."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands import completion
from ncc_runtime.commands.options import (
    PlaceWords,
    algorithm_option,
    choice_of,
    deterministic_option,
    filled,
    ignore_memory_option,
    place_of,
    policy_option,
    program_argument,
    program_of_words,
    strict_option,
    trip_counts,
)
from ncc_runtime.options import plans_apart

if TYPE_CHECKING:
    from ncc_runtime.bits.compared import BitsDiff
    from ncc_runtime.runtime import Model


@click.command(
    epilog=examples(
        "nccrt diff step.neff --on trn1 --on trn2,nodes=2",
        "nccrt diff step.neff --on trn2,down=c0-c1 --on trn2,down=c0-c1,policy=best",
        "nccrt diff step.neff --on trn1,nodes=2 --on trn2 --bits --seed 0",
    )
)
@program_argument
@click.option(
    *("--on", "places"),
    metavar="SPEC",
    multiple=True,
    shell_complete=completion.place,
    help="A place; give two. policy=P, algorithm=OP=NAME and deterministic belong here, too.",
)
@algorithm_option
@policy_option
@deterministic_option
@strict_option
@ignore_memory_option
@click.option(
    "--trip-count",
    "counts",
    metavar="NAME=N",
    multiple=True,
    callback=trip_counts,
    help="How often each loop of that name runs, or which branch, where data decides.",
)
@click.option(
    "--bits",
    is_flag=True,
    help="Say where collectives reduce in another order, and how far that can take results.",
)
@click.option(
    "--inputs",
    type=click.Path(),
    help="With --bits: run both with these values, as nccrt run, and say what the orders made.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    help="With --bits: the same with values at random, for inputs that are not given.",
)
@replying
def diff(reply: Reply, program: Sequence[str], places: Sequence[str], **words: Any) -> None:
    """Say what another place changes: algorithms, transports, links, instructions, time, bits."""
    from ncc_runtime.report import diff as report

    if len(places) != 2:
        raise click.UsageError(f"--on is given {len(places)} times; two places are compared")
    has_values = words["inputs"] is not None or words["seed"] is not None
    if has_values and not words["bits"]:
        raise click.UsageError("--inputs and --seed go with --bits: the rest needs no values")
    if words["bits"] and words["ignore_memory"]:
        raise click.UsageError("--bits needs memory for every rank; leave out --ignore-memory")
    if has_values and words["counts"]:
        raise click.UsageError("--trip-count goes without values; else computed values decide")
    sides = []
    for on in places:
        choice = choice_of(on, words["policy"], words["deterministic"], words["algorithms"])
        algorithms, plans = plans_apart(choice.algorithms, ())
        sides.append(
            PlaceWords(
                choice.on,
                {},
                algorithms,
                words["strict"],
                plans,
                words["ignore_memory"],
                choice.policy,
                choice.deterministic,
            )
        )
    targets = [place_of(place) for place in sides]
    compiled = program_of_words(program)
    first, second = (
        filled(compiled, place, where) for place, where in zip(sides, targets, strict=True)
    )
    bits: BitsDiff | None = None
    if words["bits"]:
        bits = compared_bits(first, second, words, has_values)
    runs = [
        model.run(values=False, verify=False, trip_counts=words["counts"], clock=True)
        for model in (first, second)
    ]
    comparison = report.compared((first.executable, second.executable), (runs[0], runs[1]))

    def fields() -> Mapping[str, Any]:
        if bits is None:
            return report.as_json(comparison)
        from ncc_runtime.bits.compared import as_json

        return {**report.as_json(comparison), "bits": as_json(bits)}

    def text() -> str:
        if bits is None:
            return report.as_text(comparison)
        from ncc_runtime.bits.compared import as_text

        return f"{report.as_text(comparison)}\n{as_text(bits)}"

    reply.give(fields=fields, text=text)


def compared_bits(
    first: "Model", second: "Model", words: Mapping[str, Any], has_values: bool
) -> "BitsDiff":
    """Where two models reduce in another order; with values, what that made."""
    from ncc_runtime import array_files
    from ncc_runtime.bits.compared import BitsComparison

    comparison = BitsComparison((first.executable, second.executable))
    if not has_values:
        return comparison.result()
    inputs: contextlib.AbstractContextManager[Mapping[str, array_files.StoredArray]]
    inputs = contextlib.nullcontext({})
    if words["inputs"]:
        inputs = array_files.open_arrays(words["inputs"])
    with inputs as given:
        outputs = [
            model.run(given, seed=words["seed"], clock=False, watch=watch).outputs
            for model, watch in ((first, comparison.watch), (second, None))
        ]
    return comparison.result((outputs[0], outputs[1]))
