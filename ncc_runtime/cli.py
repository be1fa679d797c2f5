"""The command `nccrt`: run, list, verify, topology; explain, diff, bench and calibrate are added.

Whatever is heavy is imported by the command that needs it, so that help and usage errors are
immediate. The environment is read, and OpenBLAS's kernel chosen, here and nowhere else.
"""

import contextlib
import functools
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ncc_runtime import cli_commands
from ncc_runtime.cli_options import (
    SCHEMA,
    PlaceWords,
    check_outputs_of,
    files_of,
    known_placement,
    loaded,
    note_compiling,
    place_options,
    program_argument,
    rank_list,
    shown_count,
    size,
    trace_file,
    trip_counts,
    warn,
)
from ncc_runtime.command_line import (
    OUR_FAULT,
    REFUSED,
    USAGE,
    check_written,
    perform,
    tell,
    wrong_usage,
)
from ncc_runtime.errors import NccError, reason_of, shortened


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="neuron-ncc", prog_name="nccrt")
def cli() -> None:
    """Place a compiled program on Neuron devices that need not be there, and run it."""


@cli.command()
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
    "--seed", type=click.IntRange(0), help="Fill missing inputs at random [0 without --inputs]."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--memory", metavar="BYTES", callback=size, help="Host memory it may take.")
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def run(program: Sequence[str], place: PlaceWords, as_json: bool, **words: Any) -> None:
    """Place PROGRAM, fill its placeholders, prove it and run it on virtual devices."""
    from ncc_runtime import array_files
    from ncc_runtime.options import RunOptions
    from ncc_runtime.report import summary

    if words["no_values"] and words["outputs"]:
        raise click.UsageError("--no-values gives no --outputs")
    if place.ignore_memory and not words["no_values"]:
        raise click.UsageError("--ignore-memory goes with --no-values; a rank has no such memory")
    if words["trip_counts"] and not words["no_values"]:
        raise click.UsageError("--trip-count goes with --no-values; else computed values decide")
    written = {"--outputs": words["outputs"], "--trace": words["trace"]}
    read = [*files_of(program), *([words["inputs"]] if words["inputs"] else [])]
    check_outputs_of(written, place, read)
    timeline = cli_commands.timeline_request(words)
    if words["outputs"]:
        array_files.check_outputs(words["outputs"])
    started = time.perf_counter()
    times_only = words["no_values"] and words["no_verify"] and not words["inputs"]
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
    )
    if options.clock:
        note_compiling()
    seed = 0 if words["seed"] is None and not words["inputs"] else words["seed"]
    inputs: contextlib.AbstractContextManager[Mapping[str, array_files.StoredArray]]
    inputs = contextlib.nullcontext({})
    if words["inputs"]:
        inputs = array_files.open_arrays(words["inputs"])
    with shown_count("clock", "events") as watch, inputs as given:
        result = model.run(given, seed=seed, options=options, watch=watch)
    if words["outputs"]:
        array_files.write_arrays(words["outputs"], result.outputs)
    if timeline is not None and result.trace is not None:
        timeline.write(result.trace, chosen)
    facts = (model.executable, result, options, time.perf_counter() - started)
    if as_json:
        click.echo(json.dumps(summary.as_json(*facts, model.verdicts)))
    else:
        click.echo(summary.as_text(*facts))
    warn(model)


@cli.command("list")
@program_argument
@place_options
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True)
@click.option("--queue", metavar="Q", help="One queue: Tensor, Vector, …, cc0, cc0.dma0.")
def list_command(program: Sequence[str], place: PlaceWords, rank: int, queue: str | None) -> None:
    """Print the placed program of one rank, placeholders filled."""
    from ncc_runtime.lowering.listing import list_executable, queue_names

    model = loaded(program, place)
    executable = model.executable
    if rank >= executable.ranks:
        raise click.UsageError(f"rank {rank} is not below the program's {executable.ranks} ranks")
    names = queue_names(executable)
    if queue is not None and queue not in names:
        raise click.UsageError(f"no queue {queue!r}; there are {', '.join(names)}")
    click.echo(list_executable(executable, rank, queue))
    warn(model)


@cli.command()
@program_argument
@place_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def verify(program: Sequence[str], place: PlaceWords, as_json: bool) -> None:
    """Prove of PROGRAM on its place: no deadlock, no race, and collectives that are right."""
    from ncc_runtime.report import run as report
    from ncc_runtime.verify.prove import refuse

    model = loaded(program, place)
    facts = (model.executable, model.proofs)
    click.echo(json.dumps(report.as_json(*facts)) if as_json else report.as_text(*facts))
    refuse(model.proofs, shown=0)
    warn(model)


for _command in (
    cli_commands.explain,
    cli_commands.diff,
    cli_commands.bench,
    cli_commands.calibrate,
):
    cli.add_command(_command)


@cli.group()
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
    built = build(name, where["nodes"], where["lnc"])
    placed = place(built, ranks, where["placement"]) if ranks else None
    if svg is None:
        click.echo(describe(built, placed))
        return
    from ncc_runtime.report.topology.svg import as_svg

    write_whole(svg, as_svg(built, placed).encode())
    click.echo(f"{svg}: {built.name} drawn")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _choose_blas_kernel()
    return perform(cli, "nccrt", given, functools.partial(_report, as_json="--json" in given))


def _report(error: Exception, *, as_json: bool) -> int:
    """One message on standard error, with --json one object; returns the exit code."""
    if isinstance(error, click.UsageError):
        status, code = USAGE, "usage"
    elif isinstance(error, NccError | OSError | MemoryError):
        status, code = REFUSED, "refused"
    else:
        status, code = OUR_FAULT, "internal"
        if os.environ.get("NCC_DEBUG"):
            traceback.print_exception(error)
    message = shortened(_message(error))
    if as_json:
        tell(json.dumps({"schema": SCHEMA, "errors": [{"code": code, "message": message}]}))
    else:
        tell(f"error: {message}")
    return status


def _message(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, click.UsageError):
        fact, advice = wrong_usage(error)
        return f"{fact} ({advice})" if advice else fact
    if isinstance(error, NccError):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{reason_of(error)}"
    if isinstance(error, MemoryError):
        return f"the host is out of memory: {error}; --memory sets a budget"
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"the runtime failed, which is a fault of ours; please report it: {what}"


def _choose_blas_kernel() -> None:
    """Let OpenBLAS use AVX-512 where the CPU has it: it falls back to Haswell on newer CPUs."""
    if "numpy" in sys.modules or "OPENBLAS_CORETYPE" in os.environ:
        return
    try:
        has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text(
            encoding="ascii", errors="replace"
        )
    except OSError:
        return
    if has_avx512:
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"
