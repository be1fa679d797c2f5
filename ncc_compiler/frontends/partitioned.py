"""Refuses programs that are annotated with shardings but were never partitioned.

After partitioning, XLA keeps `sharding` on parameters and results only, whose shapes are then those
of one partition, and no attribute of Shardy. Later passes copy a parameter's `sharding` to copies
of it, also inside of fusions; so other instructions may have it in a program that is scheduled,
which is XLA's last step. Before partitioning, the attributes stand on any instruction, or on
parameters alone in a program without collectives. A program that needs no collectives looks the
same before and after, but for the name of its entry: the partitioner appends `_spmd`. StableHLO
does not keep that name, so there a number of ranks from the user is taken as the answer. The custom
calls of both partitioners are refused by their op.
"""

import math
import re
from collections.abc import Iterator

import attrs

from ncc_compiler.diagnostics import CompileError, Diagnostic, Source, Span
from ncc_compiler.ir.custom_calls import PARTITION_IT

_GSPMD = r"sharding=(?<![\w.]sharding=)\{+(?:devices=\[|manual\})"
_SHARDY = r"xla(?<![\w.]xla)\.sdy\.sharding(?:_per_value)?="
_ANNOTATION = re.compile(f"{_GSPMD}|{_SHARDY}")
_RANK_OPS = re.compile(
    r"[ )](?:all-reduce|all-gather|all-to-all|reduce-scatter|ragged-all-to-all|partition-id|"
    r"collective-permute|collective-broadcast|replica-id|send|recv)(?:-start)?\("
)
_TILES = re.compile(r"(?<![\w.])sharding=\{+devices=\[([\d,]+)\]")
_MESH = re.compile(r"#sdy\.mesh<\[([^\]]*)\]")
_SPMD_ENTRY = re.compile(r"^ENTRY %?[\w.\-]*_spmd", re.MULTILINE)
_SCHEDULED = re.compile(r"\bis_scheduled=true\b")
_SEVERAL_PARTITIONS = re.compile(r"\bnum_partitions=0*(?:[2-9]|1\d)")
_HOST_CALL = re.compile(r'custom_call_target="[^"]*callback', re.IGNORECASE)
_PARAMETER_OR_ROOT = re.compile(r"\bparameter\(|^\s*ROOT ")


class NeverPartitionedError(CompileError):
    """The program is annotated with shardings, and was certainly not partitioned."""


_OR_SAY_SO = (
    "if it was, say so with --ranks N, or give its .pb or its HLO text, which keep the name of the "
    f"entry; if not, {PARTITION_IT}"
)


def check_partitioned(source: Source, ranks: int | None = None) -> None:
    """Raises CompileError if a sharding of the HLO text was not acted upon by a partitioner.

    Where the text does not show it, `ranks` from the user says that it was.
    """
    text = source.text
    if "sharding" not in text:
        return
    header = _header_of(text)
    is_scheduled = (
        _SEVERAL_PARTITIONS.search(header)
        and _SCHEDULED.search(header)
        and _SPMD_ENTRY.search(text)
    )
    annotations, unexpected = [], []
    for annotation, line, place in _with_lines(text):
        # JAX puts host callbacks on a device of their own, even if there is only one device: no
        # reason to partition. Callbacks are refused by their op.
        if line.calls_host <= place:
            continue
        annotations.append(annotation)
        is_on_other = line.is_parameter_or_root > place
        if is_on_other and (_is_shardy(annotation) or not is_scheduled):
            unexpected.append(annotation)
    any_shardy = any(_is_shardy(annotation) for annotation in annotations)
    if not unexpected:
        # Only parameters and results are annotated: the program was not partitioned if it has no
        # op for several ranks, and the partitioner has not renamed its entry.
        if not annotations or not text.startswith("HloModule") or _RANK_OPS.search(text):
            return
        if not any_shardy and _SPMD_ENTRY.search(text):
            return
    first = (unexpected or annotations)[0]
    fact, advice = "but was never partitioned", PARTITION_IT
    if not unexpected and not any_shardy:
        if ranks is not None:
            return
        fact, advice = "and nothing shows that it was partitioned", _OR_SAY_SO
    message = f"the program is annotated with shardings, {fact}"
    span = Span(source, first.start(), first.end())
    kind = NeverPartitionedError if unexpected or any_shardy else CompileError
    raise kind([Diagnostic("input-C3", message, span, help=advice)])


def _is_shardy(annotation: re.Match[str]) -> bool:
    return annotation[0].startswith("xla.sdy")


@attrs.frozen
class _Line:
    """Offsets in a line from which on it is known to be something; infinite if it is not."""

    calls_host: float
    is_parameter_or_root: float

    @classmethod
    def of(cls, line: str) -> "_Line":
        call, start = _HOST_CALL.search(line), _PARAMETER_OR_ROOT.search(line)
        return cls(call.end() if call else math.inf, start.end() if start else math.inf)


def _with_lines(text: str) -> Iterator[tuple[re.Match[str], _Line, int]]:
    """The annotations, each with its line, which is searched once, and its offset there."""
    start, end, line = 0, -1, _Line(math.inf, math.inf)
    for match in _ANNOTATION.finditer(text):
        if match.start() > end:
            start = text.rfind("\n", max(end, 0), match.start()) + 1
            end = text.find("\n", match.start())
            end = end if end >= 0 else len(text)
            line = _Line.of(text[start:end])
        yield match, line, match.start() - start


def _header_of(text: str) -> str:
    return text.partition("\n")[0]


def count_of_shardings(text: str) -> str:
    """A header attribute for the devices in the shardings and meshes of a module; or nothing."""
    tiles = [math.prod(map(int, sizes.split(","))) for sizes in _TILES.findall(text)]
    meshes = [
        math.prod(map(int, re.findall(r"=(\d+)", axes))) for axes in _MESH.findall(_header_of(text))
    ]
    devices = max(tiles + meshes, default=1)
    return f", num_partitions={devices}" if devices > 1 else ""
