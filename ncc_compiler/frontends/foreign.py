"""StableHLO and protocol buffers, read by jaxlib (the extra `jax`) in a child process."""

import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ncc_compiler.diagnostics import CompileError, Diagnostic, Source, Span
from ncc_compiler.frontends.partitioned import (
    NeverPartitionedError,
    check_partitioned,
    count_of_shardings,
)
from ncc_compiler.ir.whole_array import WholeArray
from ncc_runtime.input_files import MOST_MODEL_BYTES, read_file
from ncc_runtime.progress import phase

if TYPE_CHECKING:
    import subprocess

KINDS: Mapping[str, str] = {
    ".mlir": "StableHLO",
    ".mlirbc": "StableHLO",
    ".pb": "HLO",
}
"""The child's KIND for each suffix."""

CHILD = Path(__file__).with_name("jaxlib_child.py")
REFUSED = 4  # what the child ends with when jaxlib has complained

_PRINT_IT = {
    "StableHLO": "jax.jit(f).lower(...).as_text() prints StableHLO",
    "HLO": "an HloModuleProto or a dumped HloProto is read; HLO text has the suffix .hlo or .txt",
}


@attrs.frozen
class ModelText:
    """The HLO text of a rank's program, and what its front end knows besides.

    `ranks_are_inferred` says that the number of ranks is a guess, since the file records none.
    `parameters` and `results` are in the order of the program's inputs and outputs, one for each
    or none at all. `is_partitioned` says that nothing is left to partition, which need not be
    asked again. Of a stage of several `stages` is their number. `compile_model` of
    `ncc_compiler/driver.py` takes it.
    """

    text: str
    ranks_are_inferred: bool = False
    parameters: tuple[WholeArray, ...] = ()
    results: tuple[WholeArray, ...] = ()
    is_partitioned: bool = False
    stages: int | None = None


def read_foreign(path: str | Path, kind: str, ranks: int | None = None) -> ModelText:
    """The HLO text of a file of one of KINDS. Raises CompileError or OSError."""
    return to_hlo_text(read_file(path, MOST_MODEL_BYTES), kind, str(path), ranks)


def to_hlo_text(
    data: bytes,
    kind: str,
    name: str = "<StableHLO>",
    ranks: int | None = None,
    advice: str | None = None,
) -> ModelText:
    """The HLO text of what one rank runs, for StableHLO (text or bytecode) or a protocol buffer.

    StableHLO with shardings, Shardy's or GSPMD's, is partitioned by XLA in a child process, which
    has as many virtual devices as the module has partitions; `mhlo.num_partitions` says how many,
    else its meshes and shardings, else `ranks`. Names and shardings of results come with it:
    `jax.result_info` is the name of one. `name` is what messages call the data, and `advice` stands
    behind them. Raises CompileError with what jaxlib says.
    """
    if importlib.util.find_spec("jaxlib") is None:
        raise _refusal(
            f"{name}: reading {kind} takes jaxlib", "install it: pip install 'neuron-ncc[jax]'"
        )
    if not data.strip():
        raise _refusal(f"{name}: the file is empty")
    help_text = _PRINT_IT[kind] if advice is None else advice
    dumped = _module_of_dump(data) if kind == "HLO" else None
    answer = _answer_of_child(kind, dumped or data, name, ranks, help_text)
    facts, _, text = answer.partition("\n")
    model = _with_rank_counts(text, json.loads(facts))
    return partitioned(model, name, ranks) if kind == "HLO" else model


def partitioned(model: ModelText, name: str, ranks: int | None = None) -> ModelText:
    """The same model, partitioned by XLA if its HLO text says that it was never partitioned.

    Without jaxlib it stays as it is, and is refused where it is compiled.
    """
    if model.is_partitioned:
        return model
    try:
        check_partitioned(Source(name, model.text), ranks)
    except NeverPartitionedError:
        if importlib.util.find_spec("jaxlib") is None:
            return model
    except CompileError:  # nobody knows
        return model
    else:
        return attrs.evolve(model, is_partitioned=True)
    answer = _answer_of_child("sharded HLO", model.text.encode(), name, ranks, "")
    facts, _, text = answer.partition("\n")
    return _with_rank_counts(text, json.loads(facts))


def _answer_of_child(kind: str, data: bytes, name: str, ranks: int | None, advice: str) -> str:
    import subprocess
    import tempfile

    with (
        tempfile.TemporaryDirectory(prefix="ncc-", ignore_cleanup_errors=True) as folder,
        phase("reading and partitioning by XLA", ""),
    ):
        child = subprocess.run(  # noqa: S603
            [sys.executable, "-P", str(CHILD), kind, folder, str(ranks or 0)],
            input=data,
            capture_output=True,
            check=False,
            # the user's flags are for the process that traces: dumps, devices, other backends
            env={key: value for key, value in os.environ.items() if key != "XLA_FLAGS"},
        )
    answer = child.stdout.decode(errors="replace")
    if child.returncode == REFUSED:
        raise CompileError(complaints(name, data, answer, advice))
    if child.returncode:
        raise _fault(name, child)
    return answer


def _module_of_dump(data: bytes) -> bytes | None:
    """The HloModuleProto in the HloProto that XLA dumps; None if the data is none.

    Both begin with their field 1: a module's name, or a module, which begins with its name.
    """
    field_1 = b"\x0a"
    if data[:1] != field_1:
        return None
    size = 0
    for at, byte in enumerate(data[1:6], start=1):
        size |= (byte & 0x7F) << 7 * (at - 1)
        if byte < 0x80:
            module = data[at + 1 : at + 1 + size]
            return module if module[:1] == field_1 else None
    return None


def _with_rank_counts(text: str, facts: Mapping[str, Any]) -> ModelText:
    """The text with counts of ranks in its header, which jaxlib leaves out.

    A file's own counts are not believed if they are 1: JAX writes that into every file that was
    not lowered for several devices. Then the devices in its shardings count.
    """
    counts = facts["counts"]
    parameters, results = (
        tuple(
            WholeArray(
                array.get("name", ""),
                array.get("sharding", ""),
                None if array["shape"] is None else tuple(array["shape"]),
                array.get("output"),
                array.get("is_donated", False),
            )
            for array in facts.get(key, ())
        )
        for key in ("parameters", "results")
    )
    header, newline, rest = text.partition("\n")
    is_inferred = False
    if not re.search(r"\b(num_partitions|replica_count)=", header):
        is_single = not re.search(r"=(?!1\b)\d", counts)
        header += count_of_shardings(text) if is_single else counts
        is_inferred = not counts
    text = f"{header}{newline}{rest}"
    return ModelText(text, is_inferred, parameters, results, facts.get("is_partitioned", False))


def _fault(name: str, child: "subprocess.CompletedProcess[bytes]") -> CompileError:
    """The error for a child that ended without an answer."""
    lines = child.stderr.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if last.startswith(("ImportError", "ModuleNotFoundError", "AttributeError")):
        fact = f"{name}: the installed jaxlib lacks what is needed: {last}"
        return _refusal(fact, "install another: pip install --upgrade 'neuron-ncc[jax]'")
    if child.returncode < 0:
        last = f"signal {-child.returncode}"
    fact = f"{name}: jaxlib broke down on the file, which is damaged or not what its suffix says"
    return _refusal(f"{fact} ({last})")


_ERROR = re.compile(
    r'^(?:[A-Z_]+: )?(?:loc\()?"?(-|[^"\n]*?)"?:(\d+):(\d+)\)?: error: (.*)$', re.MULTILINE
)
_PREFIX = re.compile(r"^(?:[A-Z_]+: )?(?:<unknown>:0: |loc\(unknown\): )?(?:error: )?")


def complaints(name: str, data: bytes, answer: str, advice: str) -> list[Diagnostic]:
    """jaxlib's errors as diagnostics, with the place in the file if it gives one."""
    try:
        source = Source(name, data.decode())
    except UnicodeDecodeError:
        source = None
    diagnostics = []
    for file, line, column, fact in _ERROR.findall(answer):
        span = _span(source, int(line), int(column)) if source and file == "-" else None
        place = f"{name}: " if span is None else ""
        diagnostics.append(Diagnostic("input-C2", f"{place}{fact}", span, help=advice))
    if diagnostics:
        return diagnostics
    first = _PREFIX.sub("", answer.strip().split("\n")[0])
    return [Diagnostic("input-C2", f"{name}: {first[:1].lower()}{first[1:]}", help=advice)]


def _span(source: Source, line: int, column: int) -> Span | None:
    """The character at a line and a column from 1; None if the text has no such place."""
    lines = source.text.split("\n")
    if not 0 < line <= len(lines) or not 0 < column <= len(lines[line - 1]) + 1:
        return None
    start = sum(len(text) + 1 for text in lines[: line - 1]) + column - 1
    return Span(source, start, start + 1)


def _refusal(message: str, advice: str = "") -> CompileError:
    return CompileError([Diagnostic("input-C2", message, help=advice)])
