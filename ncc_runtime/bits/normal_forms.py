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
from ncc_runtime.verify.prove import Evidence
from ncc_runtime.verify.semantics import spec as specs

_COPY = -3
"""In place of an expression: the operand of one rank."""

_NOTHING = -2
"""In place of an expression: zeros."""

_IN_TURN = -1
"""In place of an expression: all members from left to right, where every order has one result."""


def normal_forms(
    executable: Executable, evidence: Evidence | None = None
) -> Mapping[int, NormalForm]:
    """By placeholder; `evidence` is that of the proofs, if at hand.

    Those are missing that have to be performed descriptor by descriptor: collectives of variable
    size, those of several programs, and products of complex numbers, which numpy may round
    otherwise at the end of an array than in its middle.
    """
    program = executable.program
    pure = {
        number: own
        for number, placeholder in enumerate(program.placeholders)
        if _is_pure(placeholder) and (own := _own_program(executable, number)) is not None
    }
    reducing = [n for n in pure if program.placeholders[n].op.reduces]
    found = orders(executable, wanted=reducing, evidence=evidence) if reducing else {}
    known: dict[object, NormalForm] = {}
    forms: dict[int, NormalForm] = {}
    for number, own in pure.items():
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


_GROUP, _OPERAND, _EXPRESSION, _SOURCE, _OFFSET, _SIZE, _TARGET_RANK, _TARGET_OFFSET = range(8)
"""Columns of parts of results: the group, which operand and result, the expression (a number in
`Sums`, or one of the above), the rank that is copied or -1, elements into the operand, elements,
the rank of the result, elements into it. Parts equal but for the last two hold the same."""


def _form(program: Program, number: int, ranks: int, order: CollectiveOrder | None) -> NormalForm:
    placeholder = program.placeholders[number]
    groups = dependent_groups(placeholder, ranks)
    sums = None if order is None or order.sums.arithmetic.is_exact else order.sums
    parts = np.concatenate(
        [np.zeros((0, 8), np.int64), *_parts(program, placeholder, groups, ranks, order)]
    )
    parts = parts[parts[:, _SIZE] > 0]
    classes = tuple(_classes(parts, groups, placeholder, sums))
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
    groups: Sequence[Sequence[int]],
    ranks: int,
    order: CollectiveOrder | None,
) -> Iterator[np.ndarray]:
    """All parts of all results, [parts, columns], some at a time."""
    group_of: np.ndarray = np.full(ranks, -1)
    for index, group in enumerate(groups):
        group_of[list(group)] = index
    orders_of = {} if order is None else {(one.rank, one.result): one for one in order.results}
    for whole in specs.specs_of(placeholder, ranks):
        spec = whole.of(np.flatnonzero(group_of >= 0).tolist())
        pairs = enumerate(zip(placeholder.operands, placeholder.results, strict=True))
        for index, (operand, result) in pairs:
            size = program.tensors[result].elements // spec.parts
            step = program.tensors[operand].elements // spec.operand_parts
            source = np.broadcast_to(spec.source, (len(spec.ranks), spec.parts))
            offset = np.broadcast_to(spec.source_part, source.shape) * step
            if spec.source.size == 1 and spec.source[0, 0] == specs.REDUCED:
                for rank, first in zip(spec.ranks.tolist(), offset[:, 0].tolist(), strict=True):
                    of_rank = orders_of.get((rank, index))
                    start, sizes = np.zeros(1, np.int64), np.array([size])
                    expression = np.array([_IN_TURN])
                    if of_rank is not None:
                        itemsize = placeholder.dtype.size_bytes
                        start, sizes = of_rank.start // itemsize, of_rank.sizes // itemsize
                        expression = of_rank.expression
                    group = group_of[rank]
                    yield _table(group, index, expression, -1, first + start, sizes, rank, start)
                continue
            is_zero = source == specs.ZEROS
            yield _table(
                group_of[spec.ranks][:, None],
                index,
                np.where(is_zero, _NOTHING, _COPY),
                np.where(is_zero, -1, source),
                np.where(is_zero, 0, offset),
                size,
                spec.ranks[:, None],
                np.arange(spec.parts) * size,
            )


def _table(*columns: np.ndarray | int) -> np.ndarray:
    """Columns as one array [parts, columns]."""
    cells = np.broadcast_arrays(*columns)
    return np.stack([column.ravel() for column in cells], axis=1).astype(np.int64)


_Alike = tuple[tuple[Step, ...], int, int, int, int]
"""What pieces of a class have in common: steps, leaves, operand, size, targets."""


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
    same = parts[:, :_TARGET_RANK]
    first = np.flatnonzero(np.append(True, (same[1:] != same[:-1]).any(axis=1)))
    targets = np.diff(np.append(first, len(parts)))
    pieces = parts[first]
    sizes = np.array([len(group) for group in groups])
    # what tells pieces apart whose steps are the same: one expression has the same in all groups
    keys = np.stack(
        [
            pieces[:, _EXPRESSION],
            np.where(pieces[:, _EXPRESSION] >= _IN_TURN, sizes[pieces[:, _GROUP]], 0),
            pieces[:, _OPERAND],
            pieces[:, _SIZE],
            targets,
        ],
        axis=1,
    )
    distinct, number = np.unique(keys, axis=0, return_inverse=True)
    terms: dict[tuple[int, int], tuple[tuple[Step, ...], tuple[int, ...]]] = {}
    alike: dict[_Alike, list[tuple[np.ndarray, np.ndarray]]] = {}
    by_key = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    for (expression, members, *rest), own in zip(distinct.tolist(), by_key, strict=True):
        steps: tuple[Step, ...] = ()
        if expression == _COPY:
            leaves = pieces[own, _SOURCE][:, None]
        elif expression == _NOTHING:
            leaves = np.zeros((len(own), 0), np.int64)
        else:
            if (expression, members) not in terms:
                terms[expression, members] = _term(expression, members, sums, placeholder)
            steps, places = terms[expression, members]
            group_of = pieces[own, _GROUP].tolist()
            leaves = np.array([[groups[g][place] for place in places] for g in group_of], np.int64)
        operand, size, count = rest
        alike.setdefault((steps, leaves.shape[1], operand, size, count), []).append((own, leaves))
    for (steps, _, operand, size, count), some in alike.items():
        own, leaves = (np.concatenate(column) for column in zip(*some, strict=True))
        in_turn = np.lexsort((pieces[own, _OFFSET], pieces[own, _GROUP]))
        own = own[in_turn]
        cells = first[own][:, None] + np.arange(count)
        yield PieceClass(
            steps=steps,
            operand=operand,
            size=size,
            group=pieces[own, _GROUP],
            leaves=leaves[in_turn],
            offset=pieces[own, _OFFSET],
            target_rank=parts[cells, _TARGET_RANK],
            target_offset=parts[cells, _TARGET_OFFSET],
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
        self._rounds_late = sums.arithmetic.rounds_late
        self._commutes = sums.arithmetic.commutes
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
            may_swap = self._commutes and len(parts) > 1
            if may_swap and not isinstance(self._sums.node(first), Join):
                parts[:2] = parts[1::-1]  # the same bits, and a chain stays one
            spine.append((parts[1:], node.divisor))
            node = self._sums.node(parts[0])
        value = len(self._leaves)
        self._leaves.append(node)
        pending: list[int] = [value]
        for rest, divisor in reversed(spine):
            for part in rest:
                inner = self._sums.node(part)
                if isinstance(inner, Join):
                    pending.append(self._value(part))
                else:
                    pending.append(len(self._leaves))
                    self._leaves.append(inner)
            if divisor == 1 and not self._rounds_late:
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
