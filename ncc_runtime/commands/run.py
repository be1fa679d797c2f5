"""`nccrt run`: place, fill, prove, and compute values and times."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands.options import (
    PlaceWords,
    check_outputs_of,
    exec_timeout_option,
    fault_options,
    files_of,
    loaded,
    memory_option,
    per_step_option,
    place_options,
    program_argument,
    rank_list,
    threads_option,
    trace_file,
    trip_counts,
)
from ncc_runtime.commands.steps import (
    StepWords,
    give_job,
    job_json,
    job_text,
    run_job,
    step_options,
)
from ncc_runtime.errors import InputError, StallError

if TYPE_CHECKING:
    import numpy as np

    from ncc_runtime.array_files import StoredArray
    from ncc_runtime.jobs.job import JobResult
    from ncc_runtime.lowering.executable import Executable
    from ncc_runtime.report.run import Run


@click.command(
    epilog=examples(
        "nccrt run step.neff --topology trn2 --inputs inputs.npz --outputs outputs.npz",
        "nccrt run step.neff --on trn2,nodes=2 --no-values --trace step.pftrace",
        "nccrt run step.neff --no-values --per-step '8192 tokens'",
        "nccrt run stage0.neff@0-3 stage1.neff@4-7 --seed 0 --json",
        "nccrt run step.neff --no-values --chakra for_astra_sim",
        "nccrt run step.neff --fault 'at 120us: link c0-c1 down for 50us' --seed 0",
    )
)
@program_argument
@place_options
@click.option(
    "--inputs",
    type=click.Path(),
    help="arg0, arg1, …, or by the names of parameters, in .npz or .safetensors: each [ranks, "
    "*shape], [*shape] for the same on every rank, or the whole array, which its sharding cuts. "
    "With --no-values they decide how often loops run.",
)
@click.option(
    "--outputs", type=click.Path(), help="Write out0, out1, … to this file, each [ranks, *shape]."
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    help="Fill missing inputs at random [0 without --inputs].",
)
@threads_option
@memory_option
@click.option("--no-values", is_flag=True, help="Predict time only.")
@click.option(
    "--trip-count",
    "trip_counts",
    metavar="NAME=N",
    multiple=True,
    callback=trip_counts,
    help="With --no-values: how often each loop of that name runs, or which branch, whatever "
    "--inputs and the program tell.",
)
@click.option("--no-clock", is_flag=True, help="Compute values only.")
@click.option("--no-verify", is_flag=True, help="Run it without a proof that it is right.")
@click.option("--checked", is_flag=True, help="Trap reads of unwritten memory, stray addresses.")
@click.option(
    "--shuffle", type=click.IntRange(0), metavar="SEED", help="Take ready instructions at random."
)
@click.option(
    "--trace", metavar="FILE", callback=trace_file, help="Write the timeline: .pftrace or .json."
)
@click.option(
    "--trace-ranks", metavar="0-3,8", callback=rank_list, help="Ranks the timeline has [all]."
)
@click.option(
    "--chakra",
    metavar="DIR",
    help="Write the run as execution traces of Chakra, for ASTRA-sim: DIR/trace.<rank>.et, a new "
    "folder.",
)
@click.option(
    "--chakra-times",
    type=click.Choice(["alone", "run", "none"]),
    help="Times of their nodes: what an instruction takes if nobody else moves bytes [alone], when "
    "and how long all ran, or none.",
)
@click.option("--each", is_flag=True, help="A row for each collective; equal ones are in one else.")
@click.option(
    "--sort",
    type=click.Choice(["program", "exposed", "time", "bytes", "start"]),
    default="program",
    show_default=True,
    help="The order of the rows of collectives.",
)
@per_step_option
@fault_options
@click.option("--fault-seed", metavar="N", type=click.IntRange(0), help="Of what faults draw [0].")
@exec_timeout_option
@step_options
@replying
def run(
    reply: Reply, program: Sequence[str], place: PlaceWords, steps: StepWords, **words: Any
) -> None:
    """Place PROGRAM, fill its placeholders, prove it and run it on virtual devices."""
    from ncc_runtime import array_files
    from ncc_runtime.host_memory import SHOWN_BYTES
    from ncc_runtime.options import RunOptions
    from ncc_runtime.report import summary
    from ncc_runtime.report.collective_table import RowOrder

    if words["no_values"] and words["outputs"]:
        raise click.UsageError("--no-values gives no --outputs")
    if place.ignore_memory and not words["no_values"]:
        raise click.UsageError("--ignore-memory goes with --no-values; a rank has no such memory")
    if words["per_step"] and words["no_clock"]:
        raise click.UsageError("--per-step needs the clock; leave out --no-clock")
    if words["sort"] not in ("program", "bytes") and words["no_clock"]:
        raise click.UsageError(f"--sort {words['sort']} needs the clock; leave out --no-clock")
    if words["faults"]:
        for option in ("no_clock", "checked", "shuffle"):
            if words[option]:
                raise click.UsageError(
                    f"--{option.replace('_', '-')} goes with no --fault or --faults; leave it out"
                )
        if steps.steps is not None:
            raise click.UsageError(
                "--fault and --faults disturb one run; leave out --steps, or say with --fail what "
                "dies for good during the steps"
            )
    for option in ("fault_seed", "exec_timeout"):
        if words[option] is not None and not words["faults"]:
            raise click.UsageError(f"--{option.replace('_', '-')} goes with --fault or --faults")
    if words["trip_counts"] and not words["no_values"]:
        raise click.UsageError("--trip-count goes with --no-values; else computed values decide")
    written = {"--outputs": words["outputs"], "--trace": words["trace"]}
    read = [*files_of(program), *([words["inputs"]] if words["inputs"] else []), *steps.read()]
    check_outputs_of(written, place, read)
    timeline = timeline_request(words)
    check_chakra(words)
    if words["outputs"]:
        array_files.check_outputs(words["outputs"])
    started = time.perf_counter()
    faults = words["faults"]
    times_only = words["no_values"] and words["no_verify"] and not words["inputs"]
    times_only = times_only and steps.steps is None and not faults
    model = loaded(program, place, times_only=times_only)
    chosen = None if timeline is None else timeline.chosen(model.executable)
    options = RunOptions(
        values=not words["no_values"],
        clock=not words["no_clock"],
        threads=words["threads"],
        checked=words["checked"],
        memory_bytes=words["memory"],
        shuffle_seed=words["shuffle"],
        trip_counts=words["trip_counts"],
        verify=not words["no_verify"],
        faults=faults,
        fault_seed=words["fault_seed"] or 0,
        exec_timeout_s=words["exec_timeout"],
    )
    seed = 0 if words["seed"] is None and not words["inputs"] else words["seed"]
    inputs: contextlib.AbstractContextManager[Mapping[str, StoredArray]]
    inputs = contextlib.nullcontext({})
    if words["inputs"]:
        inputs = array_files.open_arrays(words["inputs"])
    job: JobResult | None = None
    with inputs as given:
        if steps.steps is None:
            if options.values and not faults:
                memory = model.host_memory(given, options=options)
                if memory.needed >= SHOWN_BYTES:
                    reply.say(str(memory))
            result = model.run(given, seed=seed, options=options)
        else:
            job = run_job(steps, model, place, given, seed, options, reply)
            if job.last is None:
                give_job(reply, job)
                return
            result = job.last
    is_complete = result.faults is None or result.faults.is_complete
    if words["outputs"] and is_complete:
        array_files.write_arrays(words["outputs"], result.ranked_outputs)
    if timeline is not None and result.timeline is not None:
        if result.executable is not model.executable:  # a job that went on elsewhere
            chosen = timeline.chosen(result.executable)
        timeline.write(result, chosen)
    if words["chakra"] and is_complete:
        result.write_chakra(words["chakra"], words["chakra_times"] or "alone")
    facts = (result.executable, result, options, time.perf_counter() - started)

    def fields() -> dict[str, Any]:
        found = summary.as_json(*facts, result.verdicts, words["per_step"])
        return found if job is None else {**found, **job_json(job)}

    def text() -> str:
        shown = summary.as_text(
            *facts, RowOrder(words["sort"]), each=words["each"], per_step=words["per_step"]
        )
        return shown if job is None else f"{shown}\n{job_text(job)}"

    reply.give(fields=fields, text=text)
    reply.warn(model.warnings)
    if result.faults is not None and not is_complete:
        raise StallError(result.faults.refusal())


def check_chakra(words: Mapping[str, Any]) -> None:
    """Wrong usage, or InputError, where execution traces could not be written."""
    if words["chakra"] is None:
        if words["chakra_times"] is not None:
            raise click.UsageError("--chakra-times goes with --chakra DIR")
        return
    if words["no_clock"]:
        raise click.UsageError("--chakra needs the clock; leave out --no-clock")
    from ncc_runtime.neff.whole_file import check_whole_folder

    check_whole_folder(words["chakra"])


@attrs.frozen
class TimelineRequest:
    """The file of a timeline, and the ranks that it shows; None: all."""

    path: str
    ranks: Sequence[int] | None

    def chosen(self, executable: "Executable") -> "np.ndarray | None":
        """The ranks as a mask; wrong usage for ranks that the program has not."""
        from ncc_runtime.report.timeline.write import mask_of_ranks

        try:
            return mask_of_ranks(executable, self.ranks)
        except InputError as error:
            raise click.UsageError(f"--trace-ranks: {error}") from error

    def write(self, run: "Run", chosen: "np.ndarray | None") -> None:
        """Write the file, of a run that has a timeline."""
        from ncc_runtime.report.timeline.write import write_timeline

        assert run.timeline is not None, "is asked before"
        trace, marks = run.timeline
        write_timeline(self.path, trace, chosen, marks)


def timeline_request(words: Mapping[str, Any]) -> TimelineRequest | None:
    """The options `trace` and `trace_ranks`; None if there is no timeline to write."""
    path, ranks = words["trace"], words["trace_ranks"]
    if path is None:
        if ranks is not None:
            raise click.UsageError("--trace-ranks goes with --trace FILE")
        return None
    if words["no_clock"]:
        raise click.UsageError("--trace needs the clock; leave out --no-clock")
    from ncc_runtime.neff.whole_file import check_target
    from ncc_runtime.report.timeline.write import SUFFIXES

    check_target(path, SUFFIXES)
    return TimelineRequest(path, ranks)
