"""Collectives, over ranks together, as the StableHLO specification states them.

Inside a loop or a branch only some ranks may be there; of each group all or none are.

A rank is the flattened id replica * num_partitions + partition. The members of a group meet in the
order that the group lists them; a reduction folds them in that order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ncc_compiler.ir.collectives import pairs_attribute
from ncc_compiler.ir.graph import Lists
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.folding import combine_of
from ncc_compiler.reference.step import Meaning, Step, Value, leaves
from ncc_runtime.neff.groups import (
    ExplicitGroups,
    GroupMode,
    Groups,
    IotaGroups,
    MeshGroups,
    flattened_groups,
    flattened_pairs,
    group_mode,
)

InGroup: TypeAlias = Callable[[Step, Sequence[np.ndarray]], Sequence[np.ndarray]]
"""One operand of each member of a group, to one result of each member."""


def _mode(step: Step, *, may_have_global_ids: bool) -> GroupMode:
    attributes = step.node.attributes
    global_ids = bool(attributes.get("use_global_device_ids", False))
    return group_mode("channel_id" in attributes, global_ids if may_have_global_ids else None)


def present_groups(step: Step, *, may_have_global_ids: bool) -> Groups:
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


def _groups(step: Step, *, may_have_global_ids: bool) -> Groups:
    """The groups whose ranks are there; every rank must be in one."""
    groups = present_groups(step, may_have_global_ids=may_have_global_ids)
    members = sorted(rank for group in groups for rank in group)
    assert members == list(step.ranks), f"{step.node.name}: groups hold ranks {members}"
    return groups


def _by_rank(step: Step) -> dict[int, tuple[np.ndarray, ...]]:
    """The operands of every rank that is there."""
    return {rank: step.arrays(position) for position, rank in enumerate(step.ranks)}


def dimension_of(step: Step) -> int:
    return step.node.integers("dimensions")[0]


def cut(step: Step, array: np.ndarray, parts: int) -> list[np.ndarray]:
    return np.split(array, parts, axis=dimension_of(step))


def _all_reduce(step: Step, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    combine = combine_of(step, step.ranks[0])
    total = (members[0],)
    for array in members[1:]:
        total = (combine(total, (array,))[0],)
    return [total[0].copy() for _ in members]


def _all_gather(step: Step, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    gathered = np.concatenate(members, axis=dimension_of(step))
    return [gathered.copy() for _ in members]


def _reduce_scatter(step: Step, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    return cut(step, _all_reduce(step, members)[0], len(members))


def _all_to_all(step: Step, members: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Member k gets part k of everybody, in the order of the group."""
    parts = [cut(step, array, len(members)) for array in members]
    return [
        np.concatenate([part[k] for part in parts], axis=dimension_of(step))
        for k in range(len(members))
    ]


def each_operand(in_group: InGroup, *, may_have_global_ids: bool) -> Meaning:
    """A collective that treats each of its operands alike, in every group."""

    def meaning(step: Step) -> list[Value]:
        arrays = _by_rank(step)
        results: dict[int, list[np.ndarray]] = {rank: [] for rank in arrays}
        groups = _groups(step, may_have_global_ids=may_have_global_ids)
        for operand in range(len(arrays[step.ranks[0]])):
            for group in groups:
                found = in_group(step, [arrays[rank][operand] for rank in group])
                for rank, result in zip(group, found, strict=True):
                    results[rank].append(result)
        return [_as_typed(step, found) for found in results.values()]

    return meaning


def _as_typed(step: Step, results: Sequence[np.ndarray]) -> Value:
    return tuple(results) if isinstance(step.node.type, TupleType) else results[0]


def _all_to_all_of_arrays_or_tuples(step: Step) -> list[Value]:
    """With `dimensions` an array is cut; without, member k gets operand k of everybody."""
    if "dimensions" in step.node.attributes:
        return each_operand(_all_to_all, may_have_global_ids=False)(step)
    arrays = _by_rank(step)
    results: dict[int, Value] = dict.fromkeys(arrays, ())
    for group in _groups(step, may_have_global_ids=False):
        for k, rank in enumerate(group):
            results[rank] = tuple(arrays[member][k] for member in group)
    return list(results.values())


def _collective_permute(step: Step) -> list[Value]:
    if "slice_sizes" in step.node.attributes:
        return _permute_of_slices(step)
    return [_as_typed(step, found) for found in _moved(step, _by_rank(step))]


def _permute_of_slices(step: Step) -> list[Value]:
    """A target writes what its source reads, each at its own starts; others keep their output."""
    sizes, module = step.node.attributes["slice_sizes"], step.module
    pairs = pairs_attribute(step.node)
    assert isinstance(sizes, Lists), step.node.name
    assert pairs is not None, step.node.name
    mode = _mode(step, may_have_global_ids=False)
    given = dict(zip(step.ranks, step.operands, strict=True))
    results = {}
    for rank, (_, output, _, _) in given.items():
        results[rank] = [array.copy() for array in leaves(output)]
    for source, target in flattened_pairs(
        pairs.pairs, mode, module.replica_count, module.num_partitions
    ):
        if source not in given:
            continue
        read, _, from_starts, _ = given[source]
        _, _, _, to_starts = given[target]
        of_slices = iter(sizes.lists)
        several = isinstance(read, tuple)
        for k, array in enumerate(leaves(read)):
            there, here = (starts[k] if several else starts for starts in (from_starts, to_starts))
            for one, other in zip(_each_slice(there), _each_slice(here), strict=True):
                size = next(of_slices)
                written = results[target][k]
                written[_window(other, size, written)] = array[_window(one, size, array)]
    return [
        tuple(found) if isinstance(given[rank][1], tuple) else found[0]
        for rank, found in results.items()
    ]


def _each_slice(starts: Value) -> list[tuple[int, ...]]:
    """Starts of one slice, or of several, as numbers."""
    assert isinstance(starts, tuple), starts
    each = starts if starts and isinstance(starts[0], tuple) else (starts,)
    return [tuple(int(start) for start in leaves(one)) for one in each]


def _window(starts: Sequence[int], sizes: Sequence[int], array: np.ndarray) -> tuple[slice, ...]:
    """A slice of an array, moved as little as needed to lie inside."""
    begins = [
        min(max(start, 0), limit - size)
        for start, size, limit in zip(starts, sizes, array.shape, strict=True)
    ]
    return tuple(slice(start, start + size) for start, size in zip(begins, sizes, strict=True))


def _moved(step: Step, arrays: Mapping[int, Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """Arrays of every rank along the pairs of the step; a rank that is no target gets zeros."""
    module, pairs = step.module, pairs_attribute(step.node)
    assert pairs is not None, step.node.name
    mode = _mode(step, may_have_global_ids=False)
    results = {rank: [np.zeros_like(x) for x in found] for rank, found in arrays.items()}
    for source, target in flattened_pairs(
        pairs.pairs, mode, module.replica_count, module.num_partitions
    ):
        if source in arrays:
            results[target] = [array.copy() for array in arrays[source]]
    return list(results.values())


def _broadcast(step: Step) -> list[Value]:
    """What the first of each group has; zeros for who is in no group."""
    arrays = _by_rank(step)
    results = {rank: [np.zeros_like(x) for x in found] for rank, found in arrays.items()}
    for group in present_groups(step, may_have_global_ids=False):
        results.update({rank: [x.copy() for x in arrays[group[0]]] for rank in group})
    return [_as_typed(step, found) for found in results.values()]


def _context(step: Step) -> np.ndarray:
    """What stands between data and token; what it holds is nobody's to read."""
    assert isinstance(step.node.type, TupleType), step.node.name
    kind = step.node.type.elements[1]
    assert isinstance(kind, ArrayType), step.node.name
    return np.zeros(kind.shape, kind.dtype.numpy)


def _send(step: Step) -> list[Value]:
    """The recv that it belongs to does the work."""
    return [(data, _context(step), token) for data, token in step.operands]


def _recv(step: Step) -> list[Value]:
    """Its second operand is what is sent."""
    data = [given[1] for given in step.operands]
    arrays = {rank: leaves(value) for rank, value in zip(step.ranks, data, strict=True)}
    return [
        (tuple(found) if isinstance(value, tuple) else found[0], _context(step), given[0])
        for value, found, given in zip(data, _moved(step, arrays), step.operands, strict=True)
    ]


TRANSFERS: Mapping[str, Meaning] = {
    "send": _send,
    "recv": _recv,
    "send-done": lambda step: [given[0][2] for given in step.operands],
    "recv-done": lambda step: [(given[0][0], given[0][2]) for given in step.operands],
}
"""What is sent is received where the pairs say so."""

COLLECTIVES: Mapping[str, Meaning] = {
    "all-reduce": each_operand(_all_reduce, may_have_global_ids=True),
    "all-gather": each_operand(_all_gather, may_have_global_ids=True),
    "reduce-scatter": each_operand(_reduce_scatter, may_have_global_ids=True),
    "all-to-all": _all_to_all_of_arrays_or_tuples,
    "collective-permute": _collective_permute,
    "collective-broadcast": _broadcast,
}
"""What each collective makes of the operands of all ranks."""
