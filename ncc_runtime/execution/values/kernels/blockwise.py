"""Fusions block by block: what a block computes stays in the host's cache from step to step.

Which dimensions may be cut follows from how operations connect them. Dimensions of two values
belong together if an operation maps index k of the one to index k of the other; a dimension that an
operation folds, contracts or takes apart is *stuck* there. A *loop* cuts all values of connected
steps along one or two sets of dimensions; a step at which these are stuck is performed whole, for
all of a rank's elements, as are products. So a fusion becomes *levels*: whole steps, then loops
over blocks. What one level computes and another reads has memory of its own, and results are
written where they are to lie; all else is in scratch memory of the thread.

Narrow floats are computed in float32, which a block keeps for the next step: where that is
arithmetic too, numbers are rounded where they are, and narrow ones are made only of what is moved,
tested or a result.

Bits are those of the steps one after the other (`compute.py`): no sum is cut, a product is cut
between its matrices only, and where operands of a product would be laid out otherwise in a block,
it is not cut.
"""

import collections
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels import elementwise
from ncc_runtime.execution.values.kernels.compute import fused_step, read_in_any_layout
from ncc_runtime.execution.values.kernels.conversions import narrowed, round_to, widened
from ncc_runtime.execution.values.kernels.elementwise import (
    BY_DTYPE,
    FUNCTIONS,
    PLAIN_LOOPS,
    loop_of,
)
from ncc_runtime.execution.values.kernels.folds import fold_of_rows
from ncc_runtime.execution.values.kernels.numbers import (
    HOST_FLOATS,
    canonical_nans,
    is_narrow_float,
    keeps_bits,
    may_be_nan,
    wide_type,
)
from ncc_runtime.execution.values.kernels.products import is_laid_out_alike
from ncc_runtime.execution.values.kernels.regions import single_opcode
from ncc_runtime.execution.values.kernels.work import Arrays, KernelCall, ThreadMemory
from ncc_runtime.neff.isa import FUSION, OPCODES, Shape
from ncc_runtime.neff.program import (
    CONSTANT,
    FusedInstr,
    Fusion,
    Program,
    TensorId,
    ValueType,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.table import Instr

BLOCK_BYTES = 2048 * 1024
"""Of the largest value of a loop: a few of them fit into the last cache (measured: with 128 KiB the
calls take as long again as their work)."""

LEAST_ROW = 512
"""Elements: shorter rows of a block cost numpy more than their staying in a cache saves."""

_ELEMENTWISE = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)

_Axis = tuple[int, int]
"""A value of a fusion and a dimension of it."""


class _Sets:
    """Things that belong together (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[object, object] = {}

    def find(self, item: object) -> object:
        """What stands for the set of an item."""
        root = item
        while (parent := self._parent.get(root, root)) != root:
            root = parent
        self._parent[item] = root
        return root

    def join(self, one: object, other: object) -> None:
        """Make one set of two."""
        self._parent[self.find(one)] = self.find(other)


@attrs.frozen
class _Loop:
    """Connected steps that are performed block by block."""

    steps: tuple[int, ...]  # of the body, in order
    parts: tuple[int, ...]  # how many blocks, by set of dimensions
    cut: Mapping[int, tuple[int | None, ...]]  # by value and set: the dimension that is cut


@attrs.frozen
class _LoopLevel:
    """What is performed before the next level begins."""

    whole: tuple[int, ...]  # steps
    loops: tuple[_Loop, ...]


class BlockPlan:
    """A fusion as levels, and where its values lie; made once, used by all threads."""

    def __init__(
        self, program: Program, fusion: Fusion, of_any_nan: Set[int] = frozenset()
    ) -> None:
        """`of_any_nan` are results, by position, whose NaNs may be any."""
        self.program = program
        self.fusion = fusion
        self._cut = self._cuts()
        self.levels = self._levels()
        self._views = read_in_any_layout(fusion)
        seen = [value for k, value in enumerate(fusion.results) if k not in of_any_nan]
        self._observed = observed_values(program, fusion, seen)
        self.kept = self._kept_values()
        self.kept_steps = _KeptSteps()
        self.is_of_rank = any(step.opcode in ("partition-id", "replica-id") for step in fusion.body)
        self.rank_bytes = max(1, *map(_wide_bytes, fusion.values))

    # ---- which dimensions belong together

    def _relations(self, row: int) -> tuple[list[tuple[_Axis, _Axis]], list[_Axis]] | None:
        """Pairs of dimensions of an operand and a result, and those that are stuck.

        None for a step that is always whole.
        """
        step = self.fusion.body[row]
        types = self.fusion.values
        result = step.results[0]
        shape = types[result].shape
        every = [
            (value, axis) for value in step.operands for axis in range(len(types[value].shape))
        ]
        if step.opcode == CONSTANT:
            return [], []
        pairs: list[tuple[_Axis, _Axis]] = []
        if OPCODES[step.opcode].shape in _ELEMENTWISE:
            if any(types[value].shape not in (shape, ()) for value in step.operands):
                return None
            pairs = [(axis, (result, axis[1])) for axis in every]
        elif step.opcode in ("broadcast", "transpose"):
            (operand,), dimensions = step.operands, _integers(step, "dimensions")
            for k, dimension in enumerate(dimensions):
                is_broadcast = step.opcode == "broadcast"
                pairs.append(
                    ((operand, k), (result, dimension))
                    if is_broadcast
                    else ((operand, dimension), (result, k))
                )
        elif step.opcode == "reshape":
            places = _prefixes(shape)
            for axis, place in enumerate(_prefixes(types[step.operands[0]].shape)):
                if place in places:
                    pairs.append(((step.operands[0], axis), (result, places.index(place))))
        elif step.opcode == "reduce":
            folded = _integers(step, "dimensions")
            kept = [k for k in range(len(types[step.operands[0]].shape)) if k not in folded]
            for operand in step.operands[: len(step.operands) // 2]:
                for value in step.results:
                    pairs += [((operand, axis), (value, k)) for k, axis in enumerate(kept)]
        elif step.opcode == "dot":
            if not _integers(step, "lhs_batch"):
                return None
            for operand, name in zip(step.operands, ("lhs_batch", "rhs_batch"), strict=True):
                dimensions = _integers(step, name)
                pairs += [((operand, axis), (result, k)) for k, axis in enumerate(dimensions)]
        else:
            return None
        related = {axis for pair in pairs for axis in pair}
        own = [(value, axis) for value in step.results for axis in range(len(types[value].shape))]
        new = own if step.opcode == "broadcast" else ()
        return pairs, [axis for axis in (*every, *own) if axis not in related and axis not in new]

    def _cuts(self) -> list["_Loop"]:
        """Loops with all of their steps, before these are divided into levels."""
        body, types = self.fusion.body, self.fusion.values
        axes, steps = _Sets(), _Sets()
        relations = {
            row: found for row in range(len(body)) if (found := self._relations(row)) is not None
        }
        for row, (pairs, _) in relations.items():
            for one, other in pairs:
                axes.join(one, other)
            for value in (*body[row].operands, *body[row].results):
                if types[value].shape:
                    steps.join(row, ("value", value))
        groups: dict[object, list[int]] = collections.defaultdict(list)
        for row in relations:
            groups[steps.find(row)].append(row)
        return [loop for rows in groups.values() if (loop := self._loop(rows, axes, relations))]

    def _loop(
        self,
        rows: Sequence[int],
        axes: _Sets,
        relations: Mapping[int, tuple[list[tuple[_Axis, _Axis]], list[_Axis]]],
    ) -> _Loop | None:
        """The cut of connected steps that leaves the least whole; None if there is none."""
        types, body = self.fusion.values, self.fusion.body
        values = {value for row in rows for value in (*body[row].operands, *body[row].results)}
        members: dict[object, dict[int, int]] = collections.defaultdict(dict)
        stuck: dict[object, set[int]] = collections.defaultdict(set)
        for value in values:
            for axis in range(len(types[value].shape)):
                root = axes.find((value, axis))
                if value in members[root]:  # two dimensions of it belong together
                    stuck[root] |= {
                        r for r in rows if value in (*body[r].operands, *body[r].results)
                    }
                members[root][value] = axis
        for row in rows:
            for place in relations[row][1]:
                stuck[axes.find(place)].add(row)

        def price(root: object) -> tuple[int, int]:
            """Bytes that go through memory, and how scattered a block lies."""
            whole = {
                value for row in stuck[root] for value in (*body[row].operands, *body[row].results)
            }
            produced = {value for row in rows for value in body[row].results}
            uncut = produced - members[root].keys()
            both = sum(types[value].size_bytes for value in (*whole, *uncut))
            return both, members[root][largest_of(root)]

        def largest_of(root: object) -> int:
            return max(members[root], key=lambda value: (_wide_bytes(types[value]), -value))

        chosen: list[object] = []
        parts: list[int] = []
        for root in sorted(members, key=lambda root: (*price(root), str(root))):
            if not chosen:
                largest = largest_of(root)
            if largest in members[root]:
                extra = set().union(*(stuck[one] for one in chosen))
                if chosen and not stuck[root] <= extra:
                    continue
                size = types[largest].shape[members[root][largest]]
                room = _wide_bytes(types[largest]) // math.prod(parts)
                if room <= BLOCK_BYTES and chosen:
                    break
                number = next(
                    n
                    for n in range(1, size + 1)
                    if size % n == 0 and (room // n <= BLOCK_BYTES or n == size)
                )
                if members[root][largest] == len(types[largest].shape) - 1:
                    while number > 1 and (size % number or size // number < LEAST_ROW):
                        number -= 1
                if number > 1 or not chosen:
                    chosen.append(root)
                    parts.append(number)
            if len(chosen) == 2:
                break
        if not chosen:
            return None
        left_whole = set().union(*(stuck[root] for root in chosen))
        cut = {
            value: tuple(members[root].get(value) for root in chosen)
            for value in values
            if any(value in members[root] for root in chosen)
        }
        loop = _Loop(
            tuple(
                row
                for row in rows
                if row not in left_whole and any(value in cut for value in body[row].results)
            ),
            tuple(parts),
            cut,
        )
        sliced = [row for row in loop.steps if body[row].opcode == "dot"]
        misfits = [row for row in sliced if not self._is_alike(body[row], loop)]
        return attrs.evolve(loop, steps=tuple(row for row in loop.steps if row not in misfits))

    def _is_alike(self, step: FusedInstr, loop: _Loop) -> bool:
        if step.operands[0] == step.operands[1]:  # BLAS has another routine for these
            return False
        shapes = [self.fusion.values[value].shape for value in step.operands]
        blocks = [self.block_shape(loop, value) for value in step.operands]
        return is_laid_out_alike(step.attributes, shapes, blocks)

    def block_shape(self, loop: _Loop, value: int) -> tuple[int, ...]:
        """The shape of a block of a value; its own if it is not cut."""
        shape = list(self.fusion.values[value].shape)
        for axis, number in zip(loop.cut.get(value, ()), loop.parts, strict=False):
            if axis is not None:
                shape[axis] //= number
        return tuple(shape)

    # ---- the order

    def _levels(self) -> tuple[_LoopLevel, ...]:
        loop_of = {row: number for number, loop in enumerate(self._cut) for row in loop.steps}
        made_by = {
            value: row for row, step in enumerate(self.fusion.body) for value in step.results
        }
        level: list[int] = []
        for row, step in enumerate(self.fusion.body):
            before = [made_by[value] for value in step.operands if value in made_by]
            level.append(
                max(
                    (
                        level[other] + (other in loop_of and loop_of[other] != loop_of.get(row))
                        for other in before
                    ),
                    default=0,
                )
            )
        return tuple(
            _LoopLevel(
                tuple(row for row, at in enumerate(level) if at == k and row not in loop_of),
                tuple(
                    attrs.evolve(loop, steps=rows)
                    for loop in self._cut
                    if (rows := tuple(row for row in loop.steps if level[row] == k))
                ),
            )
            for k in range(max(level) + 1)
        )

    def _kept_values(self) -> frozenset[int]:
        """Values that are read elsewhere than in the level and loop that compute them."""
        kept = set(self.fusion.results)
        home = {
            row: (k, number)
            for k, level in enumerate(self.levels)
            for number, loop in enumerate(level.loops)
            for row in loop.steps
        }
        made_by = {
            value: row for row, step in enumerate(self.fusion.body) for value in step.results
        }
        for row, step in enumerate(self.fusion.body):
            for value in step.operands:
                if value in made_by and home.get(made_by[value]) != home.get(row):
                    kept.add(value)
        return frozenset(kept)

    def fold_of_rows(
        self, step: FusedInstr
    ) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
        """What folds rows of an array behind initial values; None if it is no fold of rows.

        NaNs may be any.
        """
        array, *others = step.operands
        kind = self.fusion.values[array]
        folded = _integers(step, "dimensions")
        rank = len(kind.shape)
        if len(others) > 1 or {*folded} != {*range(rank - len(folded), rank)}:
            return None
        return fold_of_rows(_folded_opcode(self.program, step), kind.dtype.numpy)

    def folds_anything(self, step: FusedInstr) -> bool:
        """Whether a result of a fold may be one of its operands, untouched."""
        return step.opcode == "reduce" and not _folded_opcode(self.program, step)

    # ---- performing it

    @functools.cached_property
    def blocks(self) -> int:
        """Of one loop that is all there is but for constants, how many blocks it has; else 1."""
        first, *others = self.levels
        opcodes = {self.fusion.body[row].opcode for row in first.whole}
        if others or opcodes - {CONSTANT} or len(first.loops) != 1:
            return 1
        return math.prod(first.loops[0].parts)

    def run(
        self,
        ranks: np.ndarray,
        operands: Arrays,
        results: Arrays,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """Compute for some ranks: operands and results are [ranks, *shape], results in place.

        Part (k, n) is the k-th of n shares of the blocks, at most as many as there are.
        """
        at_once = max(1, BLOCK_BYTES // self.rank_bytes)
        with np.errstate(all="ignore"):
            for first in range(0, len(ranks), at_once):
                rows = slice(first, first + at_once)
                some = _Ranks(
                    self,
                    ranks[rows],
                    [operand[rows] for operand in operands],
                    [result[rows] for result in results],
                )
                some.run(part)

    def writes_over(self, parameter: int, result: int) -> bool:
        """Whether a result may lie where a parameter of its type does: what is lost is not read."""
        if len(self.levels) != 1 or len(self.levels[0].loops) != 1:
            return False
        (level,) = self.levels
        (loop,) = level.loops
        body = self.fusion.body
        value = self.fusion.results[result]
        written = next(row for row, step in enumerate(body) if value in step.results)
        readers = [row for row, step in enumerate(body) if parameter in step.operands]
        is_seen = any(body[row].opcode in _VIEWS for row in readers)
        return (
            not is_seen
            and written in loop.steps
            and all(row in loop.steps and row <= written for row in readers)
            and loop.cut.get(parameter) == loop.cut.get(value)
        )

    def is_observed(self, value: int) -> bool:
        """Whether NaNs of a value must be canonical."""
        return value in self._observed

    def is_spread_by_readers(self, value: int) -> bool:
        """Whether all that read a value broadcast it themselves, and none keeps it."""
        readers = (step for step in self.fusion.body if value in step.operands)
        return value not in self.kept and all(
            (step.opcode == "select" and _takes_memory(step, self.fusion))
            or ((loop := _plain_loop(step, self.fusion)) is not None and not loop[1])
            for step in readers
        )

    def is_read_in_any_layout(self, value: int) -> bool:
        """Whether a value need not be laid out row by row."""
        return value in self._views


def observed_values(
    program: Program, fusion: Fusion, seen: Iterable[int] | None = None
) -> frozenset[int]:
    """Values whose NaNs must be canonical: results, and what more than arithmetic reads."""
    observed = set(fusion.results if seen is None else seen)
    for step in fusion.body:
        if step.opcode in (CONSTANT, "dot"):
            continue
        if step.opcode == "reduce" and _folded_opcode(program, step) in ("add", "multiply"):
            continue
        is_plain = OPCODES[step.opcode].shape in _ELEMENTWISE and not any(
            keeps_bits(step.opcode, fusion.values[value].dtype.numpy) for value in step.operands
        )
        if not is_plain or step.attributes.get("type") == "TOTALORDER":
            observed.update(step.operands)
    return frozenset(observed)


def _folded_opcode(program: Program, step: FusedInstr) -> str:
    """The opcode that a fold is made of, if it is one."""
    region = step.attributes["region"]
    assert isinstance(region, int), region
    return single_opcode(program.regions[region])


def _wide_bytes(kind: ValueType) -> int:
    """Bytes of a value in the type that it is computed in."""
    return kind.elements * wide_type(kind.dtype.numpy).itemsize


def fusion_of(program: Program, instr: Instr) -> Fusion | None:
    """What an instruction computes as a fusion: its own, or one operation; None for others."""
    if instr.opcode == FUSION:
        number = program.attributes[instr.attribute]["fusion"]
        assert isinstance(number, int), number
        return program.fusions[number]
    if OPCODES[instr.opcode].shape not in _ELEMENTWISE and instr.opcode != "dot":
        return None
    return single_step(program, instr)


def single_step(program: Program, instr: Instr) -> Fusion:
    """An instruction as a fusion of one step."""
    tensors = [program.tensors[TensorId(tensor)] for tensor in (*instr.operands, *instr.results)]
    count = len(instr.operands)
    results = tuple(range(count, len(tensors)))
    attributes = program.attributes[instr.attribute] if instr.attribute >= 0 else {}
    step = FusedInstr(instr.opcode, results, tuple(range(count)), attributes)
    values = tuple(ValueType(one.dtype, one.shape) for one in tensors)
    return Fusion(instr.opcode, values, count, (step,), results)


def can_be_cut(fusion: Fusion) -> bool:
    """Whether a fusion can be performed block by block."""
    is_unique = len(set(fusion.results)) == len(fusion.results)
    return is_unique and all(value.elements for value in fusion.values)


_SCRATCH = ThreadMemory()
"""For the values of a block."""


class _KeptSteps(threading.local):
    """The steps of a plan as a thread has prepared them, with its scratch memory."""

    def __init__(self) -> None:
        self.memory: np.ndarray | None = None
        self.steps: dict[object, Sequence[_BlockStep]] = {}  # by loop and number of ranks


class _Ranks:
    """A fusion on a few ranks."""

    def __init__(
        self, plan: BlockPlan, ranks: np.ndarray, operands: Arrays, results: Arrays
    ) -> None:
        self._plan = plan
        self._ranks = ranks
        self._values = dict(enumerate(operands))
        self._results = dict(zip(plan.fusion.results, results, strict=True))

    def run(self, part: tuple[int, int]) -> None:
        fusion = self._plan.fusion
        for level in self._plan.levels:
            for row in level.whole:
                self._whole(fusion.body[row])
            for loop in level.loops:
                self._blocks(loop, part)

    def _whole(self, step: FusedInstr) -> None:
        types = self._plan.fusion.types(step.results)
        call = KernelCall(self._plan.program, step.opcode, step.attributes, types, self._ranks)
        given = [self._results.get(value) for value in step.results]
        operands = [self._values[value] for value in step.operands]
        any_nans = not any(self._plan.is_observed(value) for value in step.results)
        arrays = fused_step(call, step, operands, given[0], any_nans=any_nans)
        for value, array, place in zip(step.results, arrays, given, strict=True):
            if place is not None:
                if array is not place:
                    place[...] = array
                self._values[value] = place
            else:
                is_free = self._plan.is_read_in_any_layout(value)
                self._values[value] = array if is_free else np.ascontiguousarray(array)

    def _place(self, value: int) -> np.ndarray:
        """Memory for all of a value."""
        kind = self._plan.fusion.values[value]
        place = self._results.get(value)
        if place is None:
            place = np.empty((len(self._ranks), *kind.shape), kind.dtype.numpy)
        self._values[value] = place
        return place

    def _blocks(self, loop: _Loop, part: tuple[int, int]) -> None:
        """The blocks of the steps of a loop, or a share of them."""
        plan = self._plan
        body = plan.fusion.body
        produced = {value for row in loop.steps for value in body[row].results}
        for value in sorted(produced & plan.kept):
            self._place(value)
        steps = self._steps(loop)
        read = {value for row in loop.steps for value in body[row].operands} - produced
        in_memory = (read | (produced & plan.kept)) & loop.cut.keys()
        local = {value: self._values[value] for value in read if value not in in_memory}
        varying = []
        for step in steps:  # what is the same in every block is computed once
            if step.is_invariant(local.keys() - in_memory, plan.kept):
                step.perform(local)
            else:
                varying.append(step)
        extents = {
            value: tuple(
                (axis + 1, plan.fusion.values[value].shape[axis] // parts, k)
                for k, (axis, parts) in enumerate(zip(loop.cut[value], loop.parts, strict=True))
                if axis is not None
            )
            for value in in_memory
        }
        (share, shares), count = part, math.prod(loop.parts)
        blocks = itertools.product(*map(range, loop.parts))
        for block in itertools.islice(
            blocks, share * count // shares, (share + 1) * count // shares
        ):
            values = dict(local)
            for value, cuts in extents.items():
                array = self._values[value]
                at = [slice(None)] * array.ndim
                for axis, extent, k in cuts:
                    at[axis] = slice(block[k] * extent, (block[k] + 1) * extent)
                values[value] = array[tuple(at)]
            for step in varying:
                step.perform(values)

    def _steps(self, loop: _Loop) -> "Sequence[_BlockStep]":
        """The steps of a loop; a thread keeps them as long as its scratch memory stays."""
        if self._plan.is_of_rank:
            return list(self._prepared(loop))
        kept, key = self._plan.kept_steps, (id(loop), len(self._ranks))
        if kept.memory is _SCRATCH.memory and key in kept.steps:
            return kept.steps[key]
        steps = list(self._prepared(loop))
        if kept.memory is not _SCRATCH.memory:
            kept.memory, kept.steps = _SCRATCH.memory, {}
        kept.steps[key] = steps
        return steps

    def _prepared(self, loop: _Loop) -> Iterator["_BlockStep"]:
        """Steps with the scratch memory that they write."""
        plan = self._plan
        body = plan.fusion.body
        types = plan.fusion.values
        last = {
            value: row for row in loop.steps for value in (*body[row].operands, *body[row].results)
        }
        seen_through = {
            value
            for row in loop.steps
            if body[row].opcode in _VIEWS or plan.folds_anything(body[row])
            for value in body[row].operands
        }
        read: dict[bool, set[int]] = {True: set(), False: set(plan.kept)}  # in float32, or not
        for row in loop.steps:
            read[_reads_float32(body[row], plan.fusion)].update(body[row].operands)
        slots: dict[int, int] = {}  # by value, and by ~value for its numbers as float32
        free: list[int] = []
        count = 0
        chosen: list[tuple[int, list[tuple[int, int]]]] = []
        for row in loop.steps:
            step = body[row]
            (result, *_) = step.results
            written: list[int] = []
            if _reads_float32(step, plan.fusion):  # for all who read them so
                written += [~value for value in dict.fromkeys(step.operands) if ~value not in slots]
            if _computes_narrow(step, plan.fusion):
                written += [~result] if step.opcode in PLAIN_LOOPS else []
            elif _takes_memory(step, plan.fusion) and result not in plan.kept:
                written.append(result)
            for value in written:
                slots[value] = free.pop() if free else count
                count = max(count, slots[value] + 1)
            chosen.append((row, [(value, slots[value]) for value in written]))
            for value in {*step.operands, *step.results} - seen_through:
                if last[value] == row:
                    free += [slots.pop(k) for k in (value, ~value) if k in slots]
        shapes = {value: (len(self._ranks), *plan.block_shape(loop, value)) for value in last}
        kinds = {value: types[value].dtype.numpy for value in last}
        kinds |= {~value: np.dtype(np.float32) for value in last}
        shapes |= {~value: shape for value, shape in shapes.items()}
        bytes_of = {value: math.prod(shapes[value]) * kinds[value].itemsize for value in shapes}
        size = max((bytes_of[value] for _, places in chosen for value, _ in places), default=0)
        size = -(-size // 64) * 64
        memory = _SCRATCH.of(count * size)
        for row, places in chosen:
            step = body[row]
            results = tuple(
                ValueType(types[value].dtype, plan.block_shape(loop, value))
                for value in step.results
            )
            call = KernelCall(plan.program, step.opcode, step.attributes, results, self._ranks)
            outs = {}
            for value, slot in places:
                part = memory[slot * size : slot * size + bytes_of[value]]
                outs[value] = part.view(kinds[value]).reshape(shapes[value])
            readers = step.results[0] in read[True], step.results[0] in read[False]
            yield _BlockStep(plan, step, call, outs, readers)


_VIEWS = ("bitcast-convert", "broadcast", "convert", "copy", "real", "reshape", "transpose")
"""Opcodes whose results may lie in the memory of their operands."""


def _plain_loop(step: FusedInstr, fusion: Fusion) -> tuple[Callable[..., object], bool] | None:
    """The loop of a step that writes where it is told, and whether that needs contiguous rows."""
    if step.opcode in ("convert", "copy", "select", CONSTANT):  # which have ways of their own
        return None
    kinds = [fusion.values[value].dtype.numpy for value in step.operands]
    if OPCODES[step.opcode].shape not in _ELEMENTWISE or is_narrow_float(kinds[0]):
        return None
    result = fusion.values[step.results[0]].dtype.numpy
    return loop_of(step.opcode, step.attributes, kinds, result)


def _takes_memory(step: FusedInstr, fusion: Fusion) -> bool:
    """Whether a step writes where it is told, so that it needs no memory of its own."""
    kinds = {fusion.values[value].dtype.numpy for value in (*step.operands[-2:], *step.results)}
    is_other = step.opcode == "select" or (step.opcode == "dot" and kinds <= {*HOST_FLOATS})
    return (is_other and len(kinds) == 1) or _plain_loop(step, fusion) is not None


def _computes_narrow(step: FusedInstr, fusion: Fusion) -> bool:
    """Whether a step is arithmetic with a narrow float, which is done in float32."""
    kinds = {fusion.values[value].dtype.numpy for value in (*step.operands, *step.results)}
    is_one = len(kinds) == 1 and is_narrow_float(*kinds)
    return is_one and step.opcode in FUNCTIONS and step.opcode not in BY_DTYPE


def _reads_float32(step: FusedInstr, fusion: Fusion) -> bool:
    """Whether a step takes narrow floats in float32."""
    if step.opcode == "compare" and step.attributes.get("type") != "TOTALORDER":
        return is_narrow_float(fusion.values[step.operands[0]].dtype.numpy)
    return _computes_narrow(step, fusion)


class _BlockStep:
    """A step on the blocks of some ranks, prepared: what is the same for all blocks is known.

    Values of a block are arrays by number, and narrow floats in float32, where a step has needed
    that, by ~number.
    """

    def __init__(
        self,
        plan: BlockPlan,
        step: FusedInstr,
        call: KernelCall,
        outs: Mapping[int, np.ndarray],
        readers: tuple[bool, bool],
    ) -> None:
        """`outs`: scratch memory for what the step makes, by number, or ~number as float32.

        `readers`: whether others read the result in float32, and as it is.
        """
        self._plan = plan
        self._step = step
        self._call = call
        self._outs = outs
        result = step.results[0]
        self._out = outs.get(result, outs.get(~result))
        self._readers = readers
        self._is_observed = any(plan.is_observed(value) for value in step.results)
        shapes = [plan.fusion.values[value].shape for value in step.operands]
        # of scalars there is one value for each rank
        is_scalar = [not shape and bool(call.results[0].shape) for shape in shapes]
        self._operands = [*zip(step.operands, is_scalar, strict=True)]
        self._column = (len(call.ranks), *[1] * len(call.results[0].shape))
        # computes from blocks of operands, by value, and adds the results, or writes into theirs
        self.perform: Callable[[dict[int, np.ndarray]], None] = self._any
        if _computes_narrow(step, plan.fusion):
            self.perform = self._narrow
        elif _reads_float32(step, plan.fusion):
            self.perform = self._compare
        elif (loop := _plain_loop(step, plan.fusion)) is not None:
            self._function, self._needs_rows = loop
            self.perform = self._plain
        elif step.opcode == "convert" and call.results[0].dtype is DType.F32:
            self.perform = self._widen
        elif step.opcode == "select" and self._out is not None:
            self.perform = self._select
        elif step.opcode == "reduce" and (fold := plan.fold_of_rows(step)) is not None:
            self._fold = fold
            self._rows = (len(call.ranks), *call.results[0].shape, -1)
            self.perform = self._reduce
        elif step.opcode == "broadcast" and plan.is_spread_by_readers(step.results[0]):
            dimensions = _integers(step, "dimensions")
            order = sorted(range(len(dimensions)), key=dimensions.__getitem__)
            self._order = (0, *(axis + 1 for axis in order))
            column = [*self._column]
            for dimension in dimensions:
                column[dimension + 1] = call.results[0].shape[dimension]
            self._column = tuple(column)
            self.perform = self._broadcast

    def is_invariant(self, known: Set[int], kept: Set[int]) -> bool:
        """Whether the results are those of every block, and may stay: scratch memory may not."""
        step = self._step
        return (
            not self._outs
            and known >= {*step.operands}
            and not any(v in kept for v in step.results)
        )

    def _any(self, values: dict[int, np.ndarray]) -> None:
        step = self._step
        operands = [values[value] for value in step.operands]
        if step.opcode == "dot":
            operands = [np.ascontiguousarray(array) for array in operands]
        any_nans = not self._is_observed
        arrays = fused_step(self._call, step, operands, self._out, any_nans=any_nans)
        self._add(values, arrays)

    def _add(self, values: dict[int, np.ndarray], arrays: Arrays) -> None:
        """Results are written where they have memory."""
        step = self._step
        for value, kind, array in zip(step.results, self._call.results, arrays, strict=True):
            if value in values:
                values[value][...] = array
            else:
                typed = array.astype(kind.dtype.numpy, copy=False)
                is_free = self._plan.is_read_in_any_layout(value)
                values[value] = typed if is_free else np.ascontiguousarray(typed)

    def _given(self, values: dict[int, np.ndarray]) -> Arrays:
        """The operands, as numpy broadcasts them."""
        return [
            values[value].reshape(self._column) if is_scalar else values[value]
            for value, is_scalar in self._operands
        ]

    def _plain(self, values: dict[int, np.ndarray]) -> None:
        (value,) = self._step.results
        operands = self._given(values)
        place = values[value] if self._out is None else self._out
        out = place
        if self._needs_rows:
            operands = [np.ascontiguousarray(array) for array in operands]
            if not place.flags.c_contiguous:
                out = np.empty_like(place, order="C")
        self._function(*operands, out=out)
        if not keeps_bits(self._step.opcode, out.dtype):
            self._make_nans_canonical(out)
        if out is not place:
            place[...] = out
        values[value] = place

    def _in_float32(self, values: dict[int, np.ndarray]) -> Arrays:
        """The operands in float32, as numpy broadcasts them."""
        for value, _ in self._operands:
            if ~value not in values:
                array = values[value]
                # of what is broadcast each element is widened once
                out = None if 0 in array.strides else self._outs[~value]
                values[~value] = widened(array, out=out)
        return [
            values[~value].reshape(self._column) if is_scalar else values[~value]
            for value, is_scalar in self._operands
        ]

    def _narrow(self, values: dict[int, np.ndarray]) -> None:
        """Arithmetic in float32, rounded once."""
        (value,) = self._step.results
        dtype = self._call.results[0].dtype.numpy
        operands = self._in_float32(values)
        out = self._out
        if out is not None:
            function, needs_rows = PLAIN_LOOPS[self._step.opcode]
            if needs_rows:
                operands = [np.ascontiguousarray(array) for array in operands]
            function(*operands, out=out)
        else:
            opcode, attributes = self._step.opcode, self._step.attributes
            out = elementwise.apply(opcode, operands, DType.F32, attributes)
            out = np.require(out, requirements=["C", "W"])
        in_float32, as_it_is = self._readers
        if in_float32:
            round_to(out, dtype)
            values[~value] = out
        if as_it_is or not in_float32:
            values[value] = narrowed(out, dtype, out=values.get(value))

    def _compare(self, values: dict[int, np.ndarray]) -> None:
        self._add(values, fused_step(self._call, self._step, self._in_float32(values)))

    def _widen(self, values: dict[int, np.ndarray]) -> None:
        """A narrow float as float32, which others may have needed before."""
        (operand,) = self._step.operands
        if ~operand in values:
            self._add(values, [values[~operand]])
        else:
            self._any(values)

    def _broadcast(self, values: dict[int, np.ndarray]) -> None:
        """Its readers spread it: new dimensions have size 1."""
        (operand,), (result,) = self._step.operands, self._step.results
        values[result] = values[operand].transpose(self._order).reshape(self._column)

    def _select(self, values: dict[int, np.ndarray]) -> None:
        assert self._out is not None, "a value has memory"
        condition, if_true, if_false = self._given(values)
        elementwise.selected(condition, if_true, if_false, self._out)
        values[self._step.results[0]] = self._out

    def _reduce(self, values: dict[int, np.ndarray]) -> None:
        """A fold of the last dimensions of one array, as `folds.fold` does it."""
        array, initial = (values[value] for value in self._step.operands)
        start = initial.reshape(self._column)
        total = self._fold(start, np.ascontiguousarray(array).reshape(self._rows))
        self._make_nans_canonical(total)
        (value,) = self._step.results
        if value in values:
            values[value][...] = total
        else:
            values[value] = total

    def _make_nans_canonical(self, array: np.ndarray) -> None:
        # the greatest of numbers is a NaN if there is one
        if not self._is_observed or not may_be_nan(array.dtype):
            return
        if array.dtype not in HOST_FLOATS or np.isnan(np.maximum.reduce(array, axis=None)):
            array[...] = canonical_nans(array)


def _integers(step: FusedInstr, name: str) -> tuple[int, ...]:
    value = step.attributes[name]
    assert isinstance(value, tuple), f"{step.opcode}.{name} is {value!r}"
    return value


def _prefixes(shape: Iterable[int]) -> list[tuple[int, int]]:
    """Of each dimension how many rows lie before it, and its size."""
    found, before = [], 1
    for size in shape:
        found.append((before, size))
        before *= size
    return found
