"""Refuses annotations that ask for a partitioning which never took place.

After it XLA keeps `sharding` on parameters and results only, their shapes being those of a part,
and nothing of Shardy. Later passes give a parameter's `sharding` on to copies of it, also inside of
fusions; they are believed in a program that is scheduled, which is XLA's last step. Before it the
same attributes stand everywhere, or on parameters alone, and then no instruction knows of ranks. A
program without collectives looks the same before and after, but for the name of its entry: the
partitioner appends `_spmd`. StableHLO does not keep the name, so that whoever gives the number of
ranks is believed. The custom calls of both partitioners are refused by the op.
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
_OF_RANKS = re.compile(
    r"[ )](?:all-reduce|all-gather|all-to-all|reduce-scatter|ragged-all-to-all|partition-id|"
    r"collective-permute|collective-broadcast|replica-id|send|recv)(?:-start)?\("
)
_TILES = re.compile(r"(?<![\w.])sharding=\{+devices=\[([\d,]+)\]")
_MESH = re.compile(r"#sdy\.mesh<\[([^\]]*)\]")
_MARK = re.compile(r"^ENTRY %?[\w.\-]*_spmd", re.MULTILINE)
_SCHEDULED = re.compile(r"\bis_scheduled=true\b")
_SEVERAL = re.compile(r"\bnum_partitions=0*(?:[2-9]|1\d)")
_HOST_CALL = re.compile(r'custom_call_target="[^"]*callback', re.IGNORECASE)
_BORDER = re.compile(r"\bparameter\(|^\s*ROOT ")


_OR_SAY_SO = (
    "if it was, say so with --ranks N, or give its .pb or its HLO text, which keep the name of the "
    f"entry; if not, {PARTITION_IT}"
)


def check_partitioned(source: Source, ranks: int | None = None) -> None:
    """Raises CompileError if an annotation of the HLO text cannot have been acted upon.

    `ranks` is what the user says; then nothing that is open is refused.
    """
    text = source.text
    if "sharding" not in text:
        return
    is_finished = _is_finished(text)
    annotations, inside = [], []
    for annotation, line, place in _with_lines(text):
        # JAX puts host callbacks on a device of their own, also where there is one only: no reason
        # to partition. They are refused for what they are, by the op.
        if line.calls_host <= place:
            continue
        annotations.append(annotation)
        if line.border > place and (_is_shardy(annotation) or not is_finished):
            inside.append(annotation)
    if not inside and not _of_no_rank(text, annotations):
        return
    first = (inside or annotations)[0]
    fact, advice = "but was never partitioned", PARTITION_IT
    if not inside and not any(_is_shardy(annotation) for annotation in annotations):
        if ranks is not None:
            return
        fact, advice = "and nothing shows that it was partitioned", _OR_SAY_SO
    message = f"the program is annotated with shardings, {fact}"
    span = Span(source, first.start(), first.end())
    raise CompileError([Diagnostic("input-C3", message, span, help=advice)])


def _is_shardy(annotation: re.Match[str]) -> bool:
    return annotation[0].startswith("xla.sdy")


def _of_no_rank(text: str, annotations: list[re.Match[str]]) -> bool:
    """Whether parameters are sharded, and neither an op nor the partitioner's mark is of ranks."""
    if not annotations or not text.startswith("HloModule") or _OF_RANKS.search(text):
        return False
    return any(_is_shardy(annotation) for annotation in annotations) or not _MARK.search(text)


def _is_finished(text: str) -> bool:
    """Whether XLA scheduled a program for several partitions, after its partitioner named it."""
    header = _header_of(text)
    return bool(_SEVERAL.search(header) and _SCHEDULED.search(header) and _MARK.search(text))


@attrs.frozen
class _Line:
    """Where in a line, or never, it is known to call the host, and to be a parameter or a root."""

    calls_host: float
    border: float

    @classmethod
    def of(cls, line: str) -> "_Line":
        call, border = _HOST_CALL.search(line), _BORDER.search(line)
        return cls(call.end() if call else math.inf, border.end() if border else math.inf)


def _with_lines(text: str) -> Iterator[tuple[re.Match[str], _Line, int]]:
    """The annotations, each with its line, which is looked at once, and its place there."""
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


def world_of_shardings(text: str) -> str:
    """A header attribute for the devices in the shardings and meshes of a module; or nothing."""
    tiles = [math.prod(map(int, sizes.split(","))) for sizes in _TILES.findall(text)]
    meshes = [
        math.prod(map(int, re.findall(r"=(\d+)", axes))) for axes in _MESH.findall(_header_of(text))
    ]
    devices = max(tiles + meshes, default=1)
    return f", num_partitions={devices}" if devices > 1 else ""
