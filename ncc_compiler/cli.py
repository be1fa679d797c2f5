"""The command `nccc`: compile, check, list.

Whatever is heavy is imported by the command that needs it, so that help and usage errors are
immediate. The environment is read here and nowhere else.
"""

import errno
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from ncc_runtime.command_line import Reply, check_written, examples, perform, replying
from ncc_runtime.errors import Notice

if TYPE_CHECKING:
    from ncc_compiler.codegen.generate import Neff
    from ncc_compiler.frontends.foreign import ModelText
    from ncc_compiler.ir.graph import Module
    from ncc_compiler.options import CompileOptions
    from ncc_compiler.pass_report import PassReport
    from ncc_runtime.neff.program import Origin, Program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    from ncc_compiler.refusals import refusals_of

    argv = list(sys.argv[1:] if arguments is None else arguments)
    return perform(commands, "nccc", argv, refusals_of)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("nccc compile step.hlo -O2 -o step.neff", "nccc list step.neff"),
)
@click.version_option(package_name="neuron-ncc", prog_name="nccc")
def commands() -> None:
    """Compile partitioned XLA programs (HLO text) for AWS Neuron."""


_RANKS_OPTION = click.option(
    "--ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of ranks, for programs that do not say it; FILE.py sees so many devices.",
)


def _stages(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """What a shell may complete behind --print."""
    from ncc_compiler.pipelines import PIPELINES

    passes = dict.fromkeys(each.name for level in PIPELINES.values() for each in level)
    words = ("graph", "program", *(f"{_GRAPH_AFTER}{name}" for name in passes))
    return [word for word in words if word.startswith(incomplete)]


def _pass_options(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """What a shell may complete behind --pass-option."""
    from ncc_compiler.pipelines import option_names

    return [f"{name}=" for name in option_names() if name.startswith(incomplete)]


def _mesh(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, int] | None:
    if text is None:
        return None
    from ncc_runtime.errors import InputError
    from ncc_runtime.words import mesh_of

    try:
        return mesh_of(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def _with_compile_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a compilation to a command, which gets them as one `options`."""

    @click.option(
        "-O",
        "level",
        type=click.Choice(["0", "1", "2"]),
        default="1",
        show_default=True,
        help="Optimisation: -O0 only what is needed, -O1 as usual, -O2 thorough.",
    )
    @_RANKS_OPTION
    @click.option(
        "--pass-option",
        "settings",
        multiple=True,
        metavar="PASS.OPTION=VALUE",
        shell_complete=_pass_options,
        help="Set an option of a pass, such as fold-constants.limit_bytes=1024.",
    )
    @click.option(
        "--sdk",
        type=click.Choice(["2.18"]),
        help="Join no more operations of a prefill than the compiler of this release of AWS's SDK "
        "did, as far as published times tell.",
    )
    @functools.wraps(command)
    def collecting(
        level: str, ranks: int | None, settings: tuple[str, ...], sdk: str | None, **rest: object
    ) -> None:
        from ncc_compiler.options import CompileOptions

        options = CompileOptions(
            level=int(level),
            ranks=ranks,
            pass_options=_parse_settings(settings),
            sdk=sdk,
            verify_each_pass=bool(os.environ.get("NCC_DEBUG")),
        )
        command(options=options, **rest)

    return collecting


def _parse_settings(settings: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--pass-option {setting} is not of the form PASS.OPTION=VALUE")
        pairs[key] = value
    return pairs


@commands.command(
    "compile",
    epilog=examples(
        "nccc compile step.hlo -O2 -o step.neff",
        "nccc compile step.hlo --print graph-after=fold-constants",
        "nccc compile - -o step.neff < step.hlo",
        "nccc compile traces/ --comm-groups groups.json -o traces.neff",
    ),
)
@click.argument("model", type=click.Path())
@click.option(
    "-o",
    "output",
    metavar="OUT.neff",
    type=click.Path(),
    help="File to write; by default MODEL with the suffix .neff, beside it. With --print and "
    "without -o nothing is written.",
)
@_with_compile_options
@click.option(
    "--mesh",
    metavar="AXIS=N,…",
    callback=_mesh,
    help="Call FUNCTION of FILE.py with such a mesh of JAX, data=2,model=4, of as many devices.",
)
@click.option(
    "--stage",
    metavar="N",
    type=click.IntRange(0),
    help="Of a FUNCTION that returns a list of stages, which run together, the one to compile.",
)
@click.option(
    "--partial-all-reduce",
    "late",
    type=click.Choice(["drop", "next"]),
    help="All-reduces of gradients do not wait for late ranks, whose gradients are dropped, or "
    "added in the next step; for nccrt stale.",
)
@click.option(
    "--print",
    "shown",
    metavar="WHAT",
    shell_complete=_stages,
    help="Print graph (as read), graph-after=PASS, or program (as compiled).",
)
@click.option(
    "--print-after-all",
    "folder",
    type=click.Path(),
    metavar="DIR",
    help="Write the graph as read and behind every pass to an empty folder.",
)
@click.option(
    "--changed-only", is_flag=True, help="Of those, leave out what a pass did not change."
)
@click.option("--time-passes", is_flag=True, help="Print nodes and seconds of every pass.")
@click.option(
    "--comm-groups",
    metavar="FILE.json",
    type=click.Path(),
    help="Process groups of an execution trace, as ASTRA-sim has them [NAME.comm_groups.json].",
)
@click.option(
    "--no-durations",
    is_flag=True,
    help="Of an execution trace: instructions take as long as their sizes do, whatever it says.",
)
@replying
def compile_command(
    reply: Reply,
    model: str,
    output: str | None,
    shown: str | None,
    options: "CompileOptions",
    late: str | None,
    comm_groups: str | None,
    no_durations: bool,
    mesh: dict[str, int] | None,
    stage: int | None,
    **passes: Any,
) -> None:
    """Compile MODEL (.ir, .hlo, .txt, .mlir, .pb; - is standard input) to a .neff file.

    MODEL may be FILE.py:FUNCTION, where the function returns (fn, args) of JAX or PyTorch, or a
    Lowered. It takes nothing, or with --mesh its mesh. MODEL may be execution traces of Chakra: a
    folder with NAME.<rank>.et, or one of these files; where ranks do not do the same, each program
    has a file, OUT.<ranks>.neff.
    """
    from ncc_compiler.driver import compile_model, label
    from ncc_runtime.neff.memory import memory_json, memory_of, memory_text

    options = attrs.evolve(options, partial_all_reduce=late)
    if _is_trace(model):
        of_others = (
            late,
            options.ranks,
            mesh,
            stage,
            *(value or None for value in passes.values()),
        )
        if any(value is not None for value in of_others):
            raise click.UsageError(
                f"{model} is an execution trace; leave out --ranks, --mesh, --stage, "
                "--partial-all-reduce, --print-after-all, --changed-only and --time-passes"
            )
        _compile_trace(reply, model, output, shown, options, comm_groups, not no_durations)
        return
    if (comm_groups is not None or no_durations) and Path(model).exists():
        raise click.UsageError(
            "--comm-groups and --no-durations go with an execution trace, NAME.<rank>.et"
        )
    target = _output_path(model, output, shown, stage)
    observed = _observed_stage(options, shown)
    graphs: dict[str, Module] = {}
    report = _pass_report(**passes)

    def observe(name: str, module: "Module") -> None:
        if name == observed:
            graphs[name] = module
        if report is not None:
            report(name, module)

    text, name = _read_model(model, options.ranks, mesh, stage)
    neff = compile_model(text, options, label(name), observe)
    if report is not None:
        report.finish()
    if target is not None:
        neff.save(target)
    reply.warn(_notice_of_ranks(text, name, neff.program.ranks, options.ranks))
    if text.stages is not None and stage is None:
        fact = f"{model} gives {text.stages} stages, and this is the first: --stage says which"
        reply.warn([Notice("stages", fact, "docs/jax.md#stages")])
    if elided := neff.program.elided():
        reply.warn([_elided_notice(name, elided)])
    if late is not None:
        reply.warn(_notices_of_whole(name, neff.program))
    if shown is not None:
        listing = _listing(neff, graphs.get(observed))
        fields: dict[str, Any] = {"listing": listing.splitlines()}
        text_of = listing
    else:
        assert target is not None  # without --print something is written
        facts, memory = _facts(neff, name, target), memory_of(neff.program)
        fields = {**facts, "memory": memory_json(memory), **_of_python(model, text)}
        text_of = (
            f"{target}: {facts['ranks']} ranks, {facts['instructions']} instructions, "
            f"{facts['collectives']} collectives; {memory_text(memory)}"
        )
    if report is not None:
        fields |= {"passes": [row.as_json() for row in report.rows]}
        text_of += "".join(f"\n{line}" for line in _said_of_passes(report, **passes))
    reply.give(fields=lambda: fields, text=lambda: text_of)


def _is_trace(model: str) -> bool:
    """Whether MODEL is execution traces."""
    from ncc_compiler.frontends.chakra.files import trace_name

    return model != "-" and trace_name(model) is not None


def _compile_trace(
    reply: Reply,
    model: str,
    output: str | None,
    shown: str | None,
    options: "CompileOptions",
    comm_groups: str | None,
    durations: bool,
) -> None:
    """Compile execution traces: a file for each program, or what is to be printed of each."""
    from ncc_compiler.driver import compile_model
    from ncc_compiler.frontends.chakra.programs import read_programs
    from ncc_runtime.neff.memory import memory_json, memory_of, memory_text
    from ncc_runtime.neff.stages import ranks_text

    target = _trace_target(model, output, shown)
    stage = _observed_stage(options, shown)
    programs = read_programs(model, comm_groups, durations=durations)
    rows: list[dict[str, Any]] = []
    lines, listings = list[str](), list[str]()
    for number, program in enumerate(programs):
        graphs: dict[str, Module] = {}

        def observe(name: str, module: "Module", graphs: "dict[str, Module]" = graphs) -> None:
            if name == stage:
                graphs[name] = module

        neff = compile_model(program.model, options, program.name, observe)
        ranks = ranks_text(program.ranks)
        row: dict[str, Any] = {"rank_list": ranks}
        if target is not None:
            suffix = ranks if len(ranks) <= _MOST_RANKS_TEXT else f"p{number}"
            file = target if len(programs) == 1 else target.with_suffix(f".{suffix}.neff")
            neff.save(file)
            memory = memory_of(neff.program)
            row |= {**_facts(neff, model, file), "memory": memory_json(memory)}
            lines.append(
                f"{file}: ranks {ranks} of {row['ranks']}, {row['instructions']} instructions, "
                f"{row['collectives']} collectives; {memory_text(memory)}"
            )
        if shown is not None:
            listing = _listing(neff, graphs.get(stage))
            row["listing"] = listing.splitlines()
            listings.append(listing)
        rows.append(row)
    if target is not None:
        files = [f"{row['neff']}@{row['rank_list']}" for row in rows]
        words = " ".join(files) if len(files) > 1 else str(target)
        lines.append(f"to run: nccrt run {words} --no-values")
    text = "\n".join(listings or lines)
    reply.give(fields=lambda: {"model": model, "programs": rows}, text=lambda: text)


_MOST_RANKS_TEXT = 16
"""Characters of ranks in the name of a file."""


def _trace_target(model: str, output: str | None, shown: str | None) -> Path | None:
    """The file to write if all ranks have one program; None if nothing is written."""
    from ncc_compiler.frontends.chakra.files import trace_name

    if output is None and shown is not None:
        return None
    if output is None:
        found = trace_name(model)
        assert found is not None, "is asked before"
        folder = Path(model) if Path(model).name not in ("", "..") else Path(model).resolve()
        return Path(f"{folder}.neff") if folder.is_dir() else found[0] / f"{found[1]}.neff"
    if Path(output).suffix != ".neff":
        raise click.UsageError(f"-o {output}: name a file that ends in .neff")
    return Path(output)


def _pass_report(
    *, folder: str | None, changed_only: bool, time_passes: bool
) -> "PassReport | None":
    """What watches the passes, if anything does."""
    if changed_only and folder is None:
        raise click.UsageError("--changed-only goes with --print-after-all DIR")
    if folder is None and not time_passes:
        return None
    from ncc_compiler.pass_report import PassReport, new_folder

    return PassReport(None if folder is None else new_folder(folder), changed_only=changed_only)


def _said_of_passes(
    report: "PassReport", *, folder: str | None, time_passes: bool, **_: object
) -> Iterator[str]:
    if folder is not None:
        yield report.summary()
    if time_passes:
        yield report.table()


def _read_model(
    model: str,
    ranks: int | None,
    mesh: dict[str, int] | None = None,
    stage: int | None = None,
) -> "tuple[ModelText, str]":
    """The text of the model, and what messages call it."""
    from ncc_compiler.driver import decode, read_text
    from ncc_compiler.frontends.foreign import ModelText, partitioned
    from ncc_compiler.frontends.python_file import split
    from ncc_runtime.input_files import MOST_MODEL_BYTES, read_stream

    if (python := split(model)) is not None:
        from ncc_compiler.frameworks import read_python

        if mesh is not None and ranks not in (None, math.prod(mesh.values())):
            raise click.UsageError(f"the mesh is of {math.prod(mesh.values())} ranks, not {ranks}")
        return read_python(*python, ranks, mesh, stage), model
    if mesh is not None or stage is not None:
        raise click.UsageError("--mesh and --stage are for FILE.py:FUNCTION")
    if model == "-":
        data = read_stream(sys.stdin.buffer, MOST_MODEL_BYTES, "<stdin>")
        return partitioned(ModelText(decode(data, "<stdin>")), "<stdin>", ranks), "<stdin>"
    return read_text(model, ranks), model


def _of_python(model: str, text: "ModelText") -> dict[str, Any]:
    """Of FILE.py:FUNCTION: how many stages it has, and which files of Python it is made of."""
    from ncc_compiler.frontends.python_file import sources, split

    is_python = split(model) is not None
    return {"stages": text.stages, "sources": sources() if is_python else None}


def _notice_of_ranks(
    text: "ModelText", model: str, inferred: int, requested: int | None
) -> Sequence[Notice]:
    """A warning where the number of ranks is a guess."""
    if not text.ranks_are_inferred or requested is not None:
        return ()
    fact = f"{model}: ranks inferred: {inferred}; say --ranks"
    return [Notice("ranks-inferred", fact, "docs/ir.md#ranks")]


def _output_path(
    model: str, output: str | None, shown: str | None, stage: int | None
) -> Path | None:
    """The file to write, if any; never the model itself."""
    from ncc_compiler.frontends.python_file import split

    if output is None and shown is not None:
        return None
    if output is None and model == "-":
        raise click.UsageError("standard input has no name to derive OUT.neff from; give -o")
    if output == "-":
        raise click.UsageError("-o - names no file; give the name of one, such as -o model.neff")
    if output is None and Path(model).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), model or ".")
    file, of = model, Path(model)  # the file that is read, and what names the program
    if (python := split(model)) is not None:
        file, function = python
        of = Path(file).with_name(function if stage is None else f"{function}-{stage}")
    target = Path(output) if output is not None else of.with_suffix(".neff")
    if target.is_dir():  # refused before the work is done
        from ncc_runtime.errors import NeffError

        raise NeffError(f"{target}: cannot be written: is a directory; give the name of a file")
    check_written({"-o": str(target)}, [] if model == "-" else [file])
    return target


_GRAPH_AFTER = "graph-after="


def _observed_stage(options: "CompileOptions", shown: str | None) -> str:
    """The stage whose graph is to be printed; empty if none is. Also checks the pass options."""
    from ncc_compiler.driver import LOADED
    from ncc_compiler.pipelines import pipeline

    try:
        names = list(dict.fromkeys(run.name for run in pipeline(options)))  # some run twice
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if shown is None or shown == "program":
        return ""
    if shown == "graph":
        return LOADED
    if shown.startswith(_GRAPH_AFTER) and shown.removeprefix(_GRAPH_AFTER) in names:
        return shown.removeprefix(_GRAPH_AFTER)
    known = ", ".join(f"{_GRAPH_AFTER}{name}" for name in names)
    raise click.UsageError(
        f"--print {shown} is none of graph, program, and at -O{options.level} {known}"
    )


def _listing(neff: "Neff", module: "Module | None") -> str:
    """The requested graph, or the program."""
    if module is not None:
        from ncc_compiler.ir.text.printer import print_module

        return print_module(module)
    from ncc_runtime.neff.listing import print_program

    return print_program(neff.program)


def _elided_notice(model: str, elided: "Sequence[Origin]") -> Notice:
    """Says that the text leaves out values of constants, so that only --no-values runs work."""
    first = f"{elided[0].node} ({elided[0].place})" if elided[0].place else elided[0].node
    count = "1 constant has" if len(elided) == 1 else f"{len(elided)} constants have"
    fact = (
        f"{model}: {count} no value, the text says {{...}}, the first is {first}; the program runs "
        "with --no-values only (print with print_large_constants=True)"
    )
    return Notice("elided-constants", fact, "docs/ir.md#grammar-by-example")


def _notices_of_whole(model: str, program: "Program") -> Sequence[Notice]:
    """Says which collectives still wait for every rank of their groups, late or not."""
    from ncc_runtime.neff.shared.partial import PARTIAL

    whole = [each for each in program.placeholders if PARTIAL not in each.name]
    if not whole:
        return ()
    count = "1 collective waits" if len(whole) == 1 else f"{len(whole)} collectives wait"
    fact = (
        f"{model}: {count} for late ranks of their groups, the first is {whole[0].name} "
        f"({whole[0].op.value}): only {len(program.placeholders) - len(whole)} are partial"
    )
    return [Notice("whole-collectives", fact, "docs/faults.md#stale-and-backup-workers")]


def _facts(neff: "Neff", model: str, target: Path) -> dict[str, Any]:
    program = neff.program
    return {
        "model": model,
        "neff": str(target),
        "ranks": program.ranks,
        "instructions": sum(len(table) for table in program.queues.values()),
        "collectives": len(program.placeholders),
        "hbm_bytes": program.hbm_bytes,
        "file_bytes": len(neff.data),
    }


@commands.command("check", epilog=examples("nccc check step.hlo"))
@click.argument("model", type=click.Path())
@_RANKS_OPTION
@replying
def check_command(reply: Reply, model: str, ranks: int | None) -> None:
    """Parse and verify MODEL; says what is wrong, or what it is."""
    from ncc_compiler.driver import label, load_model

    if _is_trace(model):
        raise click.UsageError(f"{model} is an execution trace; nccc compile checks it")
    text, name = _read_model(model, ranks)
    module = load_model(text, ranks, label(name))
    reply.warn(_notice_of_ranks(text, name, module.ranks, ranks))
    operations = sum(len(computation.nodes) for computation in module.computations.values())
    facts = {"model": name, "ranks": module.ranks, "operations": operations}
    line = f"{name}: correct, {operations} operations for {module.ranks} ranks"
    reply.give(fields=lambda: facts, text=lambda: line)


@commands.command("list", epilog=examples("nccc list step.neff"))
@click.argument("neff", type=click.Path(), metavar="MODEL.neff")
@click.option("--constants", is_flag=True, help="Print the bytes of constants too.")
@replying
def list_command(reply: Reply, neff: str, constants: bool) -> None:
    """List a compiled program: engine queues, placeholders, semaphores, buffers."""
    from ncc_runtime.neff.container import load
    from ncc_runtime.neff.listing import as_json, print_program

    program = load(neff)
    reply.give(
        fields=lambda: as_json(program, constants),
        text=lambda: print_program(program, constants=constants),
    )
