"""Collectives, over ranks together, as the StableHLO specification states them.

A rank is the flattened id replica * num_partitions + partition. Members of a group are in the order
in which the group lists them, and a reduction folds in that order. Inside a loop or a branch only
some ranks may be there; of each group all or none are.

After HLO's collectives and send/recv come those that HLO lacks: averages, rooted ones (where only
the root gets something, the others get zeros), barriers; then variable-size (v-) collectives in the
meaning of XLA and MPI. Their result is the output operand with the rows replaced that a member
sends: what lies beyond the counts stays. Counts that contradict each other have no meaning: a
ValueError.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_compiler.ir.collectives import AVERAGING, pairs_attribute
from ncc_compiler.ir.graph import Lists
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.contraction import combine_of
from ncc_compiler.reference.elementwise import ELEMENTWISE
from ncc_compiler.reference.indexing import clamped_window
from ncc_compiler.reference.numbers import dtype_of, narrowed, working
from ncc_compiler.reference.step import Meaning, OpStep, Value, leaves
from ncc_runtime.neff.shared.groups import (
    ExplicitGroups,
    GroupMode,
    Groups,
    IotaGroups,
    MeshGroups,
    flattened_groups,
    flattened_pairs,
    group_mode,
)

InGroup: TypeAlias = Callable[[OpStep, Sequence[np.ndarray]], Sequence[np.ndarray]]
"""One operand of each member of a group, to one result of each member."""


def _mode(step: OpStep, *, may_have_global_ids: bool) -> GroupMode:
    attributes = step.node.attributes
    global_ids = bool(attributes.get("use_global_device_ids", False))
    return group_mode("channel_id" in attributes, global_ids if may_have_global_ids else None)


def _present_groups(step: OpStep, *, may_have_global_ids: bool) -> Groups:
    """The groups whose ranks are there, all of each."""
    module = step.module
    written = step.node.attributes.get("replica_groups", ExplicitGroups(()))
    assert isinstance(written, ExplicitGroups | IotaGroups | MeshGroups), written
    mode = _mode(step, may_have_global_ids=may_have_global_ids)
    groups = flattened_groups(written.expand(), mode, module.replica_count, module.num_partitions)
    present = set(step.ranks)
    groups = tuple(group for group in groups if not present.isdisjoint(group))
    assert all(present.issuperset(group) for group in groups), f"{step.node.name}: {step.ranks}"
    return groups


def _groups(step: OpStep, *, may_have_global_ids: bool) -> Groups:
    """The groups whose ranks are there; every rank must be in one."""
    groups = _present_groups(step, may_have_global_ids=may_have_global_ids)
    members = sorted(rank for group in groups for rank in group)
    assert members == list(step.ranks), f"{step.node.name}: groups hold ranks {members}"
    return groups


def _by_rank(step: OpStep) -> dict[int, tuple[np.ndarray, ...]]:
    """The operands of every rank that is there."""
    return {rank: step.arrays(position) for position, rank in enumerate(step.ranks)}


def _dimension(step: OpStep) -> int:
    return step.node.integers("dimensions")[0]


def _split(step: OpStep, array: np.ndarray, parts: int) -> list[np.ndarray]:
    return np.split(array, parts, axis=_dimension(step))


def _all_reduce(step: OpStep, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    combine = combine_of(step, step.ranks[0])
    total = (members[0],)
    for array in members[1:]:
        total = (combine(total, (array,))[0],)
    return [total[0].copy() for _ in members]


def _all_gather(step: OpStep, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    gathered = np.concatenate(members, axis=_dimension(step))
    return [gathered.copy() for _ in members]


def _reduce_scatter(step: OpStep, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    return _split(step, _all_reduce(step, members)[0], len(members))


def _all_to_all(step: OpStep, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Member k gets part k of every member, in the order of the group."""
    parts = [_split(step, array, len(members)) for array in members]
    return [
        np.concatenate([part[k] for part in parts], axis=_dimension(step))
        for k in range(len(members))
    ]


def _each_operand(in_group: InGroup, *, may_have_global_ids: bool) -> Meaning:
    """A collective that treats each of its operands alike, in every group."""

    def meaning(step: OpStep) -> list[Value]:
        arrays = _by_rank(step)
        results: dict[int, list[np.ndarray]] = {rank: [] for rank in arrays}
        groups = _groups(step, may_have_global_ids=may_have_global_ids)
        for operand in range(len(arrays[step.ranks[0]])):
            for group in groups:
                results_of = in_group(step, [arrays[rank][operand] for rank in group])
                for rank, result in zip(group, results_of, strict=True):
                    results[rank].append(result)
        return [_as_typed(step, results_of) for results_of in results.values()]

    return meaning


def _as_typed(step: OpStep, results: Sequence[np.ndarray]) -> Value:
    return tuple(results) if isinstance(step.node.type, TupleType) else results[0]


def _all_to_all_of_arrays_or_tuples(step: OpStep) -> list[Value]:
    """With `dimensions` an array is split; without, member k gets operand k of every member."""
    if "dimensions" in step.node.attributes:
        return _each_operand(_all_to_all, may_have_global_ids=False)(step)
    arrays = _by_rank(step)
    results: dict[int, Value] = dict.fromkeys(arrays, ())
    for group in _groups(step, may_have_global_ids=False):
        for k, rank in enumerate(group):
            results[rank] = tuple(arrays[member][k] for member in group)
    return list(results.values())


def _collective_permute(step: OpStep) -> list[Value]:
    if "slice_sizes" in step.node.attributes:
        return _permute_of_slices(step)
    return [_as_typed(step, arrays) for arrays in _moved(step, _by_rank(step))]


def _permute_of_slices(step: OpStep) -> list[Value]:
    """A target writes what its source reads, each at its own starts; others keep their output."""
    sizes, module = step.node.attributes["slice_sizes"], step.module
    pairs = pairs_attribute(step.node)
    assert isinstance(sizes, Lists), step.node.name
    assert pairs is not None, step.node.name
    mode = _mode(step, may_have_global_ids=False)
    operands_of = dict(zip(step.ranks, step.operands, strict=True))
    results = {}
    for rank, (_, output, _, _) in operands_of.items():
        results[rank] = [array.copy() for array in leaves(output)]
    for source, target in flattened_pairs(
        pairs.pairs, mode, module.replica_count, module.num_partitions
    ):
        if source not in operands_of:
            continue
        read, _, from_starts, _ = operands_of[source]
        _, _, _, to_starts = operands_of[target]
        slice_sizes = iter(sizes.lists)  # of all arrays, one after the other
        is_tuple = isinstance(read, tuple)
        for k, array in enumerate(leaves(read)):
            written = results[target][k]
            froms = _starts_of_slices(from_starts[k] if is_tuple else from_starts)
            tos = _starts_of_slices(to_starts[k] if is_tuple else to_starts)
            for from_start, to_start in zip(froms, tos, strict=True):
                size = next(slice_sizes)
                part = array[clamped_window(from_start, size, array.shape)]
                written[clamped_window(to_start, size, written.shape)] = part
    return [
        tuple(arrays) if isinstance(operands_of[rank][1], tuple) else arrays[0]
        for rank, arrays in results.items()
    ]


def _starts_of_slices(starts: Value) -> list[tuple[int, ...]]:
    """The starts of each slice of an array; `starts` may be those of a single one."""
    assert isinstance(starts, tuple), starts
    start_tuples = starts if starts and isinstance(starts[0], tuple) else (starts,)
    return [tuple(int(start) for start in leaves(start_tuple)) for start_tuple in start_tuples]


def _moved(step: OpStep, arrays: Mapping[int, Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """Arrays of every rank along the pairs of the step; a rank that is no target gets zeros."""
    module, pairs = step.module, pairs_attribute(step.node)
    assert pairs is not None, step.node.name
    mode = _mode(step, may_have_global_ids=False)
    results = {rank: [np.zeros_like(x) for x in arrays_of] for rank, arrays_of in arrays.items()}
    for source, target in flattened_pairs(
        pairs.pairs, mode, module.replica_count, module.num_partitions
    ):
        if source in arrays:
            results[target] = [array.copy() for array in arrays[source]]
    return list(results.values())


def _broadcast(step: OpStep) -> list[Value]:
    """What the first of each group has; zeros for ranks in no group."""
    arrays = _by_rank(step)
    results = {rank: [np.zeros_like(x) for x in arrays_of] for rank, arrays_of in arrays.items()}
    for group in _present_groups(step, may_have_global_ids=False):
        results.update({rank: [x.copy() for x in arrays[group[0]]] for rank in group})
    return [_as_typed(step, arrays_of) for arrays_of in results.values()]


def _context(step: OpStep) -> np.ndarray:
    """What stands between data and token; the program may not read it."""
    assert isinstance(step.node.type, TupleType), step.node.name
    kind = step.node.type.elements[1]
    assert isinstance(kind, ArrayType), step.node.name
    return np.zeros(kind.shape, kind.dtype.numpy)


def _send(step: OpStep) -> list[Value]:
    """The recv that it belongs to does the work."""
    return [(data, _context(step), token) for data, token in step.operands]


def _recv(step: OpStep) -> list[Value]:
    """Its second operand is what is sent."""
    data = [operands[1] for operands in step.operands]
    arrays = {rank: leaves(value) for rank, value in zip(step.ranks, data, strict=True)}
    return [
        (tuple(moved) if isinstance(value, tuple) else moved[0], _context(step), operands[0])
        for value, moved, operands in zip(data, _moved(step, arrays), step.operands, strict=True)
    ]


TRANSFERS: Mapping[str, Meaning] = {
    "send": _send,
    "recv": _recv,
    "send-done": lambda step: [given[0][2] for given in step.operands],
    "recv-done": lambda step: [(given[0][0], given[0][2]) for given in step.operands],
}
"""What is sent is received where the pairs say so."""

COLLECTIVES: Mapping[str, Meaning] = {
    "all-reduce": _each_operand(_all_reduce, may_have_global_ids=True),
    "all-gather": _each_operand(_all_gather, may_have_global_ids=True),
    "reduce-scatter": _each_operand(_reduce_scatter, may_have_global_ids=True),
    "all-to-all": _all_to_all_of_arrays_or_tuples,
    "collective-permute": _collective_permute,
    "collective-broadcast": _broadcast,
}
"""What each collective makes of the operands of all ranks."""


def _reduced(step: OpStep, members: Sequence[np.ndarray]) -> np.ndarray:
    """Folded in the order of the group; an average is rounded once, behind its division."""
    name = str(step.node.attributes.get("reduction", "average"))
    dtype = dtype_of(members[0])
    if step.node.op in AVERAGING or name == "average":
        total = working(members[0])
        for array in members[1:]:
            total = np.asarray(total + working(array))
        return narrowed(np.asarray(total / total.dtype.type(len(members))), dtype)
    node = attrs.evolve(step.node, type=ArrayType(dtype, members[0].shape), attributes={})
    folded = members[0]
    for array in members[1:]:
        folded = ELEMENTWISE[name](node, (folded, array))
    return folded


def _average(step: OpStep, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    total = _reduced(step, members)
    return [total.copy() for _ in members]


def _average_scattered(step: OpStep, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    return _split(step, _reduced(step, members), len(members))


def _at_root(step: OpStep, result: np.ndarray, members: int) -> list[np.ndarray]:
    """The result at the root, zeros elsewhere."""
    root = step.node.integer("root")
    return [result.copy() if k == root else np.zeros_like(result) for k in range(members)]


def _reduce(step: OpStep, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    return _at_root(step, _reduced(step, members), len(members))


def _gather(step: OpStep, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    gathered = np.concatenate(members, axis=_dimension(step))
    return _at_root(step, gathered, len(members))


def _scatter(step: OpStep, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    return _split(step, members[step.node.integer("root")], len(members))


def _barrier(step: OpStep) -> list[Value]:
    """Gives its operands; here every rank does every step at once."""
    return [operands[0] if len(operands) == 1 else tuple(operands) for operands in step.operands]


NCC_COLLECTIVES: Mapping[str, Meaning] = {
    "ncc.avg_all_reduce": _each_operand(_average, may_have_global_ids=True),
    "ncc.avg_reduce_scatter": _each_operand(_average_scattered, may_have_global_ids=True),
    "ncc.reduce": _each_operand(_reduce, may_have_global_ids=True),
    "ncc.gather": _each_operand(_gather, may_have_global_ids=True),
    "ncc.scatter": _each_operand(_scatter, may_have_global_ids=True),
    "ncc.barrier": _barrier,
}
"""What each of them makes of the operands of all ranks."""


Arrays: TypeAlias = Sequence[tuple[np.ndarray, ...]]
"""The operands of each member of a group."""

InGroupByCounts: TypeAlias = Callable[[OpStep, Arrays], list[np.ndarray]]


def _in_groups_by_counts(in_group: InGroupByCounts, *, may_have_global_ids: bool) -> Meaning:
    def meaning(step: OpStep) -> list[Value]:
        position = {rank: k for k, rank in enumerate(step.ranks)}
        results: list[Value] = [()] * len(step.ranks)
        for group in _present_groups(step, may_have_global_ids=may_have_global_ids):
            group_results = in_group(step, [step.arrays(position[rank]) for rank in group])
            for rank, result in zip(group, group_results, strict=True):
                results[position[rank]] = result
        return results

    return meaning


def _rows(array: np.ndarray, first: int, count: int, what: str) -> np.ndarray:
    """A view of some rows; ValueError if there are no such rows."""
    if first < 0 or count < 0 or first + count > len(array):
        raise ValueError(f"{what}: rows {first}..{first + count} of {len(array)}")
    return array[first : first + count]


def _ragged_all_to_all(step: OpStep, members: Arrays) -> list[np.ndarray]:
    """Update u of member s for member d is entry d * updates + u of the vectors of s.

    Operands are input, output, input offsets, send sizes, output offsets, receive sizes.
    """
    results = [member[1].copy() for member in members]
    updates = len(members[0][2]) // len(members)
    for source, (operand, _, *vectors) in enumerate(members):
        starts, sizes, to_starts, _ = ([int(number) for number in vector] for vector in vectors)
        for entry, (start, size, to_start) in enumerate(zip(starts, sizes, to_starts, strict=True)):
            target, update = divmod(entry, updates)
            expected = int(members[target][5][source * updates + update])
            if expected != size:
                raise ValueError(f"{step.node.name}: {size} rows for who expects {expected}")
            rows = _rows(operand, start, size, step.node.name)
            _rows(results[target], to_start, size, step.node.name)[...] = rows
    return results


def _exchanged(step: OpStep, members: Arrays) -> list[np.ndarray]:
    """Member s sends to d what column d of its metadata says.

    It lands at slot s of d, or where row 3 of the metadata of d says in column s.
    """
    results = [member[1].copy() for member in members]
    has_offsets = len(members[0][2]) > 3
    slot = len(results[0]) // (1 if has_offsets else len(members))
    for source, (operand, _, metadata) in enumerate(members):
        counts, starts = metadata[:2].astype(np.int64).tolist()
        for target, (count, start) in enumerate(zip(counts, starts, strict=True)):
            expected = members[target][2][:, source].astype(np.int64).tolist()
            if not 0 <= count <= slot or expected[2] != count:
                raise ValueError(f"{step.node.name}: {count} rows for a slot of {slot}")
            to_start = expected[3] if has_offsets else source * slot
            rows = _rows(operand, start, count, step.node.name)
            _rows(results[target], to_start, count, step.node.name)[...] = rows
    return results


def _gathered(step: OpStep, members: Arrays) -> list[np.ndarray]:
    """The same where every member sends the same rows to all."""
    for *_, metadata in members:
        if (metadata[:2] != metadata[:2, :1]).any():
            raise ValueError(f"{step.node.name}: not the same rows for all")
    return _exchanged(step, members)


def _reduced_and_scattered(step: OpStep, members: Arrays) -> list[np.ndarray]:
    """Chunk j, of as many rows on every member, is reduced for member j."""
    results = []
    for target, (_, output, metadata) in enumerate(members):
        counts = {int(member[2][0][target]) for member in members} | {*map(int, metadata[2])}
        if len(counts) > 1:
            raise ValueError(f"{step.node.name}: chunks of {sorted(counts)} rows are joined")
        (count,) = counts
        chunks = [
            _rows(member[0], int(member[2][1][target]), count, step.node.name) for member in members
        ]
        result = output.copy()
        _rows(result, 0, count, step.node.name)[...] = _reduced(step, chunks)
        results.append(result)
    return results


VARIABLE_SIZE: Mapping[str, Meaning] = {
    "ragged-all-to-all": _in_groups_by_counts(_ragged_all_to_all, may_have_global_ids=False),
    "ncc.all_gather_v": _in_groups_by_counts(_gathered, may_have_global_ids=True),
    "ncc.all_to_all_v": _in_groups_by_counts(_exchanged, may_have_global_ids=True),
    "ncc.reduce_scatter_v": _in_groups_by_counts(_reduced_and_scattered, may_have_global_ids=True),
}
"""What each of them makes of the operands of all ranks."""
