"""`nccrt run`: place, fill, prove, and compute values and times."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

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
    from ncc_runtime.processes import Processes
    from ncc_runtime.ranked_array import RankedArray
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
    "*shape], [*shape] for the same on every rank, or the whole array, which its sharding cuts. Or "
    "a folder of .safetensors files with an index. With --no-values they decide how often loops "
    "run.",
)
@click.option(
    "--outputs",
    type=click.Path(),
    help="Write out0, out1, … to this file, each [ranks, *shape], or to a folder, DIR/, as "
    ".safetensors files with an index; several processes write a folder.",
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
    from ncc_runtime import array_files, sharded_arrays
    from ncc_runtime.host_memory import SHOWN_BYTES
    from ncc_runtime.options import RunOptions
    from ncc_runtime.processes import ALONE
    from ncc_runtime.processes import started as started_processes
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
    processes = ALONE if reply.processes is None else started_processes()
    if processes.count > 1 and steps.steps is not None:
        raise InputError(
            f"--steps goes with one process, and {processes.count} were started: write the outputs "
            "of a step to a folder, and give it to the next run"
        )
    _check_arrays(words, processes)
    started = time.perf_counter()
    faults = words["faults"]
    times_only = words["no_values"] and words["no_verify"] and not words["inputs"]
    times_only = times_only and steps.steps is None and not faults
    if processes.number and words["no_values"]:
        return  # the first one has no values to share
    model = loaded(program, place, times_only=times_only)
    if not words["no_values"]:
        model.processes = processes
    chosen = None if timeline is None else timeline.chosen(model.executable)
    options = RunOptions(
        values=not words["no_values"],
        clock=not words["no_clock"],
        threads=_threads(words["threads"], processes),
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
        is_sharded = sharded_arrays.is_folder(words["inputs"])
        open_them = sharded_arrays.open_sharded if is_sharded else array_files.open_arrays
        inputs = open_them(words["inputs"])
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
        if sharded_arrays.is_folder(words["outputs"]):
            places = _places_of_own(result, processes)
            sharded_arrays.write_sharded(words["outputs"], result.ranked_outputs, places, processes)
        else:
            array_files.write_arrays(words["outputs"], result.ranked_outputs)
    if processes.count > 1 and options.values:
        result = attrs.evolve(result, ranked_outputs=_beginnings(result, processes))
    if timeline is not None and result.timeline is not None:
        if result.executable is not model.executable:  # a job that went on elsewhere
            chosen = timeline.chosen(result.executable)
        timeline.write(result, chosen)
    if words["chakra"] and is_complete and not processes.number:  # others have no clock
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


def _check_arrays(words: Mapping[str, Any], processes: "Processes") -> None:
    """Refuse outputs that could not be written, before anything is computed for them."""
    from ncc_runtime import array_files, sharded_arrays

    path = words["outputs"]
    if not path:
        return
    if sharded_arrays.is_folder(path):
        if words["inputs"] and sharded_arrays.is_folder(words["inputs"]):
            folders = [Path(words[one]) for one in ("inputs", "outputs")]
            source, target = (one if one.is_dir() else one.parent for one in folders)
            if source.exists() and target.exists() and source.samefile(target):
                raise click.UsageError(f"--outputs would overwrite {path}, which is read")
        sharded_arrays.check_folder(path)
        return
    if processes.count > 1:
        raise InputError(
            f"{path}: no process holds all outputs of {processes.count}; name a folder, "
            f"--outputs {path.rpartition('.')[0] or path}/"
        )
    array_files.check_outputs(path)


def _threads(threads: int, processes: "Processes") -> int:
    """As many as were asked for, or a share of the host's processors."""
    source = click.get_current_context().get_parameter_source("threads")
    is_bound = threads < (os.cpu_count() or 1)  # the launcher has dealt them out
    if source is not ParameterSource.DEFAULT or is_bound:
        return threads
    return max(1, threads // processes.on_host)


def _places_of_own(run: "Run", processes: "Processes") -> "list[np.ndarray]":
    """By output, which of the ranks that have it this process holds, counted among them."""
    import numpy as np

    shares = processes.shares(run.executable.ranks)
    return [
        np.flatnonzero(shares.are_own(stage.ranks))
        for stage in run.executable.stages
        for _ in stage.program.outputs
    ]


def _beginnings(run: "Run", processes: "Processes") -> "list[RankedArray]":
    """What the report shows of outputs: how those of the first rank that has each begin."""
    from ncc_runtime.ranked_array import RankedArray
    from ncc_runtime.report.summary import SHOWN_VALUES

    own: dict[int, np.ndarray] = {}
    for number, places in enumerate(_places_of_own(run, processes)):
        if len(places) and not places[0]:
            own[number] = run.ranked_outputs[number].of(0).reshape(-1)[: SHOWN_VALUES + 1]
    every = {number: one for some in processes.gather(own) for number, one in some.items()}
    return [RankedArray.same(every[number], 1) for number in sorted(every)]


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
