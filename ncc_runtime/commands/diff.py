"""`nccrt diff`: what another place changes."""

from collections.abc import Sequence
from typing import Any

import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands import completion
from ncc_runtime.commands.options import (
    PlaceWords,
    algorithm_option,
    filled,
    ignore_memory_option,
    place_of,
    policy_apart,
    policy_option,
    program_argument,
    program_of_words,
    strict_option,
    trip_counts,
)
from ncc_runtime.options import plans_apart


@click.command(
    epilog=examples(
        "nccrt diff step.neff --on trn1 --on trn2,nodes=2",
        "nccrt diff step.neff --on trn2,down=c0-c1 --on trn2,down=c0-c1,policy=best",
    )
)
@program_argument
@click.option(
    *("--on", "places"),
    metavar="SPEC",
    multiple=True,
    shell_complete=completion.place,
    help="A place; give two.",
)
@algorithm_option
@policy_option
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
@replying
def diff(reply: Reply, program: Sequence[str], places: Sequence[str], **words: Any) -> None:
    """Say what another place changes: algorithms, transports, links, instructions, time."""
    from ncc_runtime.report import diff as report

    if len(places) != 2:
        raise click.UsageError(f"--on is given {len(places)} times; two places are compared")
    algorithms, plans = plans_apart(words["algorithms"], ())
    sides = [
        PlaceWords(
            on, {}, algorithms, words["strict"], plans, words["ignore_memory"], policy=policy
        )
        for on, policy in (policy_apart(on, words["policy"]) for on in places)
    ]
    targets = [place_of(place) for place in sides]
    compiled = program_of_words(program)
    first, second = (
        filled(compiled, place, where) for place, where in zip(sides, targets, strict=True)
    )
    runs = [
        model.run(values=False, verify=False, trip_counts=words["counts"], clock=True)
        for model in (first, second)
    ]
    comparison = report.compared((first.executable, second.executable), (runs[0], runs[1]))
    reply.give(fields=lambda: report.as_json(comparison), text=lambda: report.as_text(comparison))
