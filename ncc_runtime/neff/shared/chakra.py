"""Chakra execution traces: MLCommons' schema, and what both packages agree on beyond it.

A trace is a file for each rank, NAME.<rank>.et: messages of protocol buffers, each behind its
length as a varint; first a GlobalMetadata, then a Node for each operation. Process groups stand in
a JSON file beside them, as ASTRA-sim reads them: {"1": [0, 1, 2, 3]}.

Messages, fields and their numbers are those of et_def.proto in the package mlc-chakra 1.0.0 of
PyPI (Apache-2.0), as far as they are read or written here; protocol buffers skip the others. The
descriptor is made from a table, since generated code ties its user to versions of protobuf.
"""

import enum
import functools
from collections.abc import Iterable, Iterator
from typing import Any

SUFFIX = ".et"

VERSION = "1.0.0"
"""Of what is written: the schema's in mlc-chakra 1.0.0."""

MOST_NODES = 1_000_000
"""Nodes of one rank that are written or read."""


class NodeType(enum.IntEnum):
    """What a node is."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CommType(enum.IntEnum):
    """Which collective a node is, its attribute `comm_type`."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


# Attributes that only we write and read; others ignore what they do not know.
ELEMENTS = "ncc_elements"  # of num_ops, what is no flop of a matrix product
WRITTEN = "ncc_bytes_written"  # of tensor_size
ENGINE = "ncc_engine"  # whose queue an instruction stands in, "Tensor"
DURATION_PS = "ncc_duration_ps"  # duration_micros to the picosecond
DTYPE = "ncc_dtype"  # of a collective, or what products multiply: "bf16"
REDUCTION = "ncc_reduction"  # of a collective that reduces: "add"
ROOT = "ncc_root"  # of a rooted collective: a place in its group
RANKS = "ranks"  # of GlobalMetadata: how many files a trace has
COLLECTIVE = "ncc_collective"  # sends and receives that are one collective have the same

_SCALARS = {
    "double": 3,
    "float": 5,
    "int32": 7,
    "int64": 9,
    "uint32": 11,
    "uint64": 13,
    "sint32": 15,
    "sint64": 17,
    "fixed32": 19,
    "fixed64": 21,
    "sfixed32": 23,
    "sfixed64": 25,
    "bool": 27,
    "string": 29,
}
"""Numbers of the fields `<type>_val` of an attribute, of which it has one."""

_MESSAGES = {
    "BoolList": {"values": ("repeated bool", 1)},
    "AttributeProto": {
        "name": ("string", 1),
        **{f"{kind}_val": (kind, number) for kind, number in _SCALARS.items()},
        "bool_list": ("BoolList", 28),
    },
    "GlobalMetadata": {"version": ("string", 1), "attr": ("repeated AttributeProto", 2)},
    "IOInfo": {"values": ("string", 1), "shapes": ("string", 2), "types": ("string", 3)},
    "Node": {
        "id": ("uint64", 1),
        "name": ("string", 2),
        "type": ("int32", 3),  # an enumeration in the schema, with the same bytes
        "ctrl_deps": ("repeated uint64", 4),
        "data_deps": ("repeated uint64", 5),
        "start_time_micros": ("uint64", 6),
        "duration_micros": ("uint64", 7),
        "inputs": ("IOInfo", 8),
        "attr": ("repeated AttributeProto", 10),
    },
}
_PACKAGE = "ChakraProtoMsg"
_VALUE = "value"  # the oneof of an attribute


@functools.cache
def message_class(name: str) -> Any:
    """The class of a message of the schema: GlobalMetadata, Node or AttributeProto."""
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@functools.cache
def _pool() -> Any:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    file = FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        if message == "AttributeProto":
            described.oneof_decl.add(name=_VALUE)
        for field, (kind, number) in fields.items():
            *repeated, kind = kind.split()
            row = described.field.add(name=field, number=number)
            row.label = (
                FieldDescriptorProto.LABEL_REPEATED
                if repeated
                else FieldDescriptorProto.LABEL_OPTIONAL
            )
            if kind in _MESSAGES:
                row.type, row.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                row.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
            if message == "AttributeProto" and field != "name":
                row.oneof_index = 0
    pool = DescriptorPool()  # of our own: the default one may hold the schema already
    pool.Add(file)
    return pool


def with_length(message: bytes) -> bytes:
    """A message behind its length."""
    left, octets = len(message), bytearray()
    while left >= 0x80:
        octets.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*octets, left)) + message


def messages_in(data: bytes) -> Iterator[bytes]:
    """The messages of a file, one after another; ValueError where it ends inside of one."""
    at = 0
    while at < len(data):
        length, shift, first = 0, 0, at
        while True:
            if at == len(data) or shift > 63:
                raise ValueError(f"byte {first} is not the length of a message")
            octet = data[at]
            at += 1
            length |= (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80:
                break
        if length > len(data) - at:
            raise ValueError(
                f"the message at byte {first} has {length} bytes, {len(data) - at} are left"
            )
        yield data[at : at + length]
        at += length


def attribute(name: str, kind: str, value: object) -> Any:
    """An attribute of a node whose value is of a kind, such as int64."""
    return message_class("AttributeProto")(name=name, **{f"{kind}_val": value})


def attributes_of(rows: Iterable[Any]) -> dict[str, Any]:
    """The values of attributes by name; a list of booleans as a tuple, other lists left out."""
    values: dict[str, Any] = {}
    for row in rows:
        kind = row.WhichOneof(_VALUE)
        if kind == "bool_list":
            values[row.name] = tuple(row.bool_list.values)
        elif kind is not None:
            values[row.name] = getattr(row, kind)
    return values
