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

from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.products import PRODUCTS, Product, products_of
from ncc_runtime.neff.program import BlockKind, Fusion, Program
from ncc_runtime.neff.table import NONE, Instr

REMATTED = "rematted_computation"
"""In the op_name of what jax.checkpoint computes again (jax/_src/ad_checkpoint.py)."""


@attrs.frozen
class CountedProduct:
    """A product of an instruction, and whether it computes again what another has."""

    product: Product
    is_repeated: bool


Place = tuple[Engine, int]
"""A row of a queue."""


def counted_products(program: Program) -> dict[Place, tuple[CountedProduct, ...]]:
    """The products of each instruction that has some, in order."""
    places = [
        (place, number, product)
        for place, row in _rows(program)
        for number, product in enumerate(products_of(program, row))
    ]
    # what JAX marks comes last, so that it is the one that is repeated
    places.sort(key=lambda item: _is_rematted(program, item[2]))
    values, seen = _Values(program), set[int]()
    counted: dict[Place, dict[int, CountedProduct]] = {}
    for place, number, product in places:
        value = values.of((place, _PRODUCT, number))
        is_repeated = value in seen or _is_rematted(program, product)
        counted.setdefault(place, {})[number] = CountedProduct(product, is_repeated)
        seen.add(value)
    return {
        place: tuple(of_place[number] for number in sorted(of_place))
        for place, of_place in counted.items()
    }


def _is_rematted(program: Program, product: Product) -> bool:
    return product.origin != NONE and REMATTED in program.origins[product.origin].op_name


def _rows(program: Program) -> Iterator[tuple[Place, Instr]]:
    for engine, table in program.queues.items():
        for number, row in enumerate(table):
            yield (engine, number), row


_PRODUCT, _INSIDE = "product", "inside"

Value = Hashable
"""A tensor by its number; the n-th product of an instruction, (place, _PRODUCT, n); a value inside
of a fusion, (place, _INSIDE, number)."""


@attrs.frozen
class _Definition:
    """What makes a value: an operation of others, whose value numbers complete its key."""

    key: tuple[Hashable, ...]
    operands: tuple[Value, ...]
    is_copy: bool = False  # the value of its only operand


class _Values:
    """Numbers of values, computed when they are asked for: equal ones have equal numbers."""

    def __init__(self, program: Program) -> None:
        self._definitions = _definitions(program)
        self._numbers: dict[Value, int] = {}
        self._classes: dict[Hashable, int] = {}

    def of(self, value: Value) -> int:
        """The number of a value."""
        pending = [value]
        begun = set[Value]()  # without number yet: what the last one pending is an operand of
        while pending:
            at = pending[-1]
            definition = self._definitions.get(at)
            if at in self._numbers:
                pending.pop()
            elif definition is None:
                self._give(at, ("itself", at))
            elif missing := [one for one in definition.operands if one not in self._numbers]:
                begun.add(at)
                for one in begun.intersection(missing):  # updates itself, in an input's memory
                    self._give(one, ("itself", one))
                pending += missing
            elif definition.is_copy:
                self._numbers[at] = self._numbers[definition.operands[0]]
            else:
                numbers = tuple(self._numbers[one] for one in definition.operands)
                self._give(at, (*definition.key, numbers))
        return self._numbers[value]

    def _give(self, value: Value, key: Hashable) -> None:
        self._numbers[value] = self._classes.setdefault(key, len(self._classes))


def _definitions(program: Program) -> dict[Value, _Definition]:
    """How each value is made that is written once, or that views one of these.

    A buffer may be written again in place once its value is not needed, so a tensor stands for one
    value all the same. In loops it may stand for the state, which is another at every turn; then
    tensors of buffers that are written several times have no definition. So a definition leads back
    to its own value only where an output in an input's memory is updated, once, as itself.
    """
    made: dict[Value, _Definition] = {}
    writes: dict[int, list[int]] = {}  # by buffer, the tensors that are written
    again = set()  # tensors that are written more than once
    for value, definition in _operations(program):
        if isinstance(value, int):
            writes.setdefault(program.tensors[value].buffer, []).append(value)
            if value in made:
                again.add(value)
        made[value] = definition
    has_loops = any(block.kind is BlockKind.LOOP for block in program.blocks)
    for number, tensor in enumerate(program.tensors):
        written = writes.get(tensor.buffer, ())
        if number in made:
            if len(written) > 1 and (has_loops or number in again):
                del made[number]
        elif len(written) == 1:  # a reshape that costs nothing
            made[number] = _view(program, number, written[0])
    return made


def _view(program: Program, number: int, written: int) -> _Definition:
    tensor, source = program.tensors[number], program.tensors[written]
    key = ("view", tensor.dtype, tensor.shape, tensor.offset - source.offset)
    types = [(one.dtype, one.shape, one.offset) for one in (tensor, source)]
    return _Definition(key, (written,), is_copy=types[0] == types[1])


def _operations(program: Program) -> Iterator[tuple[Value, _Definition]]:
    """Every value that an instruction or a collective makes, as often as one does."""
    attributes = [_hashable(one) for one in program.attributes]
    for place, row in _rows(program):
        if fusion := program.fusion_of(row):
            yield from _fused(place, row, fusion)
            continue
        given = () if row.attribute == NONE else attributes[row.attribute]
        for index, tensor in enumerate(row.results):
            result = program.tensors[tensor]
            key = (row.opcode, given, index, result.dtype, result.shape)
            yield tensor, _Definition(key, row.operands, is_copy=row.opcode == "copy")
        if row.opcode in PRODUCTS:
            yield (place, _PRODUCT, 0), _Definition((), row.results, is_copy=True)
    for placeholder in program.placeholders:
        does = (placeholder.op, placeholder.reduction, placeholder.root)
        between = (placeholder.groups, placeholder.pairs)
        operands = (*placeholder.operands, *placeholder.counts)
        for index, tensor in enumerate(placeholder.results):
            yield tensor, _Definition((*does, *between, index), operands)


def _fused(place: Place, row: Instr, fusion: Fusion) -> Iterator[tuple[Value, _Definition]]:
    """The values inside of a fusion, which equal those that instructions of their own make."""

    def inside(number: int) -> Value:
        is_parameter = number < fusion.parameters
        return row.operands[number] if is_parameter else (place, _INSIDE, number)

    products = 0
    for one in fusion.body:
        given = (one.constant, _hashable(one.attributes))
        for index, number in enumerate(one.results):
            value = fusion.values[number]
            attributes = given if one.opcode == "constant" else given[1]
            key = (one.opcode, attributes, index, value.dtype, value.shape)
            operands = tuple(map(inside, one.operands))
            yield inside(number), _Definition(key, operands, is_copy=one.opcode == "copy")
        if one.opcode in PRODUCTS:
            source = (inside(one.results[0]),)
            yield (place, _PRODUCT, products), _Definition((), source, is_copy=True)
            products += 1
    for tensor, number in zip(row.results, fusion.results, strict=True):
        yield tensor, _Definition((), (inside(number),), is_copy=True)


def _hashable(attributes: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(attributes.items()))
