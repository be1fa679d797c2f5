"""The compiled program: buffers, tensors, queues and placeholders of one rank's stream.

Every rank runs the same program; what differs between ranks is data and, once placed, transfers.
"""

import enum
import math
import operator
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NewType

import attrs

from ncc_runtime.neff.isa import FUSION, Engine
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.table import NONE, Instr, InstrTable

Rank = NewType("Rank", int)
BufferId = NewType("BufferId", int)
TensorId = NewType("TensorId", int)
SemId = NewType("SemId", int)

ALIGNMENT = 64
"""Every buffer starts at a multiple of this many bytes (assumed: one DMA element line)."""

MAX_SEMAPHORES = 256
"""Semaphores of a core. Source: aws-neuron-driver, v2 and v3 headers."""

MAX_STREAMS = 4
"""Communication streams. Source: NEC_MAX_STREAM_N of the Neuron runtime's nec.h."""

AttributeValue = str | int | bool | tuple[int, ...]

_INT64_MAX = 2**63 - 1
_COUNT = attrs.validators.and_(attrs.validators.ge(0), attrs.validators.le(_INT64_MAX))
_POSITIVE = attrs.validators.and_(attrs.validators.ge(1), attrs.validators.le(_INT64_MAX))


class BufferKind(enum.Enum):
    """What a buffer is for; the value is the `var` type of AWS's def.json, but for the fourth."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "file"
    ELIDED = "elided"  # a constant whose value the model's text left out
    INTERNAL = "tmp-buf"


READ_ONLY = frozenset({BufferKind.INPUT, BufferKind.CONSTANT, BufferKind.ELIDED})
"""Buffers that instructions may not write."""


@attrs.frozen
class Buffer:
    """A range of one rank's HBM, [address, address + size_bytes)."""

    name: str
    kind: BufferKind
    size_bytes: int = attrs.field(validator=_COUNT)
    address: int = attrs.field(validator=_COUNT)

    @property
    def end(self) -> int:
        """First address behind it."""
        return self.address + self.size_bytes


class Typed:
    """What has a dtype and a shape, and what follows from these."""

    __slots__ = ()

    dtype: DType
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes it spans."""
        return self.elements * self.dtype.size_bytes

    @property
    def type_text(self) -> str:
        """Its type as HLO text writes it, such as `f32[16,4]`."""
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@attrs.frozen
class Tensor(Typed):
    """A typed, dense, row-major view of a buffer, `offset` bytes into it."""

    name: str
    buffer: BufferId
    dtype: DType
    shape: tuple[int, ...] = attrs.field(validator=attrs.validators.deep_iterable(_COUNT))
    offset: int = attrs.field(default=0, validator=_COUNT)


@attrs.frozen
class ValueType(Typed):
    """The type of a value that has no memory in HBM: one inside of a fusion or a region."""

    dtype: DType
    shape: tuple[int, ...] = attrs.field(
        default=(), validator=attrs.validators.deep_iterable(_COUNT)
    )


@attrs.frozen
class Semaphore:
    """A counter that only grows during one execution, incremented by exactly one queue.

    `owner` is an engine's name, or `stream N`: the CC-core queue that completes placeholders.
    """

    name: str
    owner: str


@attrs.frozen
class RegionInstr:
    """One scalar operation of a region; operands are value numbers, parameters first."""

    opcode: str
    operands: tuple[int, ...]
    dtype: DType
    attributes: Mapping[str, AttributeValue] = attrs.field(factory=dict)
    constant: str | None = None  # spelling of the value, for opcode "constant" only


@attrs.frozen
class Region:
    """A scalar computation that an instruction applies to elements (a reduction's combiner)."""

    name: str
    parameters: tuple[DType, ...]
    body: tuple[RegionInstr, ...]
    results: tuple[int, ...]  # value numbers

    def value_dtypes(self) -> tuple[DType, ...]:
        """The dtype of every value by its number: parameters, then what the body computes."""
        return (*self.parameters, *(row.dtype for row in self.body))

    def result_dtypes(self) -> tuple[DType, ...]:
        """The dtypes of its results."""
        dtypes = self.value_dtypes()
        return tuple(dtypes[value] for value in self.results)


CONSTANT = "constant"
"""The opcode of a row of a region or fusion that is a scalar written into it."""


@attrs.frozen
class FusedInstr:
    """One operation of a fusion; operands and results are value numbers of the fusion."""

    opcode: str  # of OPCODES, or CONSTANT
    results: tuple[int, ...]
    operands: tuple[int, ...] = ()
    attributes: Mapping[str, AttributeValue] = attrs.field(factory=dict)
    origin: int = NONE  # row of Program.origins
    constant: str | None = None  # spelling of the scalar, for opcode CONSTANT only


@attrs.frozen
class Fusion:
    """Operations on arrays that one instruction performs through SBUF, tile by tile.

    Only its parameters are read from HBM and only its results are written there.
    """

    name: str
    values: tuple[ValueType, ...]  # by number: parameters, then results of the body in order
    parameters: int = attrs.field(validator=_COUNT)  # how many of the values
    body: tuple[FusedInstr, ...]
    results: tuple[int, ...]  # values that the body computes, at least one

    def types(self, values: Iterable[int]) -> tuple[ValueType, ...]:
        """The types of values."""
        return tuple(self.values[value] for value in values)


class BlockKind(enum.Enum):
    """The two forms of structured control flow."""

    LOOP = "loop"
    CASE = "case"


@attrs.frozen
class Block:
    """Rows that run more than once, or perhaps not at all; decided by each rank's predicate.

    The predicate of a loop is pred[]: go on. That of a case is pred[] or s32[]: the branch index,
    where true is 0, false is 1, and an index outside 0..of-1 means of-1 (XLA, conditional).
    When a queue comes to `test` or `case`, the predicate has been written: Sync's last increment
    of its semaphore before its own row of the block comes after the write, and no queue writes the
    predicate again before every queue has passed.
    """

    kind: BlockKind
    name: str
    predicate: TensorId
    index: int = 0  # of a case: which branch it is
    of: int = 1  # of a case: how many branches there are
    trip_count: int | None = None  # of a loop, where the compiler could tell


@attrs.frozen
class Origin:
    """The origin of an instruction: a graph node and, where known, where the user's code has it."""

    node: str
    place: str = ""  # `model.py:12`
    op_name: str = ""  # XLA's path of named scopes: `jit(step)/layer_0/mlp/dot_general`


_MOST_OF_A_PLACE = 40  # characters


def short_place(place: str) -> str:
    """A line without the working directory, without the folder of packages, and without more
    folders where it is long.
    """
    place = place.removeprefix(f"{Path.cwd()}/")
    _, _, short = place.replace("dist-packages/", "site-packages/").rpartition("site-packages/")
    if len(short) <= _MOST_OF_A_PLACE:
        return short
    return "…/" + "/".join(short.rsplit("/", 2)[-2:]) if short.count("/") > 1 else short


@attrs.frozen
class Sharding:
    """How an array of the whole model lies on the ranks: cut along dimensions into equal tiles."""

    tiles: tuple[int, ...]  # by dimension, how many
    parts: tuple[int, ...]  # by rank, the tile that it has, counted in row-major order

    def cuts(self, whole: tuple[int, ...], tile: tuple[int, ...]) -> bool:
        """Whether its tiles of a whole array have this shape, the last ones padded to it."""
        if not len(whole) == len(tile) == len(self.tiles):
            return False
        sizes = zip(whole, self.tiles, tile, strict=True)
        return all(-(-size // count) == part for size, count, part in sizes)


@attrs.frozen
class ArrayInfo:
    """What the model calls an input or output, and how the whole array lies on the ranks.

    With a sharding and no shape the whole has `tiles` times the sizes of a rank's array. With a
    shape and no sharding every rank has the whole. With neither nothing is known of the whole.
    """

    name: str = ""
    sharding: int | None = None  # of Program.shardings
    shape: tuple[int, ...] | None = None  # of the whole; the last tiles may be padded


@attrs.frozen
class Program:
    """The content of a `.neff`. Ids are positions in these tuples."""

    name: str
    replica_count: int = attrs.field(validator=_POSITIVE)
    num_partitions: int = attrs.field(validator=_POSITIVE)
    hbm_bytes: int = attrs.field(validator=_COUNT)  # size of one rank's address range
    buffers: tuple[Buffer, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]
    constants: Mapping[BufferId, bytes]
    regions: tuple[Region, ...]
    attributes: tuple[Mapping[str, AttributeValue], ...]
    semaphores: tuple[Semaphore, ...]
    placeholders: tuple[Placeholder, ...]
    queues: Mapping[Engine, InstrTable]
    origins: tuple[Origin, ...]
    blocks: tuple[Block, ...] = ()
    parameters: tuple[ArrayInfo, ...] = ()  # one for each of inputs, or none
    results: tuple[ArrayInfo, ...] = ()  # one for each of outputs, or none
    shardings: tuple[Sharding, ...] = ()
    aliases: tuple[
        tuple[int, int], ...
    ] = ()  # output, and the input that takes it at the next step
    fusions: tuple[Fusion, ...] = ()

    def parameter(self, number: int) -> ArrayInfo:
        """The name and sharding of an input, as far as they are known."""
        return self.parameters[number] if self.parameters else ArrayInfo()

    def result(self, number: int) -> ArrayInfo:
        """The name and sharding of an output, as far as they are known."""
        return self.results[number] if self.results else ArrayInfo()

    def whole_shape(self, info: ArrayInfo, tensor: int) -> tuple[int, ...] | None:
        """The shape of the whole array that a tensor is a rank's part of; None if not known."""
        if info.shape is not None or info.sharding is None:
            return info.shape
        tiles = self.shardings[info.sharding].tiles
        return tuple(map(operator.mul, tiles, self.tensors[tensor].shape))

    def donated(self) -> Mapping[BufferId, BufferId]:
        """By buffer of an output that lies in an input's memory: that input's buffer.

        Such an output holds what its input held until something writes it. Only outputs that
        `aliases` pair with their inputs may lie so (neff-M2).
        """
        found = {}
        for output, number in self.aliases:
            ends = self.tensors[self.outputs[output]], self.tensors[self.inputs[number]]
            one, other = (self.buffers[tensor.buffer] for tensor in ends)
            is_whole = (one.address, one.size_bytes) == (other.address, other.size_bytes)
            if is_whole and one.size_bytes and one.kind is BufferKind.OUTPUT:
                found[ends[0].buffer] = ends[1].buffer
        return found

    def elided(self) -> tuple[Origin, ...]:
        """The constants without value, in order, and where they come from, if that is known."""
        places = {origin.node: origin for origin in self.origins}
        return tuple(
            places.get(buffer.name, Origin(buffer.name))
            for buffer in self.buffers
            if buffer.kind is BufferKind.ELIDED
        )

    @property
    def ranks(self) -> int:
        """Number of ranks: flattened (replica, partition) ids."""
        return self.replica_count * self.num_partitions

    def fusion_of(self, instr: Instr) -> Fusion | None:
        """The fusion that an instruction performs; None for others, and where it names none."""
        if instr.opcode != FUSION or instr.attribute == NONE:
            return None
        number = self.attributes[instr.attribute].get("fusion")
        if not isinstance(number, int) or not 0 <= number < len(self.fusions):
            return None
        return self.fusions[number]

    def opcodes(self) -> frozenset[str]:
        """All that its instructions do, also the rows of fusions."""
        names = {name for table in self.queues.values() for name in table.opcode_names}
        return frozenset(names.union(row.opcode for fusion in self.fusions for row in fusion.body))

    def row_bytes(self, placeholder: Placeholder) -> int:
        """Of a collective of variable size, bytes of one row of dimension 0."""
        operand = self.tensors[placeholder.operands[0]]
        return math.prod(operand.shape[1:]) * operand.dtype.size_bytes

    def address(self, tensor: int) -> int:
        """The address of the first byte of a tensor, on every rank."""
        view = self.tensors[tensor]
        return self.buffers[view.buffer].address + view.offset
