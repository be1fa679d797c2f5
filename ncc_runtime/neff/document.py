"""The program as the files of a `.neff`: `def.json`, one column file per engine, constants.

Decoding is declarative: msgspec reads `def.json` into the typed classes below and refuses any other
shape. `check` has the rules about how fields relate.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec
import numpy as np

from ncc_runtime.errors import NeffError
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import (
    ArrayInfo,
    AttributeValue,
    Block,
    Buffer,
    BufferId,
    BufferKind,
    Fusion,
    Origin,
    Program,
    Region,
    Semaphore,
    Sharding,
    Tensor,
    TensorId,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.table import COLUMNS, InstrTable

_FOLDER = "sg00"  # AWS's name of the first subgraph; there is one
DEFINITION = f"{_FOLDER}/def.json"

_FILE_ORDER = (
    "flops",
    "elements",
    "bytes_in",
    "bytes_out",
    "start",
    "tensors",
    "attribute",
    "placeholder",
    "wait_value",
    "origin",
    "opcode",
    "result_count",
    "wait_sem",
    "post_sem",
)
"""Columns of an engine file, little-endian; widest first, so that each is aligned."""

_STORED = {name: np.dtype(COLUMNS[name]).newbyteorder("<") for name in _FILE_ORDER}


@attrs.frozen
class Var:
    """A buffer, in AWS's words."""

    var_id: int
    name: str
    type: BufferKind
    size: int
    address: int
    file_name: str | None  # of a constant's bytes


@attrs.frozen
class TensorEntry:
    """A tensor: a typed view of a var."""

    name: str
    var_id: int
    dtype: DType
    shape: tuple[int, ...]
    offset: int


@attrs.frozen
class EngineFile:
    """How to read one engine's columns."""

    engine: Engine
    file_name: str
    instructions: int
    tensors: int
    opcodes: tuple[str, ...]


@attrs.frozen
class Definition:
    """All of `def.json`."""

    name: str
    replica_count: int
    num_partitions: int
    hbm_bytes: int
    var: tuple[Var, ...]
    tensors: tuple[TensorEntry, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    regions: tuple[Region, ...]
    attributes: tuple[Mapping[str, AttributeValue], ...]
    semaphores: tuple[Semaphore, ...]
    cc: tuple[Placeholder, ...]
    origins: tuple[Origin, ...]
    blocks: tuple[Block, ...]
    parameters: tuple[ArrayInfo, ...]
    results: tuple[ArrayInfo, ...]
    shardings: tuple[Sharding, ...]
    aliases: tuple[tuple[int, int], ...]
    fusions: tuple[Fusion, ...]
    engines: tuple[EngineFile, ...]


def files_of(program: Program) -> dict[str, bytes]:
    """The files by name, in the order in which they are stored."""
    constants = {
        _constant_file(buffer): program.constants[buffer] for buffer in sorted(program.constants)
    }
    columns = {
        _engine_file(engine): b"".join(
            getattr(table, name).astype(dtype).tobytes() for name, dtype in _STORED.items()
        )
        for engine, table in program.queues.items()
    }
    document = msgspec.json.encode(_definition(program), order="sorted")
    return {DEFINITION: document, **dict(sorted({**constants, **columns}.items()))}


def definition_fields(program: Program) -> dict[str, Any]:
    """What `def.json` says, as dictionaries, lists and scalars; without the names of files."""
    fields: dict[str, Any] = msgspec.to_builtins(_definition(program))
    del fields["engines"]
    for var in fields["var"]:
        del var["file_name"]
    return fields


def _constant_file(buffer: int) -> str:
    return f"{_FOLDER}/constant_{buffer}.bin"


def _engine_file(engine: Engine) -> str:
    return f"{_FOLDER}/{engine.value}.bin"


def _definition(program: Program) -> Definition:
    return Definition(
        name=program.name,
        replica_count=program.replica_count,
        num_partitions=program.num_partitions,
        hbm_bytes=program.hbm_bytes,
        var=tuple(
            Var(
                number,
                buffer.name,
                buffer.kind,
                buffer.size_bytes,
                buffer.address,
                _constant_file(number) if number in program.constants else None,
            )
            for number, buffer in enumerate(program.buffers)
        ),
        tensors=tuple(
            TensorEntry(tensor.name, tensor.buffer, tensor.dtype, tensor.shape, tensor.offset)
            for tensor in program.tensors
        ),
        inputs=program.inputs,
        outputs=program.outputs,
        regions=program.regions,
        attributes=program.attributes,
        semaphores=program.semaphores,
        cc=program.placeholders,
        origins=program.origins,
        blocks=program.blocks,
        parameters=program.parameters,
        results=program.results,
        shardings=program.shardings,
        aliases=program.aliases,
        fusions=program.fusions,
        engines=tuple(
            EngineFile(
                engine, _engine_file(engine), len(table), len(table.tensors), table.opcode_names
            )
            for engine, table in sorted(program.queues.items(), key=lambda item: item[0].value)
        ),
    )


def program_from(files: Mapping[str, bytes]) -> Program:
    """The program that the files spell; NeffError, without a path, if they spell none."""
    if DEFINITION not in files:
        raise NeffError(f"{DEFINITION} is missing")
    try:
        definition = msgspec.json.decode(files[DEFINITION], type=Definition)
        return _program(definition, files)
    except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors
        raise NeffError(f"{DEFINITION}: {error}") from error


def _program(definition: Definition, files: Mapping[str, bytes]) -> Program:
    for number, var in enumerate(definition.var):
        if var.var_id != number:
            raise NeffError(f"{DEFINITION}: var {number} has var_id {var.var_id}")
    return Program(
        name=definition.name,
        replica_count=definition.replica_count,
        num_partitions=definition.num_partitions,
        hbm_bytes=definition.hbm_bytes,
        buffers=tuple(Buffer(var.name, var.type, var.size, var.address) for var in definition.var),
        tensors=tuple(
            Tensor(view.name, BufferId(view.var_id), view.dtype, view.shape, view.offset)
            for view in definition.tensors
        ),
        inputs=tuple(map(TensorId, definition.inputs)),
        outputs=tuple(map(TensorId, definition.outputs)),
        constants={
            BufferId(var.var_id): _file(files, var.file_name)
            for var in definition.var
            if var.file_name is not None
        },
        regions=definition.regions,
        attributes=definition.attributes,
        semaphores=definition.semaphores,
        placeholders=definition.cc,
        queues={row.engine: _table(row, files) for row in definition.engines},
        origins=definition.origins,
        blocks=definition.blocks,
        parameters=definition.parameters,
        results=definition.results,
        shardings=definition.shardings,
        aliases=definition.aliases,
        fusions=definition.fusions,
    )


def _file(files: Mapping[str, bytes], name: str) -> bytes:
    if name not in files:
        raise NeffError(f"{DEFINITION} names {name!r}, which is missing")
    return files[name]


def _table(row: EngineFile, files: Mapping[str, bytes]) -> InstrTable:
    stored = _file(files, row.file_name)
    counts = {"tensors": row.tensors, "start": row.instructions + 1}
    lengths = [counts.get(name, row.instructions) for name in _STORED]
    sizes = [count * dtype.itemsize for count, dtype in zip(lengths, _STORED.values(), strict=True)]
    if min(lengths) < 0 or sum(sizes) != len(stored):
        raise NeffError(
            f"{row.file_name} has {len(stored)} bytes, {row.instructions} instructions over "
            f"{row.tensors} tensors take {sum(sizes)}"
        )
    columns: dict[str, np.ndarray] = {}
    at = 0
    for (name, dtype), count, size in zip(_STORED.items(), lengths, sizes, strict=True):
        column = np.frombuffer(stored, dtype, count, at).astype(COLUMNS[name])
        column.setflags(write=False)
        columns[name] = column
        at += size
    return InstrTable(opcode_names=row.opcodes, **columns)
