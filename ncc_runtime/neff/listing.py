"""The listing of a program: what `nccc list` prints and `listing_parse` reads back.

A row is words between blanks, in columns that are aligned. Ids say what they number: b buffers,
t tensors, s shardings, r regions, f fusions, v values of a region or fusion, p placeholders,
k blocks, # attributes, @ origins. What follows `;` is derived and not read, and neither is the
indentation inside blocks. Scalar constants have one spelling, which both sides share.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ncc_runtime.neff.document import definition_fields
from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, PTC2, TEST, Engine
from ncc_runtime.neff.listing_parse import parse_program
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import (
    ArrayInfo,
    AttributeValue,
    Block,
    BlockKind,
    FusedInstr,
    Fusion,
    Program,
    Tensor,
    ValueType,
)
from ncc_runtime.neff.shared.groups import ExplicitGroups
from ncc_runtime.neff.structure import CONTROL, acknowledgements, names_block, structure_of
from ncc_runtime.neff.table import NONE, Instr

Cells = Sequence[str]
WIDEST = 40
"""Cells longer than this do not widen their column."""


def aligned(rows: Iterable[Cells]) -> list[str]:
    """Rows as indented lines whose cells stand below one another; the last cell is not padded."""
    table = [tuple(row) for row in rows]
    columns = max(map(len, table), default=0)
    widths = [
        max((len(row[k]) for row in table if k < len(row) - 1 and len(row[k]) <= WIDEST), default=0)
        for k in range(columns)
    ]
    cells = (
        [cell.ljust(width) for cell, width in zip(row, widths, strict=False) if width or cell]
        for row in table
    )
    return ["  " + "  ".join(row).rstrip() for row in cells]


__all__ = ["parse_program", "print_program"]

_BARE = re.compile(r"[A-Za-z_][\w.:/-]*", re.ASCII)
_BYTES_PER_ROW = 32
_COSTS = {"flops": "flops", "elements": "elements", "bytes_in": "read", "bytes_out": "written"}


def print_program(program: Program, constants: bool = True) -> str:
    """The program as text that parses back to it, unless the bytes of constants are left out."""
    head = (
        f"program {_name(program.name)} replicas {program.replica_count} "
        f"partitions {program.num_partitions} memory {program.hbm_bytes}"
    )
    sections = [
        ("buffers", _buffers(program)),
        ("tensors", _tensors(program)),
        ("inputs", _id_row(program.inputs)),
        (
            "shardings",
            (
                [f"s{n}", _value(row.tiles), f"parts {_value(row.parts)}"]
                for n, row in enumerate(program.shardings)
            ),
        ),
        ("parameters", map(_array_info, itertools.count(), program.parameters)),
        ("outputs", _id_row(program.outputs)),
        ("results", map(_array_info, itertools.count(), program.results)),
        ("aliases", ([f"out{end}", f"arg{start}"] for end, start in program.aliases)),
        ("constants", _constants(program, listed=constants)),
        ("semaphores", _semaphores(program)),
        ("attributes", ([f"#{n}", _pairs(row)] for n, row in enumerate(program.attributes))),
        ("regions", _regions(program)),
        ("fusions", _fusions(program)),
        ("placeholders", (_placeholder(n, row) for n, row in enumerate(program.placeholders))),
        (
            "origins",
            (
                [
                    *(f"@{n}", _name(origin.node), _name(origin.place)),
                    *([_name(origin.op_name)] if origin.op_name else []),
                ]
                for n, origin in enumerate(program.origins)
            ),
        ),
        ("blocks", (_block(n, row) for n, row in enumerate(program.blocks))),
        *((f"queue {engine.value}", queue_cells(program, engine)) for engine in ENGINES),
    ]
    lines = [head]
    for title, rows in sections:
        if body := aligned(rows):
            lines += ["", title, *body]
    return "\n".join(lines) + "\n"


def _array_info(number: int, info: ArrayInfo) -> list[str]:
    sharding = "" if info.sharding is None else f"s{info.sharding}"
    whole = "" if info.shape is None else f"of {_value(info.shape)}"
    return [f"{number}", _name(info.name), sharding, whole]


def _name(text: str) -> str:
    """A name as it stands, or in quotes where it would not be one word."""
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _ids(prefix: str, numbers: Iterable[int]) -> str:
    return ", ".join(f"{prefix}{number}" for number in numbers)


def _id_row(tensors: Sequence[int]) -> Iterator[Cells]:
    if tensors:
        yield [_ids("t", tensors)]


def _buffers(program: Program) -> Iterator[Cells]:
    for number, buffer in enumerate(program.buffers):
        address = f"{buffer.address:#010x}"
        yield [f"b{number}", buffer.kind.value, address, str(buffer.size_bytes), _name(buffer.name)]


def _tensors(program: Program) -> Iterator[Cells]:
    for number, tensor in enumerate(program.tensors):
        place = f"b{tensor.buffer}+{tensor.offset}"
        row = [f"t{number}", tensor.type_text, place, _name(tensor.name)]
        if 0 <= tensor.buffer < len(program.buffers):
            start = program.address(number)
            row.append(f"; {start:#010x}..{start + tensor.size_bytes:#010x}")
        yield row


def _constants(program: Program, *, listed: bool) -> Iterator[Cells]:
    for buffer in sorted(program.constants):
        data = program.constants[buffer]
        if not listed:
            yield [f"; b{buffer}", f"{len(data)} bytes, not listed"]
            continue
        for at in range(0, max(1, len(data)), _BYTES_PER_ROW):
            yield [f"b{buffer}+{at}", data[at : at + _BYTES_PER_ROW].hex()]


def _semaphores(program: Program) -> Iterator[Cells]:
    posts: Counter[int] = Counter()
    for table in program.queues.values():
        posts.update(table.post_sem.tolist())
    streams = Counter(f"stream {placeholder.stream}" for placeholder in program.placeholders)
    structure = structure_of(program) if program.blocks else None
    if structure is not None:
        read = acknowledgements(program, structure)
        streams.update(f"stream {stream}" for _, stream in read)
    for number, semaphore in enumerate(program.semaphores):
        final = posts[number] + streams[semaphore.owner]
        yield [_name(semaphore.name), _name(semaphore.owner), f"; ends at {final}"]


def _value(value: AttributeValue) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return json.dumps(value)


def _pairs(attributes: Mapping[str, AttributeValue]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in sorted(attributes.items()))


def _regions(program: Program) -> Iterator[Cells]:
    for number, region in enumerate(program.regions):
        parameters = ", ".join(dtype.value for dtype in region.parameters)
        results = f"gives {_ids('v', region.results)}"
        yield [f"r{number}", _name(region.name), parameters, results]
        for value, row in enumerate(region.body, start=len(region.parameters)):
            details = (_ids("v", row.operands), _constant(row.constant), _pairs(row.attributes))
            yield [f"  v{value}", row.opcode, row.dtype.value, " ".join(filter(None, details))]


def _fusions(program: Program) -> Iterator[Cells]:
    for number, fusion in enumerate(program.fusions):
        parameters = _types(fusion.values[: fusion.parameters])
        yield [f"f{number}", _name(fusion.name), parameters, f"gives {_ids('v', fusion.results)}"]
        for row in fusion.body:
            details = (_ids("v", row.operands), _constant(row.constant))
            yield [
                f"  {_ids('v', row.results)}",
                row.opcode,
                _types(_known_types(fusion, row)),
                " ".join(filter(None, details)),
                f"@{row.origin}" if row.origin != NONE else "",
                _pairs(row.attributes),
                _noted(_origin_words(program, row.origin)),
            ]


def _types(kinds: Iterable[ValueType]) -> str:
    return ", ".join(kind.type_text for kind in kinds)


def _known_types(fusion: Fusion, row: FusedInstr) -> Iterator[ValueType]:
    """The types of a row's results, also of a program that no rule has seen."""
    return (fusion.values[value] for value in row.results if 0 <= value < len(fusion.values))


def _constant(spelling: str | None) -> str:
    return json.dumps(spelling) if spelling is not None else ""


def fused_cells(program: Program, instr: Instr) -> Iterator[Cells]:
    """The rows of an instruction's fusion, if it has one, in the columns of `queue_cells`.

    Values that are operands or results of the instruction have the names of these tensors.
    """
    fusion = program.fusion_of(instr)
    if fusion is None:
        return
    name = {value: f"v{value}" for value in range(len(fusion.values))}
    name |= {value: f"t{tensor}" for value, tensor in enumerate(instr.operands)}
    name |= {v: f"t{t}" for v, t in zip(fusion.results, instr.results, strict=True)}
    for row in fusion.body:
        words = [", ".join(name[value] for value in row.results), "="]
        words += [", ".join(name[value] for value in row.operands), _constant(row.constant)]
        notes = [kind.type_text for kind in fusion.types(row.results)]
        notes += [_pairs(row.attributes), *_origin_words(program, row.origin)]
        yield [
            "",
            f"  {row.opcode}",
            " ".join(filter(None, words)),
            *("", ""),
            f"@{row.origin}" if row.origin != NONE else "",
            "",
            _noted(notes),
        ]


def _fused_fields(program: Program, fusion: Fusion) -> Iterator[dict[str, Any]]:
    """The rows of a fusion as data; values are numbers, parameters first."""
    for row in fusion.body:
        origin = program.origins[row.origin] if row.origin != NONE else None
        yield {
            "op": row.opcode,
            "results": list(row.results),
            "types": [kind.type_text for kind in fusion.types(row.results)],
            "operands": list(row.operands),
            "attributes": dict(row.attributes),
            "constant": row.constant,
            "node": origin and origin.node,
            "source": origin and origin.place,
        }


def _placeholder(number: int, row: Placeholder) -> Cells:
    is_permute = row.op is CollectiveOp.PERMUTE
    members = [
        f"groups {ExplicitGroups(row.groups)}" if row.groups or not is_permute else "",
        f"pairs {ExplicitGroups(row.pairs)}" if row.pairs or is_permute else "",
        f"root {row.root}" if row.root is not None else "",
        f"counts {_ids('t', row.counts)}" if row.counts else "",
        f"stream {row.stream}",
        "in-place" if row.in_place else "",
        f"channel {row.channel_id}" if row.channel_id is not None else "",
        _name(row.name),
    ]
    return [
        f"p{number}",
        row.op.value,
        row.reduction.value if row.reduction else "",
        row.dtype.value,
        f"{_ids('t', row.results)} = {_ids('t', row.operands)}",
        " ".join(filter(None, members)),
    ]


def _block(number: int, row: Block) -> Cells:
    is_branch = row.kind is BlockKind.CASE or (row.index, row.of) != (0, 1)
    details = [
        f"branch {row.index} of {row.of}" if is_branch else "",
        f"trips {row.trip_count}" if row.trip_count is not None else "",
    ]
    return [
        f"k{number}",
        row.kind.value,
        _name(row.name),
        f"predicate t{row.predicate}",
        " ".join(filter(None, details)),
    ]


def queue_cells(program: Program, engine: Engine) -> Iterator[Cells]:
    """The instructions of a queue: pc, opcode, data, wait, post, origin, costs, comment."""
    if engine not in program.queues:
        return
    blocks = _block_rows(program)
    depth = 0
    for pc, row in enumerate(program.queues[engine]):
        depth = max(0, depth - (row.opcode in (TEST, END)))
        waits, posts = row.wait_sem != NONE, row.post_sem != NONE
        costs = {word: getattr(row, column) for column, word in _COSTS.items()}
        yield [
            f"{pc:>5}",
            "  " * depth + row.opcode,
            _data(row, blocks),
            f"wait {_semaphore(program, row.wait_sem)}>={row.wait_value}" if waits else "",
            f"post {_semaphore(program, row.post_sem)}" if posts else "",
            f"@{row.origin}" if row.origin != NONE else "",
            " ".join(f"{word} {cost}" for word, cost in costs.items() if cost),
            _comment(program, row),
        ]
        depth += row.opcode in (LOOP, TEST, CASE)


def instruction_fields(program: Program, engine: Engine) -> Iterator[dict[str, Any]]:
    """The instructions of a queue as data: ids of tensors, names of semaphores, sizes in bytes."""
    blocks = _block_rows(program)
    for pc, row in enumerate(program.queues.get(engine, ())):
        wait, post = row.wait_sem != NONE, row.post_sem != NONE
        is_control = row.opcode in CONTROL and row.attribute in blocks
        origin = program.origins[row.origin] if row.origin != NONE else None
        has_attributes = row.attribute != NONE and not is_control
        fusion = program.fusion_of(row)
        yield {
            "pc": pc,
            "op": row.opcode,
            "results": list(row.results),
            "operands": list(row.operands),
            "attributes": dict(program.attributes[row.attribute]) if has_attributes else {},
            "block": blocks[row.attribute] if is_control else None,
            "fused": list(_fused_fields(program, fusion)) if fusion else [],
            "placeholder": row.placeholder if row.placeholder != NONE else None,
            "wait": {"semaphore": program.semaphores[row.wait_sem].name, "value": row.wait_value}
            if wait
            else None,
            "post": [{"semaphore": program.semaphores[row.post_sem].name, "rank": None}]
            if post
            else [],
            "node": origin and origin.node,
            "source": origin and origin.place,
            **{column: getattr(row, column) for column in _COSTS},
        }


def as_json(program: Program, constants: bool = True) -> dict[str, Any]:
    """What `nccc list --json` prints: the listing, its tables, and the queues row by row."""
    return {
        "listing": print_program(program, constants).splitlines(),
        "program": definition_fields(program),
        "queues": [
            {"name": engine.value, "rows": list(instruction_fields(program, engine))}
            for engine in ENGINES
            if engine in program.queues
        ],
    }


def _block_rows(program: Program) -> Mapping[int, int]:
    """Rows of attributes that a control row writes as a block, and which block."""
    if not program.blocks:
        return {}
    first: dict[int, int] = {}
    for number, attributes in enumerate(program.attributes):
        block = names_block(attributes)
        if block >= 0:
            first.setdefault(block, number)
    return {number: block for block, number in first.items()}


def _data(row: Instr, blocks: Mapping[int, int]) -> str:
    words = [_ids("t", row.results)]
    if row.operands:
        words += ["=", _ids("t", row.operands)]
    if row.opcode in CONTROL and row.attribute in blocks:
        words.append(f"k{blocks[row.attribute]}")
    elif row.attribute != NONE:
        words.append(f"#{row.attribute}")
    if row.placeholder != NONE:
        words.append(f"p{row.placeholder}")
    return " ".join(filter(None, words))


def _semaphore(program: Program, number: int) -> str:
    return _name(program.semaphores[number].name)


def _comment(program: Program, row: Instr) -> str:
    """For readers: types, attributes, the collective, the line of the model."""
    parts = [program.tensors[tensor].type_text for tensor in row.results]
    if row.opcode in CONTROL:
        parts.append(_block_name(program, row))
    elif row.attribute != NONE:
        parts.append(_pairs(program.attributes[row.attribute]))
    if row.opcode == PTC2 and row.placeholder != NONE:
        parts.append(_summary(program.tensors, program.placeholders[row.placeholder]))
    if fusion := program.fusion_of(row):
        counts = Counter(fused.opcode for fused in fusion.body)
        parts.append(" ".join(f"{n} {op}" if n > 1 else op for op, n in counts.items()))
    return _noted([*parts, *_origin_words(program, row.origin)])


def _origin_words(program: Program, number: int) -> list[str]:
    if not 0 <= number < len(program.origins):
        return []
    origin = program.origins[number]
    return [json.dumps(text)[1:-1] for text in (origin.node, origin.place)]


def _noted(parts: Iterable[str]) -> str:
    """A comment of these parts, nothing without any."""
    text = "  ".join(part for part in parts if part)
    return f"; {text}" if text else ""


def _block_name(program: Program, row: Instr) -> str:
    """The name of a control row's block, and of a branch its number."""
    number = names_block(program.attributes[row.attribute]) if row.attribute != NONE else NONE
    if not 0 <= number < len(program.blocks):
        return ""
    block = program.blocks[number]
    branch = f" branch {block.index}" if block.kind is BlockKind.CASE else ""
    return json.dumps(block.name)[1:-1] + branch


def _summary(tensors: Sequence[Tensor], row: Placeholder) -> str:
    words = [row.op.value, *([row.reduction.value] if row.reduction else [])]
    moves = (
        f"{tensors[result].type_text} = {tensors[operand].type_text}"
        for result, operand in zip(row.results, row.operands, strict=False)
    )
    return f"{' '.join(words)} {', '.join(moves)} stream {row.stream}"
