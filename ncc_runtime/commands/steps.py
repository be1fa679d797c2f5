"""The options of `nccrt run` for many steps, checkpoints and going on after faults."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from ncc_runtime.command_line import Reply
from ncc_runtime.commands.options import PlaceWords, filled_on
from ncc_runtime.errors import InputError, reason_of

if TYPE_CHECKING:
    from ncc_runtime.jobs.checkpoints import CheckpointFolder
    from ncc_runtime.jobs.job import JobResult, RunningJob
    from ncc_runtime.jobs.recovery import OnFault
    from ncc_runtime.neff.program import Program
    from ncc_runtime.options import RunOptions
    from ncc_runtime.placement import Placement
    from ncc_runtime.runtime import Model

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,9})?) ?(?P<unit>us|ms|s|min|h|d)", re.ASCII)
_RATE = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?) ?(?P<unit>[MGT])B/s", re.ASCII)
_RATES = {"M": 1e6, "G": 1e9, "T": 1e12}


def duration(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """`120us`, `30s`, `5min`, `10h`, `30d` in seconds."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a time such as 120us, 50ms, 30s, 5min, 10h, 30d")
    return float(match["number"]) * _UNITS_S[match["unit"]]


def rate(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """`2GB/s` in bytes per second, decimal as all bandwidths."""
    if text is None:
        return None
    match = _RATE.fullmatch(text)
    if match is None or not float(match["number"]):
        raise click.BadParameter(f"{text!r} is not a bandwidth such as 500MB/s or 2GB/s")
    return float(match["number"]) * _RATES[match["unit"]]


@attrs.frozen
class StepWords:
    """What a command line says of steps; `steps` is None for one run as usual."""

    steps: int | None
    words: Mapping[str, Any]

    def read(self) -> list[str]:
        """The files that are read besides the program and its inputs."""
        return [*([self.words["batches"]] if self.words["batches"] else []), *self.words["smaller"]]


def step_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options about steps, passed on as `steps`."""

    @click.option(
        "--steps",
        metavar="N",
        type=click.IntRange(1, 10**9),
        help="Run so many steps: outputs become inputs of the next one, as input_output_alias "
        "or --feed says.",
    )
    @click.option(
        "--feed",
        metavar="OUT=ARG,…",
        multiple=True,
        help="Which output becomes which input: out0=arg0, out0-3=arg2-5, or a JSON object, or "
        "a file with one.",
    )
    @click.option(
        "--batches",
        type=click.Path(),
        help="Inputs of every step, as --inputs, with a row for each step in front; after the "
        "last row comes the first.",
    )
    @click.option(
        "--draw",
        metavar="ARG",
        multiple=True,
        help="An input that is drawn anew at every step, from --seed and the step's number.",
    )
    @click.option(
        "--checkpoint",
        metavar="DIR",
        type=click.Path(),
        help="Write checkpoints there: a .safetensors file for each rank, and a manifest.",
    )
    @click.option(
        "--checkpoint-every",
        metavar="N",
        type=click.IntRange(1),
        help="A checkpoint after every N steps, and after the last [only then].",
    )
    @click.option(
        "--keep",
        metavar="K",
        type=click.IntRange(1),
        help="How many checkpoints stay, the newest ones [2].",
    )
    @click.option("--resume", is_flag=True, help="Go on from the newest whole checkpoint, if any.")
    @click.option(
        "--fail",
        metavar="FAULT",
        multiple=True,
        help="What dies for good: 'at step 7: rank 3 dead' or 'at step 9: link c0-c1 down'; "
        "once for each.",
    )
    @click.option(
        "--on-fault",
        metavar="WAY,…",
        help="What is tried in turn: spare (a free core for a dead rank), reroute (without the "
        "dead link), shrink (a program for fewer ranks), stop [spare,reroute,shrink].",
    )
    @click.option(
        "--spares",
        metavar="N",
        type=click.IntRange(0, 10**6),
        help="Cores kept free for ranks that die, on more instances if need be [what is free].",
    )
    @click.option(
        "--smaller",
        metavar="MODEL.neff",
        multiple=True,
        type=click.Path(),
        help="The same step, compiled for fewer data-parallel replicas; once for each.",
    )
    @click.option(
        "--detect-time",
        metavar="TIME",
        callback=duration,
        help="Until a stall is noticed [30s, NEURON_RT_EXEC_TIMEOUT].",
    )
    @click.option(
        "--restart-time",
        metavar="TIME",
        callback=duration,
        help="From then until the job runs again [60s, assumed].",
    )
    @click.option(
        "--storage",
        metavar="RATE",
        callback=rate,
        help="Bandwidth of an instance to its checkpoints [1GB/s, assumed].",
    )
    @functools.wraps(command)
    def collecting(**given: Any) -> None:
        words = {name: given.pop(name) for name in _NAMES}
        steps = given.pop("steps")
        _check(steps, words, given)
        command(steps=StepWords(steps, words), **given)

    return collecting


_NAMES = (
    *("feed", "batches", "draw", "checkpoint", "checkpoint_every", "keep", "resume", "fail"),
    *("on_fault", "spares", "smaller", "detect_time", "restart_time", "storage"),
)


def _check(steps: int | None, words: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Wrong usage for options that do not go together."""
    for name in ("checkpoint", "batches"):
        if words[name] == "":
            raise click.UsageError(f"--{name} has no name")
    if steps is None:
        for name, value in words.items():
            if value not in (None, (), False):
                raise click.UsageError(f"--{name.replace('_', '-')} goes with --steps N")
        return
    if not words["checkpoint"]:
        for name in ("keep", "resume"):
            if words[name]:
                raise click.UsageError(f"--{name} goes with --checkpoint DIR")
        if words["checkpoint_every"] and not others["no_values"]:
            raise click.UsageError(
                "--checkpoint-every goes with --checkpoint DIR; only with --no-values is its time "
                "counted and nothing written"
            )
    elif others["no_values"]:
        raise click.UsageError("--no-values has no state for --checkpoint; leave one of them out")
    if others["no_clock"] and words["fail"]:
        raise click.UsageError("--fail needs the clock; leave out --no-clock")


def run_job(
    steps: StepWords,
    model: "Model",
    place: PlaceWords,
    given: Mapping[str, Any],
    seed: int | None,
    options: "RunOptions",
    reply: Reply,
) -> "JobResult":
    """Run a model for many steps, as the command line says."""
    from ncc_runtime import array_files
    from ncc_runtime.jobs.checkpoints import CheckpointFolder
    from ncc_runtime.jobs.job import (
        DETECT_S,
        RESTART_S,
        STORAGE_BYTES_PER_S,
        JobOptions,
        RunningJob,
    )
    from ncc_runtime.jobs.recovery import JobFault, with_spares
    from ncc_runtime.runtime import program_of

    words = steps.words
    assert steps.steps is not None
    if words["spares"]:
        before = model.executable.placement
        after = with_spares(before, words["spares"])
        if after is not before:
            model = filled_on(model.executable.program, after, place)
    job = JobOptions(
        steps=steps.steps,
        checkpoint_every=words["checkpoint_every"]
        or (steps.steps if words["checkpoint"] else None),
        faults=tuple(map(JobFault.of_text, words["fail"])),
        spares=words["spares"],
        detect_s=DETECT_S if words["detect_time"] is None else words["detect_time"],
        restart_s=RESTART_S if words["restart_time"] is None else words["restart_time"],
        storage_bytes_per_s=words["storage"] or STORAGE_BYTES_PER_S,
    )
    if words["on_fault"] is not None:
        job = attrs.evolve(job, on_fault=_ways(words["on_fault"]))
    smaller = [program_of(path) for path in words["smaller"]]

    def load(program: "Program", placement: "Placement") -> "Model":
        found = filled_on(program, placement, place)
        reply.warn(found.warnings)
        return found

    with contextlib.ExitStack() as files:
        batches: Mapping[str, Any] = {}
        if words["batches"]:
            batches = files.enter_context(array_files.open_arrays(words["batches"]))
        running = RunningJob(
            model,
            load,
            job,
            given,
            feed=_feed(words["feed"]),
            batches=batches,
            draw=words["draw"],
            seed=seed,
            run_options=options,
            smaller=smaller,
        )
        if not words["checkpoint"]:
            return running.run()
        folder = CheckpointFolder(
            words["checkpoint"],
            [model.executable.program, *smaller],
            running.inputs(),
            words["keep"] or 2,
        )
        return _with_folder(running, folder, reply, is_resumed=words["resume"])


def _with_folder(
    running: "RunningJob", folder: "CheckpointFolder", reply: Reply, *, is_resumed: bool
) -> "JobResult":
    with folder.opened():
        begin = None
        if is_resumed:
            begin = folder.newest()
        else:
            folder.check_is_empty()
        try:
            return running.run(folder, begin)
        finally:
            reply.warn(folder.notices)


def _ways(text: str) -> "tuple[OnFault, ...]":
    from ncc_runtime.jobs.recovery import OnFault

    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in tuple(OnFault):
            raise click.UsageError(f"--on-fault: {word!r} is none of {', '.join(OnFault)}")
    return tuple(map(OnFault, words))


def _feed(texts: Sequence[str]) -> dict[str, str] | None:
    """All `--feed` together; None without one."""
    if not texts:
        return None
    pairs: dict[str, str] = {}
    by_input: dict[str, str] = {}
    for name, target in (pair for text in texts for pair in _pairs(text)):
        if pairs.get(name, target) != target or by_input.get(target, name) != name:
            raise click.UsageError(f"--feed: {name}={target} contradicts another of its pairs")
        pairs[name], by_input[target] = target, name
    return pairs


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    from ncc_runtime.input_files import MOST_JSON_BYTES, json_of, read_file
    from ncc_runtime.step_inputs import pairs_in

    is_object = text.lstrip().startswith("{")
    if not is_object and not text.endswith(".json"):
        yield from pairs_in(text)
        return
    source = "--feed" if is_object else text
    try:
        found = json_of(text if is_object else read_file(text, MOST_JSON_BYTES))
    except OSError as error:
        raise InputError(f"{source}: {reason_of(error)}") from error
    except ValueError as error:
        raise InputError(f"{source}: not JSON: {str(error).lower()}") from error
    if not isinstance(found, dict) or not all(isinstance(word, str) for word in found.values()):
        raise InputError(f'{source}: is no object of names, as in {{"out0": "arg0"}}')
    yield from found.items()


def job_json(job: "JobResult") -> dict[str, Any]:
    """What `--json` says of a job, besides its last step."""
    from ncc_runtime.jobs import report

    return {"job": report.as_json(job)}


def job_text(job: "JobResult") -> str:
    """The lines about a job."""
    from ncc_runtime.jobs import report

    return report.as_text(job)


def give_job(reply: Reply, job: "JobResult") -> None:
    """A job that did not come to its end, which is refused, or had nothing left to do."""
    reply.give(fields=lambda: job_json(job), text=lambda: job_text(job))
    if job.stopped is not None:
        raise InputError(job.stopped)
