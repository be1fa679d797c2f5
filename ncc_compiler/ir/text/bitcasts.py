"""Bitcasts of arrays that are not in row-major order, as transposes.

A bitcast gives the bytes of its operand another type, so its values depend on both layouts:

    x = f32[2,3]{0,1} parameter(0)
    b = f32[6]{0} bitcast(x)

lists x column by column. That is a transpose of x to the order of its memory, a bitcast between
arrays in row-major order, and a transpose from the order of the memory of b (none here).
Nothing else in a program depends on layouts. A bitcast of a tiled array is expanded only if both
sides have the same tiles and sizes; otherwise elements would move between tiles.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_compiler.ir.text.desugar import FreshNames
from ncc_compiler.ir.text.reading import MemoryLayout, is_row_major, layout_of
from ncc_compiler.syntax import tree


def expand_bitcasts(file: tree.File) -> tree.File:
    """The file with such bitcasts expanded, except those whose types cannot be read."""
    if not any(
        instruction.op.text == "bitcast"
        for body in file.computations
        for instruction in body.instructions
    ):
        return file
    return attrs.evolve(
        file,
        computations=tuple(
            attrs.evolve(body, instructions=tuple(_with_expanded_bitcasts(body)))
            for body in file.computations
        ),
    )


def _with_expanded_bitcasts(body: tree.ComputationText) -> Iterator[tree.Instruction]:
    kinds = {instruction.name.text: instruction.type for instruction in body.instructions}
    names = FreshNames(kinds)
    for instruction in body.instructions:
        if instruction.op.text != "bitcast" or len(instruction.operands) != 1:
            yield instruction
            continue
        (operand,) = instruction.operands
        kind = kinds.get(operand.text) or operand.type
        if (
            kind is None
            or instruction.type is None
            or (is_row_major(kind) and is_row_major(instruction.type))
        ):
            yield instruction
            continue
        source, target = layout_of(kind), layout_of(instruction.type)
        if source is None or target is None or not _keeps_tiles(source, target):
            yield instruction
            continue
        metadata = tuple(row for row in instruction.attributes if row.key == "metadata")
        template = attrs.evolve(instruction, is_root=False, attributes=metadata)
        if source.order != tuple(sorted(source.order)):
            in_memory_order = attrs.evolve(
                _transpose(template, operand, source.order),
                name=_fresh(instruction, names),
                type=_type_in_memory(instruction, source),
            )
            yield in_memory_order
            operand = _use(in_memory_order)
        if target.order == tuple(sorted(target.order)):
            yield attrs.evolve(instruction, operands=(operand,))
            continue
        cast = attrs.evolve(
            template,
            name=_fresh(instruction, names),
            type=_type_in_memory(instruction, target),
            operands=(operand,),
        )
        yield cast
        back = tuple(np.argsort(target.order).tolist())  # the inverse permutation
        yield _transpose(attrs.evolve(instruction, attributes=metadata), _use(cast), back)


def _keeps_tiles(source: MemoryLayout, target: MemoryLayout) -> bool:
    """Whether no element changes its tile: no tiles, or the same tiles over the same sizes."""
    if not source.tiles and not target.tiles:
        return True
    return (source.tiles, source.sizes) == (target.tiles, target.sizes)


def _transpose(
    instruction: tree.Instruction, operand: tree.Operand, dimensions: tuple[int, ...]
) -> tree.Instruction:
    """A transpose with the name and type of the bitcast `instruction`."""
    text = "{" + ",".join(map(str, dimensions)) + "}"
    row = tree.Attribute(
        "dimensions", text, instruction.op.start, instruction.op.start, instruction.op.end
    )
    op = attrs.evolve(instruction.op, text="transpose")
    return attrs.evolve(
        instruction, op=op, operands=(operand,), attributes=(row, *instruction.attributes)
    )


def _type_in_memory(instruction: tree.Instruction, memory: MemoryLayout) -> tree.ArrayText:
    """The type of an array whose dimensions are in the order of memory."""
    place = instruction.type or instruction.op
    sizes = ",".join(map(str, memory.sizes))
    return tree.ArrayText(f"{memory.element}[{sizes}]", place.start, place.end)


def _fresh(instruction: tree.Instruction, names: FreshNames) -> tree.Word:
    return attrs.evolve(instruction.name, text=names.like(f"{instruction.name.text}.memory"))


def _use(instruction: tree.Instruction) -> tree.Operand:
    return tree.Operand(instruction.name.text, instruction.op.start, instruction.op.end)
