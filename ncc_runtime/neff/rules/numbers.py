"""First stage: every id exists, so that the other rules may follow it."""

import math
import operator
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ncc_runtime.arrays import distinct
from ncc_runtime.neff.isa import ENGINES, OPCODES
from ncc_runtime.neff.program import ArrayInfo, Program
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.table import COLUMNS, NONE, InstrTable

_MOST_RANKS = 2**31 - 1
_INT64_MAX = 2**63 - 1
_COSTS = ("flops", "elements", "bytes_in", "bytes_out")


@rule("neff-N1")
def _ranks_fit(program: Program) -> Iterator[str]:
    if program.ranks > _MOST_RANKS:
        yield f"{program.ranks} ranks, at most {_MOST_RANKS} can be numbered"


@rule("neff-N2")
def _ids_exist(program: Program) -> Iterator[str]:
    buffers, tensors = len(program.buffers), len(program.tensors)
    for number, tensor in enumerate(program.tensors):
        yield from _outside(f"tensor t{number}: buffer", (tensor.buffer,), buffers)
    yield from _outside("constants: buffer", program.constants, buffers)
    yield from _outside("inputs: tensor", program.inputs, tensors)
    yield from _outside("outputs: tensor", program.outputs, tensors)
    for number, placeholder in enumerate(program.placeholders):
        ids = (*placeholder.operands, *placeholder.results, *placeholder.counts)
        yield from _outside(f"placeholder p{number}: tensor", ids, tensors)
    for number, block in enumerate(program.blocks):
        yield from _outside(f"block k{number}: tensor", (block.predicate,), tensors)


def _outside(what: str, ids: Iterable[int], count: int) -> Iterator[str]:
    return (f"{what} {number}, there are {count}" for number in ids if not 0 <= number < count)


@rule("neff-N3")
def _queues_have_columns(program: Program) -> Iterator[str]:
    for engine in ENGINES:
        if engine not in program.queues:
            yield f"queue {engine.value} is missing"
        elif breach := _column_breach(program.queues[engine]):
            yield f"queue {engine.value}: {breach}"


def _column_breach(table: InstrTable) -> str | None:
    """Why the columns are no table: wrong types, lengths or row starts."""
    length = len(table.opcode)
    for name, dtype in COLUMNS.items():
        column = getattr(table, name)
        expected = {"start": length + 1, "tensors": len(table.tensors)}.get(name, length)
        if column.dtype != dtype or column.shape != (expected,):
            actual = f"{column.dtype}{list(column.shape)}"
            return f"column {name} is {actual}, not {np.dtype(dtype)}[{expected}]"
    counts = np.diff(table.start.astype(np.int64))
    if table.start[0] != 0 or table.start[-1] != len(table.tensors) or (counts < 0).any():
        return f"column start does not ascend from 0 to {len(table.tensors)}"
    if (table.result_count > counts).any():
        row = int(np.argmax(table.result_count > counts))
        return f"pc {row}: {table.result_count[row]} results of {counts[row]} tensors"
    if length and table.opcode.max() >= len(table.opcode_names):
        return f"opcode {table.opcode.max()}, there are {len(table.opcode_names)} names"
    return None


@rule("neff-N4")
def _opcodes_are_known(program: Program) -> Iterator[str]:
    for engine, table in _tables(program):
        names = table.opcode_names
        for name in names:
            if name not in OPCODES:
                yield f"queue {engine}: opcode {name!r} is not in the instruction set"
        used = {names[code] for code in distinct(table.opcode).tolist()}
        if names != tuple(sorted(used)):
            yield f"queue {engine}: opcode names are not those used, sorted: {', '.join(names)}"


def _tables(program: Program) -> Iterator[tuple[str, InstrTable]]:
    """Queues whose columns can be followed; N3 complains of the others."""
    for engine in ENGINES:
        if engine in program.queues and _column_breach(program.queues[engine]) is None:
            yield engine.value, program.queues[engine]


@rule("neff-N5")
def _row_ids_exist(program: Program) -> Iterator[str]:
    counts = {
        "attribute": len(program.attributes),
        "placeholder": len(program.placeholders),
        "wait_sem": len(program.semaphores),
        "post_sem": len(program.semaphores),
        "origin": len(program.origins),
    }
    for engine, table in _tables(program):
        rows = np.repeat(np.arange(len(table)), np.diff(table.start))
        wrong = (table.tensors < 0) | (table.tensors >= len(program.tensors))
        for row, tensor in zip(rows[wrong].tolist(), table.tensors[wrong].tolist(), strict=True):
            yield f"queue {engine}, pc {row}: tensor {tensor}, there are {len(program.tensors)}"
        for name, count in counts.items():
            column = getattr(table, name)
            for row in np.flatnonzero((column < NONE) | (column >= count)).tolist():
                yield f"queue {engine}, pc {row}: {name} {column[row]}, there are {count}"


@rule("neff-N6")
def _amounts_make_sense(program: Program) -> Iterator[str]:
    for engine, table in _tables(program):
        for name in _COSTS:
            column = getattr(table, name)
            for row in np.flatnonzero(column < 0).tolist():
                yield f"queue {engine}, pc {row}: {name} is {column[row]}, must be >= 0"
        # their sum is what the clock takes, in the same 63 bits
        are_too_many = table.bytes_in > _INT64_MAX - np.maximum(table.bytes_out, 0)
        for row in np.flatnonzero(are_too_many).tolist():
            moved = int(table.bytes_in[row]) + int(table.bytes_out[row])
            yield f"queue {engine}, pc {row}: moves {moved} bytes, at most {_INT64_MAX}"
        waits = table.wait_sem != NONE
        for row in np.flatnonzero(waits & (table.wait_value < 1)).tolist():
            yield f"queue {engine}, pc {row}: waits for {table.wait_value[row]}, must be >= 1"
        for row in np.flatnonzero(~waits & (table.wait_value != 0)).tolist():
            yield f"queue {engine}, pc {row}: wait_value {table.wait_value[row]}, no semaphore"


@rule("neff-N8")
def _inputs_and_outputs_are_described(program: Program) -> Iterator[str]:
    for number, sharding in enumerate(program.shardings):
        count = math.prod(sharding.tiles)
        if any(tiles < 1 for tiles in sharding.tiles) or count < 2:
            yield f"sharding s{number}: tiles {list(sharding.tiles)} cut nothing"
        elif len(sharding.parts) != program.ranks:
            yield f"sharding s{number}: {len(sharding.parts)} parts for {program.ranks} ranks"
        elif len(set(sharding.parts)) < count:
            yield f"sharding s{number}: no rank has some of {count} tiles"
        yield from _outside(f"sharding s{number}: tile", sharding.parts, count)
    yield from _wrong_infos(program, "parameter", program.parameters, "input", program.inputs)
    yield from _wrong_infos(program, "result", program.results, "output", program.outputs)


def _wrong_infos(
    program: Program, word: str, infos: Sequence[ArrayInfo], end: str, tensors: Sequence[int]
) -> Iterator[str]:
    """What is wrong with the descriptions of the inputs or of the outputs."""
    if len(infos) not in (0, len(tensors)):
        yield f"{len(infos)} {word}s for {len(tensors)} {end}s"
        return
    if infos and set(infos) == {ArrayInfo()}:
        yield f"nothing is known of any {word}, yet they are listed"
    for number, (info, tensor) in enumerate(zip(infos, tensors, strict=bool(infos))):
        if not 0 <= tensor < len(program.tensors):
            continue
        shape = program.tensors[tensor].shape
        if info.sharding is None:
            if info.shape not in (None, shape):
                yield f"{word} {number}: shape {list(info.shape)}, a rank has {list(shape)}"
            continue
        yield from _outside(f"{word} {number}: sharding", (info.sharding,), len(program.shardings))
        if not 0 <= info.sharding < len(program.shardings):
            continue
        tiles = program.shardings[info.sharding].tiles
        if len(tiles) != len(shape):
            yield f"{word} {number}: tiles {list(tiles)} of an array of shape {list(shape)}"
        elif info.shape is not None and (
            not program.shardings[info.sharding].cuts(info.shape, shape)
            or info.shape == tuple(map(operator.mul, tiles, shape))
        ):
            yield (
                f"{word} {number}: shape {list(info.shape)} is not what {list(tiles)} tiles of "
                f"shape {list(shape)} pad"
            )


@rule("neff-N9")
def _aliases_pair_equal_arrays(program: Program) -> Iterator[str]:
    outputs = [output for output, _ in program.aliases]
    inputs = [number for _, number in program.aliases]
    yield from _outside("alias: output", outputs, len(program.outputs))
    yield from _outside("alias: input", inputs, len(program.inputs))
    for word, numbers in (("output", outputs), ("input", inputs)):
        for number in sorted({number for number in numbers if numbers.count(number) > 1}):
            yield f"alias: {word} {number} is paired twice"
    for output, number in program.aliases:
        if not (0 <= output < len(program.outputs) and 0 <= number < len(program.inputs)):
            continue
        ends = program.outputs[output], program.inputs[number]
        if all(0 <= tensor < len(program.tensors) for tensor in ends):
            one, other = (program.tensors[tensor].type_text for tensor in ends)
            if one != other:
                yield f"alias: output {output} is {one}, input {number} is {other}"


RULES = (
    _ranks_fit,
    _ids_exist,
    _queues_have_columns,
    _opcodes_are_known,
    _row_ids_exist,
    _amounts_make_sense,
    _inputs_and_outputs_are_described,
    _aliases_pair_equal_arrays,
)
