"""Which matrix products of a program are computed a second time, to save memory or traffic.

Two ways to tell, either is enough:

- JAX says so: what `jax.checkpoint` computes again has `rematted_computation` in its op_name, also
  where it lies in another loop than what it repeats.
- Value numbering (Alpern, Wegman and Zadeck, "Detecting equality of variables in programs", POPL
  1988): two values are equal if the same opcode with the same attributes made them of equal
  operands. Of products that are equal so, all but one are repeated. Copies and opt-barriers are
  looked through; what is written more than once (the state of a loop, a buffer updated in place) is
  equal to itself only.
"""

from collections.abc import Hashable, Iterator, Mapping

import attrs

from ncc_runtime.neff.isa import OPCODES, Engine, Shape
from ncc_runtime.neff.program import BlockKind, Program
from ncc_runtime.neff.table import NONE, Instr

REMATTED = "rematted_computation"
"""In the op_name of what jax.checkpoint computes again (jax/_src/ad_checkpoint.py)."""

PRODUCTS = frozenset(name for name, row in OPCODES.items() if row.shape is Shape.CONTRACT)
"""Opcodes of matrix products and convolutions."""


def repeated_products(program: Program) -> frozenset[tuple[Engine, int]]:
    """Rows of the program, by queue, that are products and compute again what another has."""
    products = [
        (engine, number, row)
        for engine, table in program.queues.items()
        if PRODUCTS.intersection(table.opcode_names)
        for number, row in enumerate(table)
        if row.opcode in PRODUCTS
    ]
    # what JAX marks comes last, so that it is the one that is repeated
    products.sort(key=lambda product: _is_rematted(program, product[2]))
    values, seen, repeated = _Values(program), set[int](), set[tuple[Engine, int]]()
    for engine, number, row in products:
        value = values.of(row.results[0])
        if value in seen or _is_rematted(program, row):
            repeated.add((engine, number))
        seen.add(value)
    return frozenset(repeated)


def _is_rematted(program: Program, row: Instr) -> bool:
    return row.origin != NONE and REMATTED in program.origins[row.origin].op_name


@attrs.frozen
class _Definition:
    """What makes a tensor: an operation of others, whose value numbers complete its key."""

    key: tuple[Hashable, ...]
    operands: tuple[int, ...]  # tensors
    is_copy: bool = False  # the value of its only operand


class _Values:
    """Value numbers of tensors, computed when they are asked for: equal ones have equal values."""

    def __init__(self, program: Program) -> None:
        self._definitions = _definitions(program)
        self._numbers: dict[int, int] = {}  # by tensor
        self._classes: dict[Hashable, int] = {}

    def of(self, tensor: int) -> int:
        """The number of a tensor's value."""
        pending = [tensor]
        while pending:
            at = pending[-1]
            definition = self._definitions.get(at)
            if at in self._numbers:
                pending.pop()
            elif definition is None:
                self._give(at, ("tensor", at))
            elif missing := [one for one in definition.operands if one not in self._numbers]:
                pending += missing
            elif definition.is_copy:
                self._numbers[at] = self._numbers[definition.operands[0]]
            else:
                numbers = tuple(self._numbers[one] for one in definition.operands)
                self._give(at, (*definition.key, numbers))
        return self._numbers[tensor]

    def _give(self, tensor: int, key: Hashable) -> None:
        self._numbers[tensor] = self._classes.setdefault(key, len(self._classes))


def _definitions(program: Program) -> dict[int, _Definition]:
    """How each tensor is made that is written once, or that views one of these.

    A buffer may be written again in place once its value is not needed, so a tensor stands for one
    value all the same. In loops it may stand for the state, which is another at every turn; then
    tensors of buffers that are written several times have no definition. So no definition leads
    back to its own tensor.
    """
    made: dict[int, _Definition] = {}
    writes: dict[int, list[int]] = {}  # by buffer, the tensors that are written
    again = set()  # tensors that are written more than once
    for tensor, definition in _operations(program):
        if tensor in made:
            again.add(tensor)
        made[tensor] = definition
        writes.setdefault(program.tensors[tensor].buffer, []).append(tensor)
    has_loops = any(block.kind is BlockKind.LOOP for block in program.blocks)
    definitions = {}
    for number, tensor in enumerate(program.tensors):
        written = writes.get(tensor.buffer, ())
        is_once = len(written) == 1 or (not has_loops and number not in again)
        if number in made and is_once:
            definitions[number] = made[number]
        elif number not in made and len(written) == 1:  # a reshape that costs nothing
            definitions[number] = _view(program, number, written[0])
    return definitions


def _view(program: Program, number: int, written: int) -> _Definition:
    tensor, source = program.tensors[number], program.tensors[written]
    key = ("view", tensor.dtype, tensor.shape, tensor.offset - source.offset)
    types = [(one.dtype, one.shape, one.offset) for one in (tensor, source)]
    return _Definition(key, (written,), is_copy=types[0] == types[1])


def _operations(program: Program) -> Iterator[tuple[int, _Definition]]:
    """Every tensor that an instruction or a collective writes, as often as one does."""
    attributes = [_hashable(one) for one in program.attributes]
    for table in program.queues.values():
        for row in table:
            given = () if row.attribute == NONE else attributes[row.attribute]
            is_copy = row.opcode == "copy"
            for index, tensor in enumerate(row.results):
                result = program.tensors[tensor]
                key = (row.opcode, given, index, result.dtype, result.shape)
                yield tensor, _Definition(key, row.operands, is_copy)
    for placeholder in program.placeholders:
        does = (placeholder.op, placeholder.reduction, placeholder.root)
        between = (placeholder.groups, placeholder.pairs)
        operands = (*placeholder.operands, *placeholder.counts)
        for index, tensor in enumerate(placeholder.results):
            yield tensor, _Definition((*does, *between, index), operands)


def _hashable(attributes: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(attributes.items()))
