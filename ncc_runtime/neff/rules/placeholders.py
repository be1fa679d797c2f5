"""Placeholders: groups and pairs, sizes of buffers, reductions, and where results lie."""

from collections import Counter
from collections.abc import Iterator

from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import Program, Tensor
from ncc_runtime.neff.rules.memory import Interval, forbidden_overlaps
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import Groups
from ncc_runtime.neff.shared.reductions import is_defined


def _named(program: Program) -> Iterator[tuple[str, Placeholder]]:
    for number, placeholder in enumerate(program.placeholders):
        yield f"placeholder p{number} ({placeholder.op.value}):", placeholder


def _members(program: Program, placeholder: Placeholder) -> Iterator[tuple[Tensor, Tensor]]:
    """Operand and result of each member; P1 complains if their numbers differ."""
    for operand, result in zip(placeholder.operands, placeholder.results, strict=False):
        yield program.tensors[operand], program.tensors[result]


@rule("neff-P1")
def _members_pair_up(program: Program) -> Iterator[str]:
    for name, placeholder in _named(program):
        operands, results = len(placeholder.operands), len(placeholder.results)
        wants_none = placeholder.op is CollectiveOp.BARRIER
        if operands != results or wants_none != (not operands):
            yield f"{name} {operands} operands and {results} results"
        for tensor in (*placeholder.operands, *placeholder.results):
            dtype = program.tensors[tensor].dtype
            if dtype is not placeholder.dtype:
                yield f"{name} t{tensor} is {dtype.value}, must be {placeholder.dtype.value}"


@rule("neff-P2")
def _reductions_fit(program: Program) -> Iterator[str]:
    for name, placeholder in _named(program):
        reduction = placeholder.reduction
        if (reduction is not None) != placeholder.op.reduces:
            yield f"{name} {'no' if reduction is None else reduction.value} reduction"
        elif reduction and not is_defined(reduction, placeholder.dtype):
            yield f"{name} {reduction.value} is not defined on {placeholder.dtype.value}"


@rule("neff-P3")
def _groups_partition_the_ranks(program: Program) -> Iterator[str]:
    known: dict[tuple[Groups, bool], list[str]] = {}  # many placeholders share their groups
    for name, placeholder in _named(program):
        groups = placeholder.groups
        if placeholder.op is CollectiveOp.PERMUTE:
            if groups:
                yield f"{name} has groups, must have pairs alone"
            continue
        key = (groups, placeholder.op is not CollectiveOp.BROADCAST)
        if key not in known:
            known[key] = [*_no_partition(groups, program.ranks, covers=key[1])]
        yield from (f"{name} {text}" for text in known[key])
        sizes = {len(group) for group in groups}
        if len(sizes) > 1 and not placeholder.op.takes_groups_of_any_sizes:
            yield f"{name} groups have {min(sizes)} to {max(sizes)} ranks, must have equally many"


def _no_partition(groups: Groups, ranks: int, *, covers: bool) -> Iterator[str]:
    """Why groups do not name ranks once, and every rank if they have to cover them."""
    counts = Counter(rank for group in groups for rank in group)
    outside = [rank for rank in counts if not 0 <= rank < ranks]
    repeated = [rank for rank, count in counts.items() if count > 1]
    if outside:
        yield f"rank {outside[0]} is in a group, there are {ranks}"
    elif repeated:
        yield f"rank {repeated[0]} is in the groups {counts[repeated[0]]} times"
    elif covers and len(counts) != ranks:
        missing = next(rank for rank in range(ranks) if rank not in counts)
        yield f"{len(counts)} of {ranks} ranks are in groups, rank {missing} is not"
    if () in groups:
        yield "a group is empty"


@rule("neff-P4")
def _pairs_name_ranks_once(program: Program) -> Iterator[str]:
    for name, placeholder in _named(program):
        if placeholder.op is not CollectiveOp.PERMUTE:
            if placeholder.pairs:
                yield f"{name} has pairs, must have groups alone"
            continue
        for side, role in enumerate(("source", "target")):
            ranks = [pair[side] for pair in placeholder.pairs]
            for rank, count in Counter(ranks).items():
                if not 0 <= rank < program.ranks:
                    yield f"{name} {role} {rank}, there are {program.ranks} ranks"
                if count > 1:
                    yield f"{name} rank {rank} is {role} {count} times"


@rule("neff-P5")
def _sizes_fit(program: Program) -> Iterator[str]:
    for name, placeholder in _named(program):
        size = max(1, len(placeholder.groups[0])) if placeholder.groups else 1
        if placeholder.op.is_counted:
            continue  # P10
        for operand, result in _members(program, placeholder):
            expected = _result_elements(placeholder.op, operand.elements, size)
            if expected is None:
                yield f"{name} {operand.elements} elements do not divide by {size} ranks"
            elif expected != result.elements:
                yield f"{name} result has {result.elements} elements, must have {expected}"


def _result_elements(op: CollectiveOp, elements: int, group_size: int) -> int | None:
    """Elements of a result, or None where chunks would not be whole elements."""
    if op in (CollectiveOp.ALL_GATHER, CollectiveOp.GATHER):
        return elements * group_size
    is_cut = op in (CollectiveOp.REDUCE_SCATTER, CollectiveOp.SCATTER)
    if (is_cut or op is CollectiveOp.ALL_TO_ALL) and elements % group_size:
        return None
    return elements // group_size if is_cut else elements


@rule("neff-P6")
def _results_lie_apart(program: Program) -> Iterator[str]:
    """In place, result k lies where operand k lies; otherwise results overlap nothing.

    Only all-reduce can be in place: elsewhere a chunk may arrive where one is still to be read.
    """
    for name, placeholder in _named(program):
        written = [_interval(program, tensor, True) for tensor in placeholder.results]
        inputs = (*placeholder.operands, *dict.fromkeys(placeholder.counts))
        read = [_interval(program, tensor, False) for tensor in inputs]
        if placeholder.in_place and placeholder.op is not CollectiveOp.ALL_REDUCE:
            yield f"{name} in place, only all-reduce can be"
        elif placeholder.in_place:
            pairs = zip(written, read, strict=False)
            if any((to.start, to.end) != (of.start, of.end) for to, of in pairs):
                yield f"{name} in place, but results do not lie where operands do"
            read = []
        for lower, other in forbidden_overlaps(written + read):
            yield f"{name} {other.name} overlaps {lower.name}"


def _interval(program: Program, tensor: int, is_result: bool) -> Interval:
    start, role = program.address(tensor), "result" if is_result else "operand"
    end = start + program.tensors[tensor].size_bytes
    return Interval(start, end, is_result, f"{role} t{tensor}")


@rule("neff-P9")
def _roots_are_members(program: Program) -> Iterator[str]:
    for name, placeholder in _named(program):
        root = placeholder.root
        if not placeholder.op.is_rooted:
            if root is not None:
                yield f"{name} has a root, must have none"
            continue
        if root is None:
            yield f"{name} has no root"
            continue
        smallest = min((len(group) for group in placeholder.groups), default=0)
        if not 0 <= root < smallest:
            yield f"{name} root {root}, a group has {smallest} members"


@rule("neff-P10")
def _counts_are_tables(program: Program) -> Iterator[str]:
    for name, placeholder in _named(program):
        expected = 0
        if placeholder.op.is_counted:
            expected = 4 if placeholder.op is CollectiveOp.RAGGED_ALL_TO_ALL else 1
        if len(placeholder.counts) != expected:
            yield f"{name} {len(placeholder.counts)} tensors of counts, must be {expected}"
        elif expected:
            if len(placeholder.operands) != 1:
                yield f"{name} {len(placeholder.operands)} operands, must be 1"
            size = max(1, len(placeholder.groups[0])) if placeholder.groups else 1
            yield from (f"{name} {text}" for text in _no_tables(program, placeholder, size))
            for operand, result in _members(program, placeholder):
                rows_of_slots = (CollectiveOp.ALL_GATHER_V, CollectiveOp.ALL_TO_ALL_V)
                if not operand.shape or not result.shape or operand.shape[1:] != result.shape[1:]:
                    yield f"{name} rows of {operand.type_text} are no rows of {result.type_text}"
                elif placeholder.op in rows_of_slots and result.shape[0] % size:
                    rows = result.shape[0]
                    yield f"{name} {rows} rows do not divide into slots for {size} ranks"


def _no_tables(program: Program, placeholder: Placeholder, members: int) -> Iterator[str]:
    """Why tensors are no tables of counts."""
    tables = [program.tensors[tensor] for tensor in placeholder.counts]
    for tensor, table in zip(placeholder.counts, tables, strict=True):
        shape = table.shape
        if placeholder.op is CollectiveOp.RAGGED_ALL_TO_ALL:
            fits = len(shape) == 1 and shape == tables[0].shape
            fits = fits and shape[0] > 0 and shape[0] % members == 0
        else:
            fits = shape == (3, members)
        if not fits or table.dtype not in _NUMBERS:
            yield f"t{tensor} is {table.type_text}, no counts for {members} members"


_NUMBERS = (DType.S32, DType.S64, DType.U32, DType.U64)


RULES = (
    _members_pair_up,
    _reductions_fit,
    _groups_partition_the_ranks,
    _pairs_name_ranks_once,
    _sizes_fit,
    _results_lie_apart,
    _roots_are_members,
    _counts_are_tables,
)
