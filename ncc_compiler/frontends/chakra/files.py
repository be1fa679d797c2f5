"""Files of a trace, read with suspicion: nodes of each rank, and process groups.

A trace comes as MLCommons' tools, ASTRA-sim's generators and `nccrt run --chakra` write it:
NAME.<rank>.et for each rank, perhaps compressed by gzip, and beside them a JSON file of groups.
"""

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import attrs

from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_runtime.input_files import MOST_JSON_BYTES, json_of, read_file, read_stream
from ncc_runtime.neff.shared.chakra import (
    DURATION_PS,
    MOST_NODES,
    RANKS,
    SUFFIX,
    NodeType,
    attributes_of,
    message_class,
    messages_in,
)

MOST_FILE_BYTES = 1 << 30
MOST_RANKS = 1 << 16
MOST_NODES_OF_ALL = 4_000_000
"""Nodes of all files that differ; a node takes about a kilobyte."""

MOST_DEPENDENCIES = 10_000_000
"""Of all files that differ; and those that are followed, once for each node that is behind them."""

MOST_MESSAGE_BYTES = 1 << 24
"""Of one node: what is packed in it takes eight times as much, and compressed files hide it."""

_KNOWN_VERSION = re.compile(r"|0\.0\.4|1\.0(\.\d+)?")
"""Versions of the schema whose fields are those that are read; converters write none."""

_NUMBERED = re.compile(rf"(?P<name>.+)\.(?P<rank>0|[1-9][0-9]{{0,8}}){re.escape(SUFFIX)}(\.gz)?")
_PS_PER_US = 1_000_000


def refusal(code: str, message: str, advice: str = "") -> CompileError:
    """What is wrong with a trace."""
    return CompileError([Diagnostic(code, message, help=advice)])


@attrs.frozen(eq=False)
class TraceNode:
    """A node of a rank's trace."""

    id: int
    name: str
    kind: NodeType
    data_deps: tuple[int, ...]
    ctrl_deps: tuple[int, ...]
    duration_ps: int | None  # where the trace has one
    attributes: Mapping[str, Any]


@attrs.frozen(eq=False)
class RankTrace:
    """The nodes of one rank, in the order of its file."""

    file: str
    nodes: tuple[TraceNode, ...]

    def place(self, node: TraceNode) -> str:
        """Where a node stands, for messages."""
        return f"{self.file}: node {node.id} ({node.name})"


Groups = Mapping[str, tuple[int, ...]]
"""Ranks of process groups by their names."""


@attrs.frozen(eq=False)
class ChakraTrace:
    """A trace of all ranks."""

    name: str
    ranks: tuple[RankTrace, ...]
    groups: Groups


def trace_name(model: str) -> tuple[Path, str] | None:
    """The folder and the name of a trace that MODEL is; None if it is something else.

    It may be a folder with the files of one trace, one of the files, its name with %d for the
    rank, or, as for ASTRA-sim, the path without `.<rank>.et`.
    """
    path = Path(model)
    if path.is_dir():
        names = {match["name"] for match in _numbered(path)}
        if len(names) > 1:
            raise refusal(
                "chakra-C1",
                f"{model} has several traces: {', '.join(sorted(names))}",
                f"name one, such as {path / min(names)}",
            )
        return (path, names.pop()) if names else None
    if match := _NUMBERED.fullmatch(path.name.replace("%d", "0")):
        return path.parent, match["name"]
    if path.suffix == SUFFIX:
        raise refusal(
            "chakra-C1",
            f"{model} has no number of a rank in its name",
            "files of a trace are called NAME.0.et, NAME.1.et and so on",
        )
    is_prefix = not path.exists() and path.parent.is_dir()
    if is_prefix and any(match["name"] == path.name for match in _numbered(path.parent)):
        return path.parent, path.name
    return None


def _numbered(folder: Path) -> Iterator[re.Match[str]]:
    for file in sorted(folder.iterdir()):
        if match := _NUMBERED.fullmatch(file.name):
            yield match


def read_trace(folder: Path, name: str, groups_file: str | None = None) -> ChakraTrace:
    """Read the files of all ranks, and groups: from a file, beside the trace, or of its metadata.

    Raises CompileError (chakra-C1, -C2), OSError if a file cannot be read.
    """
    files: dict[int, Path] = {}
    for match in _numbered(folder):
        if match["name"] == name:
            files.setdefault(int(match["rank"]), folder / match[0])
    missing = next((rank for rank in range(len(files)) if rank not in files), None)
    if missing is not None or not files:
        raise refusal(
            "chakra-C1",
            f"{folder / name}{SUFFIX}: there are files of {len(files)} ranks, and none of rank "
            f"{missing or 0}",
            f"a trace has a file for each rank from 0 on, {name}.0.et, {name}.1.et and so on",
        )
    if len(files) > MOST_RANKS:
        fact = f"{folder}: {len(files)} ranks, at most {MOST_RANKS} are read"
        raise refusal("chakra-C1", fact, "trace fewer ranks")
    known: dict[bytes, tuple[TraceNode, ...]] = {}  # ranks alike have the same bytes
    ranks, count, dependencies = list[RankTrace](), 0, 0
    for rank in range(len(files)):
        data = _read(files[rank])
        key = hashlib.sha256(data).digest()
        if key not in known:
            nodes = list[TraceNode]()
            for node in _nodes(str(files[rank]), data, len(files)):
                nodes.append(node)
                count += 1
                dependencies += len(node.data_deps) + len(node.ctrl_deps)
                if count > MOST_NODES_OF_ALL or dependencies > MOST_DEPENDENCIES:
                    what = (
                        f"{MOST_NODES_OF_ALL:,} nodes"
                        if count > MOST_NODES_OF_ALL
                        else f"{MOST_DEPENDENCIES:,} dependencies"
                    )
                    fact = f"{files[rank]}: with it there are more than {what} in files that differ"
                    raise refusal("chakra-C1", fact, _SHORTER)
            known[key] = tuple(nodes)
        ranks.append(RankTrace(str(files[rank]), known[key]))
    beside = folder / f"{name}.comm_groups.json"
    if groups_file is None and beside.exists():
        groups_file = str(beside)
    if groups_file is not None:
        groups = _groups_of_file(groups_file, len(ranks))
    else:
        groups = _groups_of_metadata(ranks)
    return ChakraTrace(name, tuple(ranks), groups)


def _read(path: Path) -> bytes:
    data = read_file(path, MOST_FILE_BYTES)
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.open(path) as stream:
            return read_stream(cast("IO[bytes]", stream), MOST_FILE_BYTES, str(path))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise refusal("chakra-C1", f"{path}: is cut off or damaged: {error}", _AGAIN) from None


_SHORTER = "trace fewer steps, or fewer layers"
_AGAIN = "write the trace again, or convert it with the tools of the package mlc-chakra"


def _nodes(file: str, data: bytes, ranks: int) -> Iterator[TraceNode]:
    """The nodes of a file, one of those of so many ranks."""
    from google.protobuf.message import DecodeError

    node_class, seen = message_class("Node"), set[int]()
    where = "its head"
    try:
        messages = messages_in(data)
        head = message_class("GlobalMetadata").FromString(next(messages, b""))
        if not _KNOWN_VERSION.fullmatch(head.version):
            raise refusal(
                "chakra-C1",
                f"{file}: is of version {head.version[:40]!r} of the schema; 0.0.4 and 1.0 are "
                "read",
                _AGAIN,
            )
        said = attributes_of(head.attr).get(RANKS)  # as we write it
        if type(said) is int and said != ranks:
            fact = f"{file}: is of a trace of {said} ranks, and there are files of {ranks}"
            raise refusal("chakra-C1", fact, "give the files of all of its ranks, and no others")
        for number, message in enumerate(messages):
            if number == MOST_NODES:
                fact = f"{file}: has more than {MOST_NODES:,} nodes"
                raise refusal("chakra-C1", fact, _SHORTER)
            where = f"message {number + 1}"
            if len(message) > MOST_MESSAGE_BYTES:
                fact = f"{file}: {where} has {len(message):,} bytes, at most {MOST_MESSAGE_BYTES:,}"
                raise refusal("chakra-C1", f"{fact} are read", _AGAIN)
            node = _node(file, node_class.FromString(message))
            if node.id in seen:
                raise refusal("chakra-C2", f"{file}: two nodes have the id {node.id}", _AGAIN)
            seen.add(node.id)
            yield node
    except DecodeError:
        fact = f"{file}: {where} is no message of Chakra's schema"
        raise refusal("chakra-C1", fact, _AGAIN) from None
    except ValueError as error:
        raise refusal("chakra-C1", f"{file}: {error}", _AGAIN) from None
    if not seen:
        raise refusal("chakra-C1", f"{file}: has no nodes", _AGAIN)


def _node(file: str, message: Any) -> TraceNode:
    kinds = {int(kind): kind for kind in NodeType}
    kind = kinds.get(message.type, NodeType.INVALID)
    if kind is NodeType.INVALID:
        known = ", ".join(one.name for one in NodeType if one is not NodeType.INVALID)
        raise refusal(
            "chakra-C2",
            f"{file}: node {message.id} ({message.name}) is of type {message.type}, which is none "
            f"of {known}",
            _AGAIN,
        )
    attributes = attributes_of(message.attr)
    if kind is NodeType.METADATA and message.HasField("inputs"):
        attributes = {**attributes, _INPUTS: message.inputs.values}
    duration_us = message.duration_micros or attributes.get("runtime", 0)
    duration_ps = attributes.get(DURATION_PS)
    if not isinstance(duration_ps, int):
        duration_ps = duration_us * _PS_PER_US if isinstance(duration_us, int) else 0
    return TraceNode(
        message.id,
        message.name,
        kind,
        tuple(dict.fromkeys(message.data_deps)),
        tuple(dict.fromkeys(message.ctrl_deps)),
        duration_ps or None,
        attributes,
    )


_INPUTS = "inputs"
"""What a metadata node has as inputs, among the attributes."""


def _groups_of_file(path: str, ranks: int) -> Groups:
    """The groups of a JSON file as ASTRA-sim reads it, {"1": [0, 1]}."""
    example = '{"1": [0, 1], "2": [2, 3]}'
    try:
        document = json_of(read_file(path, MOST_JSON_BYTES))
    except ValueError as error:
        raise refusal("chakra-C4", f"{path}: is no JSON: {error}", f"such as {example}") from None
    if not isinstance(document, dict):
        raise refusal("chakra-C4", f"{path}: is no object of process groups", f"such as {example}")
    return dict(_checked_groups(path, document.items(), ranks))


def _checked_groups(
    path: str, groups: Iterable[tuple[str, object]], ranks: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, members in groups:
        is_list = isinstance(members, list) and all(type(rank) is int for rank in members)
        listed = tuple(members) if isinstance(members, list) and is_list else ()
        if not listed or len(set(listed)) < len(listed):
            raise refusal(
                "chakra-C4",
                f"{path}: process group {name[:40]!r} is no list of different ranks",
                'such as {"1": [0, 1]}',
            )
        outside = next((rank for rank in listed if not 0 <= rank < ranks), None)
        if outside is not None:
            raise refusal(
                "chakra-C4",
                f"{path}: process group {name[:40]!r} has rank {outside}, the trace has {ranks} "
                "ranks",
                "give the groups of this trace",
            )
        yield name, listed


def _groups_of_metadata(ranks: Iterable[RankTrace]) -> Groups:
    """The groups that traces of PyTorch list in a node process_group:init; none otherwise.

    Its input is a text: [{"pg_name": "0", "ranks": [], "group_size": 2, …}]. No ranks are all.
    """
    traces = tuple(ranks)
    groups: dict[str, tuple[int, ...]] = {}
    for trace in traces:
        for node in trace.nodes:
            if node.kind is not NodeType.METADATA or "process_group:init" not in node.name:
                continue
            text = str(node.attributes.get(_INPUTS, ""))
            try:
                listed = json_of(text[text.index("[{") : text.rindex("}]") + 2])
            except ValueError:  # PyTorch cuts long texts off
                continue
            rows = (
                [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
            )
            found = {
                str(row.get("pg_name")): row.get("ranks") or list(range(len(traces)))
                for row in rows
            }
            groups.update(_checked_groups(trace.place(node), found.items(), len(traces)))
    return groups
