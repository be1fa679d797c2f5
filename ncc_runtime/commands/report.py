"""`nccrt report`: a run as one page for a browser."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands import completion
from ncc_runtime.commands.options import (
    PlaceWords,
    check_outputs_of,
    choice_of,
    exec_timeout_option,
    fault_options,
    files_of,
    filled,
    memory_option,
    per_step_option,
    place_of,
    place_options,
    program_argument,
    program_of_words,
    rank_list,
    threads_option,
    trip_counts,
)
from ncc_runtime.errors import InputError, StallError
from ncc_runtime.options import Alternatives, plans_apart

if TYPE_CHECKING:
    from ncc_runtime.array_files import StoredArray


@click.command(
    epilog=examples(
        "nccrt report step.neff --topology trn2 -o report.html",
        "nccrt report step.neff --on trn2 --against trn2,placement=spread -o both.html",
        "nccrt report step.neff --fault 'at 20us: link c0-c1 down for 50us' -o fault.html",
    )
)
@program_argument
@place_options
@click.option(
    *("-o", "--output", "output"),
    metavar="FILE.html",
    type=click.Path(),
    required=True,
    help="The file to write.",
)
@click.option(
    "--against",
    metavar="SPEC",
    shell_complete=completion.place,
    help="Another place, as --on names it, which is shown beside the first.",
)
@click.option(
    "--ranks",
    metavar="0-3,8",
    callback=rank_list,
    help="Ranks whose tracks the timeline has [all].",
)
@click.option(
    "--alternatives",
    type=click.Choice([word.value for word in Alternatives]),
    default=Alternatives.PLACEMENT.value,
    show_default=True,
    help="What else is timed: the other of linear and spread, and with all, both policies, which "
    "may take minutes.",
)
@click.option(
    "--inputs",
    type=click.Path(),
    help="Values as for nccrt run, which decide how often loops run.",
)
@click.option("--values", is_flag=True, help="Compute values, too, where they decide.")
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    help="With --values: fill missing inputs at random [0 without --inputs].",
)
@threads_option
@memory_option
@click.option(
    "--trip-count",
    "trip_counts",
    metavar="NAME=N",
    multiple=True,
    callback=trip_counts,
    help="How often each loop of that name runs, or which branch, where data decides.",
)
@click.option("--no-verify", is_flag=True, help="Leave out the proofs.")
@per_step_option
@fault_options
@click.option("--fault-seed", metavar="N", type=click.IntRange(0), help="Of what faults draw [0].")
@exec_timeout_option
@replying
def report(
    reply: Reply, program: Sequence[str], place: PlaceWords, output: str, **words: Any
) -> None:
    """Write a page about a run of PROGRAM, which opens from disk in any browser."""
    from ncc_runtime import array_files
    from ncc_runtime.neff.whole_file import check_target
    from ncc_runtime.options import RunOptions
    from ncc_runtime.report.page.page import SUFFIXES, library_text, write_page
    from ncc_runtime.report.run import facts
    from ncc_runtime.report.timeline.write import mask_of_ranks

    if not output.endswith(SUFFIXES):
        refused = f"{output!r} does not end in {', '.join(SUFFIXES)}"
        raise click.BadParameter(refused, param_hint="'--output'")
    if words["seed"] is not None and not words["values"]:
        raise click.UsageError("--seed goes with --values")
    if words["trip_counts"] and words["values"]:
        raise click.UsageError("--trip-count goes without --values; computed values decide")
    if place.ignore_memory and words["values"]:
        raise click.UsageError("--ignore-memory goes without --values; a rank has no such memory")
    for option in ("fault_seed", "exec_timeout"):
        if words[option] is not None and not words["faults"]:
            raise click.UsageError(f"--{option.replace('_', '-')} goes with --fault or --faults")
    read = [*files_of(program), *([words["inputs"]] if words["inputs"] else [])]
    check_outputs_of({"--output": output}, place, read)
    check_target(output, SUFFIXES)
    library_text()  # before the work, where it is missing
    sides = [place, *([] if words["against"] is None else [_elsewhere(place, words["against"])])]
    targets = [place_of(side) for side in sides]
    compiled = program_of_words(program)
    # with --against, bytes and instructions of all ranks are compared; one instance has fewer
    needs_all = ("values", "inputs", "faults", "against")
    times_only = words["no_verify"] and not any(words[option] for option in needs_all)
    models = [
        filled(compiled, side, where, times_only=times_only)
        for side, where in zip(sides, targets, strict=True)
    ]
    try:
        for model in models:
            mask_of_ranks(model.executable, words["ranks"])
    except InputError as error:
        raise click.UsageError(f"--ranks: {error}") from error
    options = RunOptions(
        values=words["values"],
        threads=words["threads"],
        memory_bytes=words["memory"],
        trip_counts=words["trip_counts"],
        verify=not words["no_verify"],
        faults=words["faults"],
        fault_seed=words["fault_seed"] or 0,
        exec_timeout_s=words["exec_timeout"],
        alternatives=words["alternatives"],
    )
    seed = 0 if words["values"] and words["seed"] is None and not words["inputs"] else words["seed"]
    inputs: contextlib.AbstractContextManager[Mapping[str, StoredArray]]
    inputs = contextlib.nullcontext({})
    if words["inputs"]:
        inputs = array_files.open_arrays(words["inputs"])
    with inputs as given:
        runs = [model.run(given, seed=seed, options=options) for model in models]
    run, against = runs[0], runs[1] if len(runs) > 1 else None
    page = write_page(output, run, against, words["ranks"], words["per_step"])
    size = len(page.html.encode())

    def fields() -> dict[str, Any]:
        found = {**facts(run.executable), "file": output, "file_bytes": size, **page.as_dict()}
        if against is None:
            return {**found, "against": None}
        return {**found, "against": {**facts(against.executable), "time_us": against.time_us}}

    def text() -> str:
        events = sum(each.events for each in page.events)
        letters = [f"{side.letter}: " if len(page.sides) > 1 else "" for side in page.sides]
        verdicts = (
            f"{letter}{side.verdict}" for letter, side in zip(letters, page.sides, strict=True)
        )
        return "\n".join([f"{output}: {size / 1e6:.1f} MB, {events:,} events", *verdicts])

    reply.give(fields=fields, text=text)
    reply.warn(notice for model in models for notice in model.warnings)
    for each in runs:
        if each.faults is not None and not each.faults.is_complete:
            raise StallError(each.faults.refusal())


def _elsewhere(place: PlaceWords, on: str) -> PlaceWords:
    """The same choices on another place, which may name others."""
    is_named = any(word.strip().startswith("policy=") for word in on.split(","))
    choice = choice_of(on, None if is_named else place.policy.value, place.deterministic, {})
    algorithms, plans = plans_apart({**place.algorithms, **choice.algorithms}, place.plans)
    return attrs.evolve(
        place,
        on=choice.on,
        words={},
        algorithms=algorithms,
        plans=plans,
        policy=choice.policy,
        deterministic=choice.deterministic,
    )
