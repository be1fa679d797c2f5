"""Files that users name, read with suspicion: up to a size, JSON up to a depth.

Every reader has a limit. An endless file (a device, a pipe whose writer never ends) is refused once
it exceeds that, and takes no more memory than a file of that size.

A file that is of another kind than its place asks for is recognised, where its kind is known, so
that messages say what it is and where it belongs.
"""

import enum
import errno
import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import attrs

MOST_MODEL_BYTES = 1 << 30
MOST_NEFF_BYTES = 1 << 34
MOST_TOML_BYTES = 1 << 20
MOST_JSON_BYTES = 1 << 24

MOST_DEPTH = 64
"""How deep arrays and objects of a JSON document may nest; ours have four levels."""

MOST_DIGITS = 400
"""Digits of a number; Python prints no number of 4,300, and none that we read has 25."""

_PIECE = 1 << 24


def read_file(file: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a file of at most `most`; OSError, with its name, where it cannot be read."""
    with Path(file).open("rb") as stream:
        return read_stream(stream, most, str(file))


def read_stream(stream: IO[bytes], most: int, name: str) -> bytes:
    """The rest of a stream; OSError where it is endless by its nature or longer than that."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # bytes in memory, as of an archive
        status = None
    if status is not None and not os.isatty(stream.fileno()):
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            raise OSError(errno.EINVAL, "is a device; give the name of a file", name)
        if stat.S_ISREG(status.st_mode) and status.st_size - stream.tell() > most:
            raise _too_large(most, name)
    pieces: list[bytes] = []
    left = most
    while piece := stream.read(min(_PIECE, left + 1)):
        left -= len(piece)
        if left < 0:
            raise _too_large(most, name)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(most: int, name: str) -> OSError:
    return OSError(errno.EFBIG, f"has more than {most} bytes, the most that is read of it", name)


def json_of(data: bytes | str) -> object:
    """The value of a JSON text; ValueError, in one line, where it is none or beyond the limits.

    Numbers are finite and short, so that they can be compared, stored and printed.
    """
    try:
        document: object = json.loads(data, parse_int=_integer, parse_constant=_refused_constant)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_DEPTH} deep") from None
    level, depth = [document], 0
    while level := [
        child
        for parent in level
        if isinstance(parent, dict | list)
        for child in (parent.values() if isinstance(parent, dict) else parent)
    ]:
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError(f"nested more than {MOST_DEPTH} deep")
    return document


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _refused_constant(word: str) -> object:
    raise ValueError(f"{word} is no number of JSON")


class FileRole(enum.Enum):
    """What a file is given as."""

    MODEL = "model"
    PROGRAM = "program"
    TOPOLOGY = "topology"
    PLACEMENT = "placement"
    PLAN = "plan"
    ARRAYS = "arrays"
    ROWS = "rows"
    FAULTS = "faults"
    SWEEP = "sweep"


MOST_RECOGNISED_BYTES = 1 << 16
"""A file is recognised by what it begins with."""

# groups of comments are atomic: there is one way only to match them
_BLANK = rb"\A(?:\xef\xbb\xbf)?\s*"
_XML = _BLANK + rb"(?><\?xml[^>]*>\s*)?(?>(?:<!--.*?-->\s*)*)"
_JSON = _BLANK + rb"\{"
_COMMENTS = rb"(?>(?:(?:#|//)[^\n]*\n\s*)*)"


@attrs.frozen
class FileKind:
    """What files of a kind are right as, what to say where one is given as something else."""

    role: FileRole | None
    what: str
    begins: bytes  # a pattern
    has: Sequence[bytes] = ()  # patterns that are somewhere in what is looked at

    def is_of(self, begin: bytes) -> bool:
        """Whether a file that begins so is one."""
        if not re.match(self.begins, begin, re.DOTALL):
            return False
        return all(re.search(pattern, begin, re.MULTILINE) for pattern in self.has)


_KINDS = (
    FileKind(
        FileRole.PROGRAM,
        "a compiled program (.neff), which nccrt run places and runs",
        rb"\A.{8}\x00\x04\x00{6}",  # header_size 1024, whoever compiled it
    ),
    FileKind(
        FileRole.MODEL,
        "HLO text, of which nccc compile makes a .neff",
        _BLANK + _COMMENTS + rb"HloModule\b",
    ),
    FileKind(
        None,
        "a module of MLIR: with the suffix .mlir nccc compile makes a .neff of it",
        rb"(?:" + _BLANK + _COMMENTS + rb"module\b[^=\n]*[@{]|\AML\xefR)",
    ),
    FileKind(
        FileRole.ARRAYS,
        "a ZIP archive; --inputs takes one of arrays, an .npz file",
        rb"\APK\x03\x04",
    ),
    FileKind(
        FileRole.ARRAYS,
        "a .safetensors file; --inputs takes the arrays of one",
        rb'\A.{5}\x00{3}\{\s*"',
    ),
    FileKind(FileRole.PLAN, "a plan in MSCCL XML, which --plan takes", _XML + rb"<algo\b"),
    FileKind(FileRole.PLAN, "a plan of ours, which --plan takes", _JSON, [rb'"ncc-plan"']),
    FileKind(  # NCCL's src/graph/xml.cc
        None,
        "a topology of NCCL (NCCL_TOPO_FILE), a server's PCI tree: machines are TOML here; nccrt "
        "topology list names the built-in ones, docs/topology.md says how to write one",
        _XML + rb"<system\b",
    ),
    FileKind(  # likewise
        None,
        "what NCCL found as rings and trees (NCCL_GRAPH_DUMP_FILE): nccrt makes its own; give an "
        "algorithm as MSCCL XML to --plan",
        _XML + rb"<graphs\b",
    ),
    FileKind(  # microsoft/mscclpp, src/executor/execution_plan.cc
        None,
        "an execution plan of MSCCL++, whose operations (put, signal, wait, ...) are no steps of "
        "thread blocks that send and receive, and are not read: write the algorithm as MSCCL XML, "
        "with msccl-tools, or start from a plan of ours (nccrt explain --save-plan FILE)",
        _JSON,
        [rb'"gpus"\s*:\s*\[', rb'"thread_?blocks"\s*:'],
    ),
    FileKind(  # microsoft/sccl and taccl, serialization.py
        None,
        "an object of SCCL or TACCL in JSON: their ncclize writes an algorithm as the MSCCL XML "
        "that --plan takes",
        _JSON,
        [rb'"(?:sccl|msccl|taccl)_type"\s*:'],
    ),
    FileKind(  # microsoft/taccl, taccl/examples/sketch
        None,
        "a communication sketch of TACCL, from which it makes an algorithm: give that, as MSCCL "
        "XML, to --plan",
        _JSON,
        [rb'"(?:intra|inter)node_sketch"\s*:'],
    ),
    FileKind(  # microsoft/TE-CCL
        None,
        "an input or a schedule of TE-CCL: give the schedule as MSCCL XML to --plan",
        _JSON,
        [rb'"(?:\d-Epoch_Duration|\d-Flows|TopologyParams)"\s*:'],
    ),
    FileKind(  # mlcommons/chakra, and PyTorch's execution traces
        None,
        "an execution trace of PyTorch in JSON: chakra_converter PyTorch, of the package "
        "mlc-chakra, makes .et files of it, and of those of all ranks nccc compile makes programs "
        "(docs/chakra.md)",
        _JSON,
        [rb'"schema"\s*:\s*"[^"]*chakra'],
    ),
    FileKind(  # the length of a head, its version behind the tag of field 1
        None,
        "an execution trace of a rank (Chakra): nccc compile takes the folder of those of all "
        "ranks, whose names are NAME.<rank>.et (docs/chakra.md)",
        rb"\A.{1,2}\n[\x03-\x08]\d\.\d(?:\.\d)?",
    ),
    FileKind(
        None,
        "a timeline, as nccrt run --trace writes; ui.perfetto.dev opens it",
        _BLANK + rb"[{\[]",
        [rb'"ph"\s*:\s*"'],
    ),
    FileKind(
        FileRole.PLACEMENT, "a placement, for --placement", _JSON + rb'\s*"ranks"\s*:\s*\[\s*\['
    ),
    FileKind(
        FileRole.ROWS,
        "a file of measured rows, for nccrt calibrate",
        _JSON + rb'\s*"rows"\s*:\s*\[\s*\{',
    ),
    FileKind(
        FileRole.TOPOLOGY,
        "a topology, for --topology",
        _BLANK + _COMMENTS + rb'(?:name|base|summary)\s*=\s*"',
    ),
    FileKind(
        FileRole.FAULTS,
        "faults during a run, for --faults",
        _BLANK + rb"(?:#|\[\[fault\]\])",
        [rb"^\s*\[\[fault\]\]", rb'^\s*what\s*=\s*["\']'],
    ),
    FileKind(
        FileRole.SWEEP,
        "a sweep, for nccrt sweep",
        _BLANK + rb"(?:#|\[)",
        [rb"^\s*\[(?:\[(?:grid|point)\]\]|common\])"],
    ),
    FileKind(
        FileRole.MODEL,
        "HLO text, of which nccc compile makes a .neff",
        _BLANK + rb"[#/%\w]",
        [rb"^\s*(?:ENTRY\b|(?:ROOT )?%?[\w.-]+ = \(?[a-z][a-z0-9]*\[)"],
    ),
)


def recognised(data: bytes, role: FileRole) -> str:
    """What a file is that is known as something other than its role, and where it belongs.

    The answer follows "but"; it is "" for files of that role, and for unknown ones.
    """
    begin = data[:MOST_RECOGNISED_BYTES]
    kind = next((kind for kind in _KINDS if kind.is_of(begin)), None)
    return "" if kind is None or kind.role is role else kind.what
