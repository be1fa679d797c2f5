"""Chakra's messages by hand, from the wire format of protocol buffers and numbers of fields.

It shares nothing with the code that is tested: neither the table of its schema nor the library.
Numbers are those of MLCommons' et_def.proto (protobuf.dev, Encoding, for the bytes).
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = range(1, 8)
ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, BROADCAST = range(6)
ALL_TO_ALL, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, BARRIER = range(6, 10)

_INT32, _INT64, _UINT64, _BOOL, _BOOLS, _STRING = 7, 9, 13, 27, 28, 29
_KIND_OF = {"comm_src": _INT32, "comm_dst": _INT32, "comm_tag": _INT32, "tensor_size": _UINT64}


@attrs.frozen
class Node:
    """A node as tests write and read it."""

    id: int
    name: str = "node"
    kind: int = COMP
    data: tuple[int, ...] = ()
    control: tuple[int, ...] = ()
    start_us: int = 0
    us: int = 0
    attributes: Mapping[str, Any] = attrs.field(factory=dict)
    inputs: str = ""


def comp(number: int, *data: int, us: int = 0, **attributes: Any) -> Node:
    """An instruction."""
    return Node(number, f"comp{number}", COMP, data, us=us, attributes=_on_device(attributes))


def coll(number: int, op: int, size: int, *data: int, **attributes: Any) -> Node:
    """A collective."""
    facts = {"comm_type": op, "comm_size": size, **attributes}
    return Node(number, f"coll{number}", COLL, data, attributes=_on_device(facts))


def send(number: int, to: int, size: int, *data: int, **attributes: Any) -> Node:
    """A message that goes."""
    facts = {"comm_dst": to, "comm_size": size, **attributes}
    return Node(number, f"send{number}", SEND, data, attributes=_on_device(facts))


def recv(number: int, source: int, size: int, *data: int, **attributes: Any) -> Node:
    """A message that comes."""
    facts = {"comm_src": source, "comm_size": size, **attributes}
    return Node(number, f"recv{number}", RECV, data, attributes=_on_device(facts))


def _on_device(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"is_cpu_op": False, **attributes}


# ---- writing


def varint(number: int) -> bytes:
    """An unsigned number, seven bits a byte."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*octets, number))


def field(number: int, value: int | bytes | str) -> bytes:
    """A field: a varint, or bytes behind their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (2**64 - 1))
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def _attribute(name: str, value: Any) -> bytes:
    if isinstance(value, tuple):
        row = field(_BOOLS, b"".join(field(1, int(one)) for one in value))
    elif isinstance(value, bool):
        row = field(_BOOL, int(value))
    elif isinstance(value, str):
        row = field(_STRING, value)
    elif isinstance(value, float):
        row = varint(3 << 3 | 1) + struct.pack("<d", value)
    else:
        row = field(_KIND_OF.get(name, _INT64), value)
    return field(10, field(1, name) + row)


def encoded(node: Node) -> bytes:
    """A node behind its length."""
    parts = [field(1, node.id), field(2, node.name), field(3, node.kind)]
    parts += [field(4, dep) for dep in node.control]
    parts += [field(5, dep) for dep in node.data]
    parts += [field(6, node.start_us), field(7, node.us)]
    if node.inputs:
        parts.append(field(8, field(1, node.inputs)))
    parts += [_attribute(name, value) for name, value in node.attributes.items()]
    return _with_length(b"".join(parts))


def _with_length(message: bytes) -> bytes:
    return varint(len(message)) + message


def file_of(nodes: Iterable[Node], version: str = "0.0.4") -> bytes:
    """The bytes of a rank's file."""
    return _with_length(field(1, version)) + b"".join(map(encoded, nodes))


def write(
    folder: Path,
    ranks: Sequence[Sequence[Node]],
    name: str = "trace",
    groups: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """Write a trace, and return its folder."""
    folder.mkdir(exist_ok=True)
    for rank, nodes in enumerate(ranks):
        (folder / f"{name}.{rank}.et").write_bytes(file_of(nodes))
    if groups is not None:
        (folder / f"{name}.comm_groups.json").write_text(json.dumps(groups))
    return str(folder)


# ---- reading


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        octet = data[at]
        at, number, shift = at + 1, number | (octet & 0x7F) << shift, shift + 7
        if octet < 0x80:
            return number, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of the fields of a message."""
    at = 0
    while at < len(data):
        tag, at = _varint_at(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value: int | bytes
            value, at = _varint_at(data, at)
        else:
            assert wire == 2, wire
            length, at = _varint_at(data, at)
            value, at = data[at : at + length], at + length
        yield number, value


def decoded(data: bytes) -> Node:
    """A node without its length; numbers may be packed."""
    node: dict[str, Any] = {"id": 0, "data": [], "control": [], "attributes": {}}
    names = {6: "start_us", 7: "us"}
    for number, value in fields(data):
        if number in (4, 5):
            listed = [value] if isinstance(value, int) else []
            at = 0
            while isinstance(value, bytes) and at < len(value):
                dep, at = _varint_at(value, at)
                listed.append(dep)
            node["control" if number == 4 else "data"] += listed
        elif number == 10:
            assert isinstance(value, bytes)
            (_, name), (kind, found) = fields(value)
            assert isinstance(name, bytes)
            text = found.decode() if isinstance(found, bytes) else found
            node["attributes"][name.decode()] = bool(found) if kind == _BOOL else text
        elif number == 2:
            assert isinstance(value, bytes)
            node["name"] = value.decode()
        else:
            node[names.get(number, "id" if number == 1 else "kind")] = value
    node["data"], node["control"] = tuple(node["data"]), tuple(node["control"])
    return Node(**node)


def read(path: Path) -> tuple[str, list[Node]]:
    """The version and the nodes of a file."""
    data, at, messages = path.read_bytes(), 0, list[bytes]()
    while at < len(data):
        length, at = _varint_at(data, at)
        messages.append(data[at : at + length])
        at += length
    head = dict(fields(messages[0]))
    version = head.get(1, b"")
    assert isinstance(version, bytes)
    return version.decode(), [decoded(message) for message in messages[1:]]


def read_all(folder: Path, name: str = "trace") -> list[list[Node]]:
    """The nodes of every rank."""
    ranks = len(list(folder.glob(f"{name}.*.et")))
    return [read(folder / f"{name}.{rank}.et")[1] for rank in range(ranks)]
