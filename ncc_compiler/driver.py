"""The compiler from end to end: text in, `.neff` out. Read `compile_text` first."""

from pathlib import Path, PurePath

from ncc_compiler.codegen.generate import Neff, generate, seal
from ncc_compiler.diagnostics import CompileError, Diagnostic, Source
from ncc_compiler.ir.load import load_module
from ncc_compiler.options import CompileOptions
from ncc_compiler.passes.manager import Observer, run_passes
from ncc_compiler.passes.pipelines import pipeline

LOADED = "load"
"""What an observer sees first: the module as it was written."""


def compile_text(
    text: str,
    options: CompileOptions | None = None,
    name: str = "<text>",
    observe: Observer | None = None,
) -> Neff:
    """The compiled program; `name` is what messages call the text.

    `observe` is shown the module as loaded and after every pass. Raises CompileError when the
    program is wrong, ValueError when an option is.
    """
    options = options or CompileOptions()
    passes = pipeline(options)
    module = load_module(Source(name, text), options.ranks)
    if observe is not None:
        observe(LOADED, module)
    canonical = run_passes(module, passes, verify_each=options.verify_each_pass, observe=observe)
    program = generate(canonical)
    return seal(program)


def compile_file(path: str | Path, options: CompileOptions | None = None) -> Neff:
    """The compiled program of a file of HLO text (`.ir`, `.hlo`, `.txt`)."""
    return compile_text(read_text(path), options, str(path))


_LATER = {".mlir": "StableHLO", ".mlirbc": "StableHLO", ".pb": "HloModuleProto"}


def read_text(path: str | Path) -> str:
    """The text of a model file. Raises OSError or CompileError where there is none to be had."""
    kind = _LATER.get(PurePath(path).suffix)
    if kind is not None:
        raise _unreadable(
            f"{path}: the front end for {kind} comes with a later version",
            "HLO text can be compiled: print it with jax.jit(f).lower(...).compile().as_text()",
        )
    return decode(Path(path).read_bytes(), str(path))


def decode(data: bytes, name: str) -> str:
    """The bytes of a model as text with `\\n` line ends. Raises CompileError if not UTF-8."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise _unreadable(
            f"{name}: not UTF-8 text: byte 0x{byte:02x} at offset {error.start}"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unreadable(message: str, advice: str = "") -> CompileError:
    return CompileError([Diagnostic("input-C1", message, help=advice)])
