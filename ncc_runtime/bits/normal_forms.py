"""The normal forms of an executable's collectives, from their specs and orders of reduction.

Which element of which operand a result holds says the spec of the collective; in which order it is
reduced say the descriptors (`orders.py`). Both hold for a program that is proved, and for no other.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.bits.orders import CollectiveOrder, orders
from ncc_runtime.bits.sums import ZEROS, Join, Sums
from ncc_runtime.execution.values.normal_form import NormalForm, PieceClass, Step
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.reductions import Reduction, is_exact
from ncc_runtime.neff.stages import participants
from ncc_runtime.verify.semantics import spec as specs

_COPY = -1
"""In place of an expression: the operand of one rank."""

_NOTHING = -2
"""In place of an expression: zeros."""

_IN_TURN = -3
"""In place of an expression: all members from left to right, where every order has one result."""


def normal_forms(executable: Executable) -> Mapping[int, NormalForm]:
    """By placeholder; those are missing that have to be performed descriptor by descriptor.

    These are collectives of variable size, those of several programs, and products of complex
    numbers, which numpy may round otherwise at the end of an array than in its middle.
    """
    program = executable.program
    pure = {
        number: own
        for number, placeholder in enumerate(program.placeholders)
        if _is_pure(placeholder) and (own := _own_program(executable, number)) is not None
    }
    reducing = [n for n in pure if program.placeholders[n].op.reduces]
    found = orders(executable, wanted=reducing) if reducing else {}
    known: dict[object, NormalForm] = {}
    forms: dict[int, NormalForm] = {}
    for number, own in pure.items():
        placeholder = program.placeholders[number]
        order = found.get(number)
        key = (id(order and order.results), _shape(own, number))
        if key not in known:
            known[key] = _form(own, number, executable.ranks, order)
        forms[number] = known[key]
    return forms


def _is_pure(placeholder: Placeholder) -> bool:
    is_product = placeholder.reduction is Reduction.MULTIPLY
    return not placeholder.op.is_counted and not (is_product and placeholder.dtype.is_complex)


def _own_program(executable: Executable, number: int) -> Program | None:
    """The program whose ranks take part; None if there are several."""
    ranks = participants(executable.program.placeholders[number])
    own = [
        stage.program
        for stage in executable.stages
        if ranks is None or np.isin(stage.ranks, ranks).any()
    ]
    return own[0] if len(own) == 1 else None


def _shape(program: Program, number: int) -> object:
    """What the form depends on beside the order of reduction."""
    placeholder = program.placeholders[number]
    tensors = (*placeholder.operands, *placeholder.results)
    sizes = tuple(program.tensors[tensor].elements for tensor in tensors)
    return attrs.evolve(placeholder, operands=(), results=(), channel_id=None, name=""), sizes


def dependent_groups(placeholder: Placeholder, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Ranks whose results depend on each other's operands, every rank that takes part once."""
    own = participants(placeholder)
    everybody = tuple(range(ranks)) if own is None else own
    if placeholder.op is CollectiveOp.PERMUTE:
        return (everybody,)
    inside = {rank for group in placeholder.groups for rank in group}
    return (*placeholder.groups, *((rank,) for rank in everybody if rank not in inside))


@attrs.frozen(eq=False)
class _Parts:
    """Parts of results of one operand, one expression of one group each."""

    group: int
    operand: int
    expression: np.ndarray  # (n,) a number in `Sums`, or one of the above
    source: np.ndarray  # (n,) the rank that a copy is of, else -1
    offset: np.ndarray  # (n,) elements into the operand
    size: np.ndarray  # (n,)
    target_rank: np.ndarray  # (n,)
    target_offset: np.ndarray  # (n,) elements into the result

    @property
    def columns(self) -> np.ndarray:
        """(n, 8) in the order of the fields."""
        columns = (
            np.full(len(self.size), self.group),
            np.full(len(self.size), self.operand),
            self.expression,
            self.source,
            self.offset,
            self.size,
            self.target_rank,
            self.target_offset,
        )
        return np.stack(np.broadcast_arrays(*columns), axis=1).astype(np.int64)


def _form(program: Program, number: int, ranks: int, order: CollectiveOrder | None) -> NormalForm:
    placeholder = program.placeholders[number]
    groups = dependent_groups(placeholder, ranks)
    group_of: np.ndarray = np.full(ranks, -1)
    for index, group in enumerate(groups):
        group_of[list(group)] = index
    parts = np.concatenate(
        [
            np.zeros((0, 8), np.int64),
            *(one.columns for one in _parts(program, placeholder, ranks, order, group_of)),
        ]
    )
    parts = parts[parts[:, 5] > 0]
    classes = tuple(_classes(parts, groups, placeholder, None if order is None else order.sums))
    return NormalForm(
        dtype=placeholder.dtype.numpy,
        reduction=placeholder.reduction,
        classes=classes,
        groups=groups,
        is_blockwise=_is_blockwise(program, placeholder, groups, classes),
    )


def _parts(
    program: Program,
    placeholder: Placeholder,
    ranks: int,
    order: CollectiveOrder | None,
    group_of: np.ndarray,
) -> Iterator[_Parts]:
    """All parts of all results."""
    of_results = {}
    if order is not None and not order.sums.arithmetic.is_exact:
        of_results = {(one.rank, one.result): one for one in order.results}
    for one in specs.specs_of(placeholder, ranks):
        spec = one.of(np.flatnonzero(group_of >= 0).tolist())
        for index, (operand, result) in enumerate(
            zip(placeholder.operands, placeholder.results, strict=True)
        ):
            elements = program.tensors[result].elements
            size = elements // spec.parts
            step = program.tensors[operand].elements // spec.operand_parts
            shape = (len(spec.ranks), spec.parts)
            source = np.broadcast_to(spec.source, shape)
            offsets = np.broadcast_to(spec.source_part, shape) * step
            for at, rank in enumerate(spec.ranks.tolist()):
                group = int(group_of[rank])
                if spec.source.size == 1 and spec.source[0, 0] == specs.REDUCED:
                    yield _reduced(of_results, rank, index, group, int(offsets[at, 0]), size, placeholder)
                    continue
                is_zero = source[at] == specs.ZEROS
                yield _Parts(
                    group,
                    index,
                    np.where(is_zero, _NOTHING, _COPY),
                    np.where(is_zero, -1, source[at]),
                    np.where(is_zero, 0, offsets[at]),
                    np.full(spec.parts, size),
                    np.full(spec.parts, rank),
                    np.arange(spec.parts) * size,
                )


def _reduced(
    of_results: Mapping[tuple[int, int], object],
    rank: int,
    index: int,
    group: int,
    offset: int,
    size: int,
    placeholder: Placeholder,
) -> _Parts:
    one = of_results.get((rank, index))
    expression, start, sizes = np.array([_IN_TURN]), np.zeros(1, np.int64), np.array([size])
    if one is not None:
        itemsize = placeholder.dtype.size_bytes
        expression, start, sizes = one.expression, one.start // itemsize, one.sizes // itemsize
    none = np.full(len(start), -1)
    return _Parts(group, index, expression, none, offset + start, sizes, none * 0 + rank, start)


def _classes(
    parts: np.ndarray,
    groups: Sequence[tuple[int, ...]],
    placeholder: Placeholder,
    sums: Sums | None,
) -> Iterator[PieceClass]:
    """Parts that hold the same as one piece with several targets; pieces alike as a class."""
    if not len(parts):
        return
    parts = parts[np.lexsort(parts.T[::-1])]
    is_new = np.append(True, (parts[1:, :6] != parts[:-1, :6]).any(axis=1))
    first = np.flatnonzero(is_new)
    counts = np.diff(np.append(first, len(parts)))
    pieces = parts[first]
    terms: dict[tuple[int, int], tuple[tuple[Step, ...], tuple[int, ...]]] = {}
    alike: dict[object, list[int]] = {}
    leaves: list[tuple[int, ...]] = []
    for number, (group, operand, expression, source, _, size, *_) in enumerate(pieces.tolist()):
        if expression == _COPY:
            steps, ranks = (), (source,)
        elif expression == _NOTHING:
            steps, ranks = (), ()
        else:
            members = groups[group]
            if (expression, len(members)) not in terms:
                term = _term(expression, len(members), sums, placeholder)
                terms[expression, len(members)] = term
            steps, places = terms[expression, len(members)]
            ranks = tuple(members[place] for place in places)
        leaves.append(ranks)
        key = (steps, len(ranks), operand, size, int(counts[number]))
        alike.setdefault(key, []).append(number)
    for (steps, width, operand, size, targets), numbers in alike.items():
        numbers.sort(key=lambda number: (pieces[number, 0], pieces[number, 4]))  # group, offset
        own = pieces[numbers]
        cells = first[numbers][:, None] + np.arange(targets)
        yield PieceClass(
            steps=steps,
            operand=operand,
            size=size,
            group=own[:, 0],
            leaves=np.array([leaves[n] for n in numbers], np.int64).reshape(len(numbers), width),
            offset=own[:, 4],
            target_rank=parts[cells, 6],
            target_offset=parts[cells, 7],
        )


def _is_blockwise(
    program: Program,
    placeholder: Placeholder,
    groups: Sequence[tuple[int, ...]],
    classes: Sequence[PieceClass],
) -> bool:
    """Whether every piece writes where it reads, and no two pieces read the same bytes of a rank.

    So it can be computed in place block by block: an all-reduce whose members all reduce alike.
    """
    if placeholder.op is not CollectiveOp.ALL_REDUCE:
        return False
    covered = sum(one.size * len(one) for one in classes)
    sizes = [program.tensors[tensor].elements for tensor in placeholder.operands]
    return covered == sum(sizes) * len(groups) and len(set(placeholder.operands)) == len(sizes)


# ---- expressions as steps


def _term(
    expression: int, members: int, sums: Sums | None, placeholder: Placeholder
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Steps that compute an expression, and the places in the group of their leaves."""
    if expression == _IN_TURN or sums is None:
        assert placeholder.reduction is not None
        assert is_exact(placeholder.reduction, placeholder.dtype), placeholder
        places = tuple(range(members))
        return ((Step(0, places),) if members > 1 else ()), places
    return _Compiler(sums).compiled(expression)


class _Compiler:
    """Makes steps of an expression: depth first, so that few registers are needed."""

    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self._steps: list[Step] = []
        self._leaves: list[int] = []
        self._free: list[int] = []
        self._registers = 0

    def compiled(self, expression: int) -> tuple[tuple[Step, ...], tuple[int, ...]]:
        assert expression != ZEROS, "a reduction has operands"
        self._value(expression)
        return tuple(self._steps), tuple(self._leaves)

    def _value(self, expression: int) -> int:
        """A part that holds its value."""
        # down the chain of what comes first, without recursion: rings are long chains
        spine: list[tuple[list[int], int]] = []
        node = self._sums.node(expression)
        while isinstance(node, Join):
            parts = list(node.parts)
            first, *_ = parts
            may_swap = self._sums.arithmetic.commutes and len(parts) > 1
            if may_swap and not isinstance(self._sums.node(first), Join):
                parts[:2] = parts[1::-1]  # the same bits, and a chain stays one
            spine.append((parts[1:], node.divisor))
            node = self._sums.node(parts[0])
        value = len(self._leaves)
        self._leaves.append(node)
        pending: list[int] = [value]
        for rest, divisor in reversed(spine):
            pending += [self._value(part) for part in rest]
            if divisor == 1 and not self._sums.arithmetic.rounds_late:
                continue  # nothing is rounded between: one step joins on
            pending = [self._step(pending, divisor)]
        return pending[0] if len(pending) == 1 else self._step(pending, 1)

    def _step(self, parts: Sequence[int], divisor: int) -> int:
        registers = [~part for part in parts if part < 0]
        if parts[0] < 0:
            register = ~parts[0]
        elif self._free:
            register = self._free.pop()
        else:
            register, self._registers = self._registers, self._registers + 1
        self._steps.append(Step(register, tuple(parts), divisor))
        self._free += [one for one in registers if one != register]
        return ~register
