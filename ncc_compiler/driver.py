"""The compiler from end to end: text in, `.neff` out. Read `compile_text` first."""

import codecs
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path, PurePath

import attrs

from ncc_compiler.codegen.generate import Neff, generate, seal
from ncc_compiler.codegen.parameters import described
from ncc_compiler.diagnostics import CompileError, Diagnostic, Source
from ncc_compiler.frontends.foreign import KINDS, ModelText, partitioned, read_foreign
from ncc_compiler.frontends.partitioned import check_partitioned
from ncc_compiler.frontends.python_file import split
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.op_tables.collectives import EVERYBODY, IDS_EXIST, PAIRS_EXIST
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.rules import sentence
from ncc_compiler.ir.whole_array import WholeArray
from ncc_compiler.options import CompileOptions
from ncc_compiler.passes.manager import Observer, run_passes
from ncc_compiler.pipelines import pipeline
from ncc_compiler.releases import as_released
from ncc_runtime.input_files import MOST_MODEL_BYTES, FileRole, read_file, recognised
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.partial import CARRIED
from ncc_runtime.progress import phase

LOADED = "load"
"""The stage that an observer sees first: the module as it was written."""


def compile_text(
    text: str,
    options: CompileOptions | None = None,
    name: str = "<text>",
    observe: Observer | None = None,
) -> Neff:
    """Compile HLO text, which XLA prints after it has partitioned a program (docs/ir.md).

    `name` is what messages call the text. `observe` is shown the module as loaded and after every
    pass. Raises CompileError when the program is wrong, ValueError when an option is.

    >>> text = (
    ...     "ENTRY gather { x = f32[2] parameter(0) "
    ...     "ROOT all = f32[8] all-gather(x), replica_groups={{0,1,2,3}}, dimensions={0} }"
    ... )
    >>> neff = compile_text(text)
    >>> neff.program.ranks, len(neff.program.placeholders)
    (4, 1)
    """
    return compile_model(ModelText(text), options, name, observe)


def compile_model(
    model: ModelText,
    options: CompileOptions | None = None,
    name: str = "<model>",
    observe: Observer | None = None,
) -> Neff:
    """The same for what a front end made: a text, with names and shardings of whole arrays."""
    options = options or CompileOptions()
    passes = pipeline(options)
    with _without_gc():
        module = load_model(model, options.ranks, name)
        if options.sdk is not None:
            passes = pipeline(as_released(options, module))
        if observe is not None:
            observe(LOADED, module)
        verify_each = options.verify_each_pass
        canonical = run_passes(module, passes, verify_each=verify_each, observe=observe)
        with phase("generating instructions", ""):
            has_partial_arrays = options.partial_all_reduce is not None

            def describe(program: Program) -> Program:
                whole = with_partial_arrays(model, program) if has_partial_arrays else model
                return described(program, whole.parameters, whole.results)

            return seal(generate(canonical, describe))


def compile_trace(
    path: str | Path,
    options: CompileOptions | None = None,
    *,
    comm_groups: str | Path | None = None,
    durations: bool = True,
) -> list[tuple[Neff, tuple[int, ...]]]:
    """Compile execution traces of Chakra, of all ranks: programs, and the ranks that run each.

    `ncc_runtime.load` takes what is returned. `path` is a folder with NAME.<rank>.et, or one of
    these files; `comm_groups` a JSON file of process groups where they do not stand beside it.
    Instructions have sizes and no values, and take as long as the trace says, or without
    `durations` as their sizes do (docs/chakra.md). Raises CompileError with what is wrong in which
    file, OSError where one cannot be read.
    """
    from ncc_compiler.frontends.chakra.programs import read_programs

    groups = None if comm_groups is None else str(comm_groups)
    programs = read_programs(str(path), groups, durations=durations)
    return [(compile_model(one.model, options, one.name), one.ranks) for one in programs]


def with_partial_arrays(model: ModelText, program: Program) -> ModelText:
    """The model with names for what partial all-reduces have added to its inputs and outputs."""
    parameters, results = model.parameters, model.results
    if parameters:
        added = len(program.inputs) - len(parameters)
        parameters = (*parameters, *[WholeArray()] * added)  # these have their names in the graph
    names = [program.parameter(number).name for number in range(len(program.inputs))]
    carried = [WholeArray(name) for name in names if name.startswith(CARRIED)]
    own = results or (WholeArray(),) * (len(program.outputs) - len(carried))
    return attrs.evolve(model, parameters=parameters, results=(*own, *carried))


def load_text(text: str, ranks: int | None = None, name: str = "<text>") -> Module:
    """The verified graph of a text. Raises CompileError with all that is wrong."""
    return load_model(ModelText(text), ranks, name)


def load_model(model: ModelText, ranks: int | None = None, name: str = "<model>") -> Module:
    """The same for what a front end made."""
    source = Source(name, model.text)
    with _without_gc(), _advising_ranks(model), phase("reading the program", ""):
        if not model.is_partitioned:
            check_partitioned(source, ranks)
        return load_module(source, ranks)


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """Python's cyclic collector switched off: trees and graphs are large and have no cycles.

    What was made meanwhile counts as old behind it, so that the collector does not walk over all of
    it at once. It cannot be told so where somebody else has frozen objects.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def compile_file(path: str | Path, options: CompileOptions | None = None) -> Neff:
    """Compile a file: HLO text in UTF-8, or with the extra `jax` `.mlir`, `.mlirbc` and `.pb`.

    Raises OSError if the file cannot be read, CompileError if it is wrong or no program, with the
    line, ValueError if an option is wrong.
    """
    options = options or CompileOptions()
    return compile_model(read_text(path, options.ranks), options, label(str(path)))


def read_text(path: str | Path, ranks: int | None = None) -> ModelText:
    """The HLO text of a model file; jaxlib converts `.mlir` and `.pb`, and XLA partitions.

    Raises OSError if the file cannot be read, CompileError if it holds no model.
    """
    kind = KINDS.get(PurePath(path).suffix)
    if kind is not None:
        return read_foreign(path, kind, ranks)
    text = decode(read_file(path, MOST_MODEL_BYTES), str(path))
    return partitioned(ModelText(text), str(path), ranks)


_RULES_ON_RANKS = frozenset({EVERYBODY, IDS_EXIST, PAIRS_EXIST})
_SAY_RANKS = (
    "the file records no number of ranks: say --ranks N, or give HLO text with replica_count and "
    "num_partitions in its header"
)


@contextlib.contextmanager
def _advising_ranks(model: ModelText) -> Iterator[None]:
    """Adds advice to complaints that a wrong guess of the number of ranks would explain."""
    try:
        yield
    except CompileError as error:
        if not model.ranks_are_inferred:
            raise
        diagnostics = []
        for diagnostic in error.diagnostics:
            family, _, _ = diagnostic.code.rpartition("-C")
            if family in OPS and sentence(diagnostic.code) in _RULES_ON_RANKS:
                advice = "; ".join(filter(None, [diagnostic.help, _SAY_RANKS]))
                diagnostic = attrs.evolve(diagnostic, help=advice)
            diagnostics.append(diagnostic)
        raise CompileError(diagnostics) from error


def label(model: str) -> str:
    """The file's name in messages; lines of what is no text are those of the HLO made of it."""
    is_text = PurePath(model).suffix not in KINDS and split(model) is None
    return model if is_text else f"{model} (as HLO)"


def decode(data: bytes, name: str) -> str:
    """The bytes of a model as text with `\\n` line ends. Raises CompileError if they are none."""
    if other := recognised(data, FileRole.MODEL):
        raise CompileError([Diagnostic("input-C1", f"{name}: not HLO text, but {other}")])
    mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    try:
        text = data[mark:].decode()
    except UnicodeDecodeError as error:
        at = mark + error.start
        text = f"{name}: not UTF-8 text: byte 0x{data[at]:02x} at offset {at}"
        raise CompileError([Diagnostic("input-C1", text)]) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
