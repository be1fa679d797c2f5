"""Result types of collectives, and the checks of their groups, pairs and reductions.

First noun collectives share (groups, sizes, the dimension that is divided, the reduction), then
HLO's own, then those that HLO lacks (averages, rooted ones, barriers), then the variable-size (v-)
collectives, whose counts are arrays of the program. The sentences of the rules stand in
`op_tables/collectives.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from ncc_compiler.ir.collectives import (
    REGION_REDUCTIONS,
    SliceSizesError,
    group_size,
    group_sizes,
    mode_of,
    moved_slices,
    moves_slices,
    reduction_by_name,
    reduction_of,
    written_groups,
    written_pairs,
)
from ncc_compiler.ir.op_tables.collectives import (
    AVERAGES,
    CHANNEL_FOR_GLOBAL_IDS,
    COUNTS_ARE_VECTORS,
    DIVIDES,
    EQUAL_SIZES,
    EVERYBODY,
    IDS_EXIST,
    INPUT_AND_OUTPUT,
    KNOWN_REDUCTION,
    KNOWN_REGION,
    METADATA,
    METADATA_WITH_OFFSETS,
    NO_EMPTY_GROUP,
    ONE_DIMENSION,
    ONE_KIND_OF_IDS,
    ONE_LAYOUT,
    OPERAND_FOR_EACH,
    PAIRS_EXIST,
    RANKS_ONCE,
    ROOT_IS_MEMBER,
    SCALAR_REGION,
    SIZES_OF_SLICES,
    SLICE_SIZES,
    SLOTS,
    SLOTS_OR_OFFSETS,
    SOURCES_ONCE,
    STARTS_OF_SLICES,
    TARGETS_ONCE,
    UPDATES_FOR_EACH,
)
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.rules import Number, Place
from ncc_compiler.ir.type_rules.context import (
    Inference,
    InferenceContext,
    TypeRule,
    are_distinct_dimensions,
    one_or_tuple,
    parameter_types,
    result_type,
)
from ncc_compiler.ir.types import ArrayType, TokenType, TupleType, element_type
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import ExplicitGroups, GroupMode
from ncc_runtime.neff.shared.reductions import Reduction, is_defined


def id_space(ctx: InferenceContext) -> tuple[str, int]:
    """What ids count, as a noun, and the number of ids; ValueError as in `mode_of`."""
    module, mode = ctx.module, mode_of(ctx.node)
    noun, count = "replica", module.replica_count
    if mode is GroupMode.FLATTENED_ID:
        count = module.ranks
    elif mode is GroupMode.CROSS_PARTITION:
        noun, count = "partition", module.num_partitions
    return noun if count < module.ranks else "rank", count


def check_groups(ctx: InferenceContext) -> Inference:
    """The rules that collectives with groups share; EVERYBODY is checked where the op has it."""
    try:
        noun, count = id_space(ctx)
    except ValueError as error:
        key = "use_global_device_ids"
        yield ctx.complain_of(CHANNEL_FOR_GLOBAL_IDS, str(error), key, "add channel_id=1")
        return None
    groups = written_groups(ctx.node)
    times = Counter(rank for group in groups for rank in group)
    for rank in sorted(rank for rank, repeats in times.items() if repeats > 1):
        fact = f"{noun} {rank} appears {times[rank]} times in the replica groups"
        yield ctx.complain_of(RANKS_ONCE, fact, _place_in_groups(ctx, rank, 1))
    for rank in sorted(rank for rank in times if rank >= count):
        fact = f"{noun} {rank} is out of range: there are {count}"
        place, hint = _place_in_groups(ctx, rank, 0), range_hint(ctx, noun, rank)
        yield ctx.complain_of(IDS_EXIST, fact, place, hint)
    is_valid = all(repeats == 1 and rank < count for rank, repeats in times.items())
    missing = [rank for rank in range(count) if rank not in times] if groups and is_valid else []
    if missing and EVERYBODY in OPS[ctx.node.op].rules:
        verb = "is" if len(missing) == 1 else "are"
        fact = f"{noun} {_abbreviated(missing)} {verb} in no replica group"
        hint = "name everybody, or leave the groups out to mean everybody"
        yield ctx.complain_of(EVERYBODY, fact, "replica_groups", hint)
    for position, group in enumerate(groups):
        if not group:
            fact = f"replica group {position} is empty"
            yield ctx.complain_of(NO_EMPTY_GROUP, fact, "replica_groups")
    return None


def _place_in_groups(ctx: InferenceContext, rank: int, occurrence: int) -> Place:
    """Where the groups name a rank; the whole attribute if they do not spell it out."""
    groups = ctx.attribute("replica_groups")
    if not isinstance(groups, ExplicitGroups):
        return "replica_groups"
    members = [member for group in groups.groups for member in group]
    return _occurrence("replica_groups", members, rank, occurrence)


def _occurrence(key: str, numbers: Sequence[int], member: int, occurrence: int) -> Number:
    """The place of the k-th occurrence (from 0) of a number in an attribute's list of numbers."""
    positions = [position for position, number in enumerate(numbers) if number == member]
    return Number(key, positions[occurrence])


def range_hint(ctx: InferenceContext, noun: str, rank: int) -> str:
    """Says what the ids count, if the id may have been meant as a rank."""
    if noun == "rank" or rank >= ctx.module.ranks:
        return ""
    if noun == "partition":
        return "with a channel_id the ids are partition numbers"
    missing = "a channel_id of 1 or more"
    if OPS[ctx.node.op].attribute("use_global_device_ids") is not None:
        missing = "use_global_device_ids=true and channel_id"
    return f"without {missing} the ids are replica numbers"


def _abbreviated(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")


def check_sizes(ctx: InferenceContext) -> Inference:
    """The rule that groups have equal sizes; `common_size` is the size if it holds."""
    sizes = [len(group) for group in written_groups(ctx.node)]
    if len(set(sizes)) > 1:
        fact = (
            f"{ctx.node.op} needs groups of one size, these have {_abbreviated(sorted(set(sizes)))}"
        )
        yield ctx.complain_of(EQUAL_SIZES, fact, "replica_groups")
    return None


def common_size(ctx: InferenceContext) -> int:
    """Members of each group, or 0 if sizes differ or the ids have no meaning."""
    if len({len(group) for group in written_groups(ctx.node)}) > 1:
        return 0
    try:
        return group_size(ctx.module, ctx.node)
    except ValueError:
        return 0


def _check_dimension(ctx: InferenceContext) -> Inference:
    for position, kind in enumerate(ctx.arrays):
        dimensions = ctx.node.integers("dimensions")
        if len(dimensions) != 1 or not are_distinct_dimensions(dimensions, kind.rank):
            named = ", ".join(map(str, dimensions)) or "none"
            fact = f"dimension {named} of operand {position} is out of range: it is {kind}"
            hint = f"one of 0 to {kind.rank - 1}" if kind.rank else "a scalar has no dimension"
            place: Place = Number("dimensions", 0) if len(dimensions) == 1 else "dimensions"
            yield ctx.complain_of(ONE_DIMENSION, fact, place, hint)
    return None


def scaled_along_dimension(ctx: InferenceContext, times: int, parts: int) -> Inference:
    """The operands with the dimension of `dimensions` multiplied and divided, after checks."""
    is_valid = True
    for complaint in _check_dimension(ctx):
        is_valid = False
        yield complaint
    if not is_valid or not times or not parts:
        return None
    dimension = ctx.node.integers("dimensions")[0]
    for position, kind in enumerate(ctx.arrays):
        if DIVIDES in OPS[ctx.node.op].rules and kind.shape[dimension] % max(times, parts):
            fact = (
                f"dimension {dimension} of {kind} does not divide by the "
                f"{max(times, parts)} members of a group"
            )
            yield ctx.complain_of(DIVIDES, fact, position)
            is_valid = False
    if not is_valid:
        return None
    results = []
    for kind in ctx.arrays:
        size = kind.shape[dimension] * times // parts
        shape = (*kind.shape[:dimension], size, *kind.shape[dimension + 1 :])
        results.append(ArrayType(kind.dtype, shape))
    return one_or_tuple(results)


def _check_region(ctx: InferenceContext) -> Inference:
    """`to_apply` is a reduction of scalars, and one that collectives perform."""
    callee = ctx.callee()
    if callee is None:
        return None
    parameters, result = parameter_types(callee), result_type(callee)
    for kind in ctx.arrays:
        scalar = ArrayType(kind.dtype)
        if parameters != [scalar, scalar] or result != scalar:
            shown = ", ".join(map(str, parameters))
            fact = f"%{callee.name} takes ({shown}) and returns {result}, the operands are {kind}"
            hint = f"it should take two {scalar} and return one"
            if len({other.dtype for other in ctx.arrays}) > 1:
                hint = "write one collective for each element type"
            yield ctx.complain_of(SCALAR_REGION, fact, "to_apply", hint)
            return None
    if reduction_of(callee) is None:
        known = ", ".join(reduction.value for reduction in REGION_REDUCTIONS)
        fact = f"%{callee.name} is no reduction that a collective performs"
        hint = f"one of {known} on the two parameters"
        yield ctx.complain_of(KNOWN_REGION, fact, "to_apply", hint)
    return None


def _all_reduce(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    yield from _check_region(ctx)
    return one_or_tuple(ctx.operands)


def _all_gather(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    yield from check_sizes(ctx)
    return (yield from scaled_along_dimension(ctx, common_size(ctx), 1))


def _reduce_scatter(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    yield from _check_region(ctx)
    yield from check_sizes(ctx)
    return (yield from scaled_along_dimension(ctx, 1, common_size(ctx)))


def _all_to_all(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    yield from check_sizes(ctx)
    size = common_size(ctx)
    if "dimensions" in ctx.node.attributes:
        return (yield from scaled_along_dimension(ctx, size, size))
    first = ctx.arrays[0]
    if size and len(ctx.operands) != size:
        fact = f"{len(ctx.operands)} operands for groups of {size}"
        hint = "or cut one operand by dimensions={d}"
        yield ctx.complain_of(OPERAND_FOR_EACH, fact, hint=hint)
    for position, kind in enumerate(ctx.arrays):
        if kind != first:
            fact = f"operands differ: {first} and {kind}"
            yield ctx.complain_of(OPERAND_FOR_EACH, fact, position)
    return TupleType(ctx.operands)


def _collective_permute(ctx: InferenceContext) -> Inference:
    noun, count = id_space(ctx)
    pairs = written_pairs(ctx.node)
    for rule, end, side in ((SOURCES_ONCE, "source", 0), (TARGETS_ONCE, "target", 1)):
        times = Counter(pair[side] for pair in pairs)
        for rank in sorted(rank for rank, repeats in times.items() if repeats > 1):
            fact = f"{noun} {rank} is the {end} of {times[rank]} pairs"
            place = _occurrence("source_target_pairs", [pair[side] for pair in pairs], rank, 1)
            # the text has two numbers for each pair
            yield ctx.complain_of(rule, fact, Number(place.key, 2 * place.position + side))
    ids = [rank for pair in pairs for rank in pair]
    for rank in sorted({rank for rank in ids if rank >= count}):
        fact = f"{noun} {rank} is out of range: there are {count}"
        place = _occurrence("source_target_pairs", ids, rank, 0)
        yield ctx.complain_of(PAIRS_EXIST, fact, place, range_hint(ctx, noun, rank))
    if not moves_slices(ctx.node):
        return one_or_tuple(ctx.operands)
    return (yield from _permuted_slices(ctx))


def _permuted_slices(ctx: InferenceContext) -> Inference:
    """The rules of a permute that moves slices of its input into its output."""
    if len(ctx.operands) != 4:
        fact = f"{len(ctx.operands)} operands with slice_sizes"
        hint = "write (input, output, input starts, output starts)"
        yield ctx.complain_of(INPUT_AND_OUTPUT, fact, hint=hint)
        return None
    buffers = [
        kind.elements if isinstance(kind, TupleType) else (kind,) for kind in ctx.operands[:2]
    ]
    if (
        len(buffers[0]) != len(buffers[1])
        or not buffers[0]
        or not all(
            isinstance(source, ArrayType)
            and isinstance(target, ArrayType)
            and source.dtype == target.dtype
            and source.rank == target.rank
            for source, target in zip(*buffers, strict=False)
        )
        or isinstance(ctx.operands[0], TupleType) != isinstance(ctx.operands[1], TupleType)
    ):
        fact = f"the input is {ctx.operands[0]}, the output {ctx.operands[1]}"
        yield ctx.complain_of(INPUT_AND_OUTPUT, fact, 1)
        return None
    try:
        slices = moved_slices(ctx.node, ctx.operands)
    except SliceSizesError as error:
        yield ctx.complain_of(SIZES_OF_SLICES, str(error), SLICE_SIZES)
        return None
    except ValueError as error:
        yield ctx.complain_of(STARTS_OF_SLICES, str(error), 2)
        return None
    for moved in slices:
        for position in (0, 1):  # its place in the input, then in the output
            kind = buffers[position][moved.array or 0]
            starts = element_type(ctx.operands[2 + position], moved.starts)
            assert isinstance(kind, ArrayType)
            assert isinstance(starts, TupleType)
            if len(starts.elements) != kind.rank:
                fact = f"starts of a slice of {kind} are {starts}"
                hint = "one integer for each dimension"
                yield ctx.complain_of(STARTS_OF_SLICES, fact, 2 + position, hint)
            elif len(moved.sizes) != kind.rank or any(
                size > limit for size, limit in zip(moved.sizes, kind.shape, strict=True)
            ):
                sizes = ",".join(map(str, moved.sizes))
                fact = f"a slice of {{{sizes}}} does not fit in {kind}"
                yield ctx.complain_of(SIZES_OF_SLICES, fact, SLICE_SIZES)
                break
    return ctx.operands[1]


def _broadcast(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    return one_or_tuple(ctx.operands)


COLLECTIVE_RULES: Mapping[str, TypeRule] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "collective-permute": _collective_permute,
    "collective-broadcast": _broadcast,
}


def _check_averages(ctx: InferenceContext) -> Inference:
    for position, kind in enumerate(ctx.arrays):
        if not is_defined(Reduction.AVERAGE, kind.dtype):
            hint = "convert the operand, or sum and divide as is meant"
            yield ctx.complain_of(AVERAGES, f"{kind} has no average", position, hint)
    return None


def _avg_all_reduce(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    yield from _check_averages(ctx)
    return one_or_tuple(ctx.operands)


def _avg_reduce_scatter(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    yield from _check_averages(ctx)
    yield from check_sizes(ctx)
    return (yield from scaled_along_dimension(ctx, 1, common_size(ctx)))


def _check_root(ctx: InferenceContext) -> Inference:
    """The rule of the root, if the ids of the groups have a meaning."""
    root, sizes = ctx.node.integer("root"), group_sizes(ctx.module, ctx.node)
    if sizes and not 0 <= root < min(sizes):
        fact = f"root is {root}, a group has {min(sizes)} members"
        hint = "it counts the members of a group from 0, in the order of the group"
        yield ctx.complain_of(ROOT_IS_MEMBER, fact, "root", hint)
    return None


def _reduce(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    yield from _check_named_reduction(ctx, ctx.arrays)
    yield from _check_root(ctx)
    return one_or_tuple(ctx.operands)


def _check_named_reduction(ctx: InferenceContext, kinds: Sequence[ArrayType]) -> Inference:
    """`reduction` names one that is defined on the elements of these arrays."""
    for kind in kinds:
        try:
            named = reduction_by_name(ctx.node, kind.dtype)
        except ValueError:
            known = ", ".join(reduction.value for reduction in Reduction)
            fact = f"{ctx.attribute('reduction')} is no reduction"
            yield ctx.complain_of(KNOWN_REDUCTION, fact, "reduction", f"one of {known}")
            return None
        if named is None or not is_defined(named, kind.dtype):
            fact = f"{ctx.attribute('reduction')} is not defined on {kind.dtype.value}"
            yield ctx.complain_of(KNOWN_REDUCTION, fact, "reduction")
            return None
    return None


def _gather(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    yield from check_sizes(ctx)
    yield from _check_root(ctx)
    return (yield from scaled_along_dimension(ctx, common_size(ctx), 1))


def _scatter(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    yield from check_sizes(ctx)
    yield from _check_root(ctx)
    return (yield from scaled_along_dimension(ctx, 1, common_size(ctx)))


def _barrier(ctx: InferenceContext) -> Inference:
    yield from check_groups(ctx)
    return one_or_tuple(ctx.operands) if ctx.operands else TokenType()


NCC_RULES: Mapping[str, TypeRule] = {
    "ncc.avg_all_reduce": _avg_all_reduce,
    "ncc.avg_reduce_scatter": _avg_reduce_scatter,
    "ncc.reduce": _reduce,
    "ncc.gather": _gather,
    "ncc.scatter": _scatter,
    "ncc.barrier": _barrier,
}
"""The rules of collectives that are custom calls in a text."""


METADATA_ROWS = 3
"""Send counts, send offsets, receive counts; one column for each member."""

_COUNT_DTYPES = (DType.S32, DType.S64, DType.U32, DType.U64)
_METADATA_DTYPES = (DType.U32, DType.S32)


def _check_layout(ctx: InferenceContext) -> Inference:
    """Operand and output have rows of equal type. The result is the output with rows replaced."""
    operand, output = ctx.arrays[:2]
    if not operand.shape or not output.shape:
        place = 0 if not operand.shape else 1
        yield ctx.complain_of(ONE_LAYOUT, f"operand {place} is a scalar: it has no rows", place)
    elif (operand.dtype, operand.shape[1:]) != (output.dtype, output.shape[1:]):
        fact = f"rows of operand 0, {operand}, are not rows of operand 1, {output}"
        yield ctx.complain_of(ONE_LAYOUT, fact, 1)
    return output


def _variable_size(*checks: TypeRule) -> TypeRule:
    """The checks that all variable-size collectives share, then the given ones."""

    def rule(ctx: InferenceContext) -> Inference:
        yield from check_groups(ctx)
        yield from check_sizes(ctx)
        output = yield from _check_layout(ctx)
        for check in checks:
            yield from check(ctx)
        return output

    return rule


def _check_ragged_operands(ctx: InferenceContext) -> Inference:
    """Offsets and sizes of a ragged all-to-all."""
    first = ctx.arrays[2]
    for position, kind in enumerate(ctx.arrays[2:], 2):
        if kind.dtype not in _COUNT_DTYPES or kind.rank != 1:
            yield ctx.complain_of(COUNTS_ARE_VECTORS, f"operand {position} is {kind}", position)
        elif kind.shape != first.shape:
            fact = f"operand {position} is {kind}, operand 2 is {first}"
            yield ctx.complain_of(COUNTS_ARE_VECTORS, fact, position)
    members = common_size(ctx)
    if members and first.rank == 1 and (first.shape[0] % members or not first.shape[0]):
        fact = f"{first.shape[0]} entries do not divide by the {members} members of a group"
        yield ctx.complain_of(UPDATES_FOR_EACH, fact, 2)
    return None


def has_receive_offsets(metadata: ArrayType) -> bool:
    """Whether a fourth row says where the receiver wants rows to land."""
    return metadata.rank == 2 and metadata.shape[0] == METADATA_ROWS + 1


def _check_metadata(ctx: InferenceContext) -> Inference:
    kind = ctx.arrays[2]
    expected = f"u32[{METADATA_ROWS},{_columns(ctx)}]"
    if kind.dtype not in _METADATA_DTYPES or kind.shape != (METADATA_ROWS, _columns(ctx)):
        hint = "receive offsets are for ncc.all_to_all_v: here rows land at a slot"
        hint = hint if has_receive_offsets(kind) else ""
        yield ctx.complain_of(METADATA, f"operand 2 is {kind}, it should be {expected}", 2, hint)
    return None


def _columns(ctx: InferenceContext) -> int:
    """The columns that metadata must have: one for each member, if the groups are valid."""
    kind = ctx.arrays[2]
    return common_size(ctx) or (kind.shape[1] if kind.rank == 2 else 0)


def _check_metadata_with_offsets(ctx: InferenceContext) -> Inference:
    kind, rows = ctx.arrays[2], METADATA_ROWS + has_receive_offsets(ctx.arrays[2])
    if kind.dtype not in _METADATA_DTYPES or kind.shape != (rows, _columns(ctx)):
        fact = f"operand 2 is {kind}, it should be u32[{rows},{_columns(ctx)}]"
        yield ctx.complain_of(METADATA_WITH_OFFSETS, fact, 2)
    replicas, partitions = ctx.module.replica_count, ctx.module.num_partitions
    if has_receive_offsets(kind) and replicas > 1 and partitions > 1:
        fact = f"operand 2 is {kind}, there are {replicas} replicas of {partitions} partitions"
        hint = "leave receive offsets out, and move rows from the slots"
        yield ctx.complain_of(ONE_KIND_OF_IDS, fact, 2, hint)
    return None


def _check_slots(rule: str) -> TypeRule:
    """The output divides into one slot for each member."""

    def check(ctx: InferenceContext) -> Inference:
        output, members = ctx.arrays[1], common_size(ctx)
        if members and output.shape and output.shape[0] % members:
            fact = f"{output.shape[0]} rows of {output} do not divide by the {members} members"
            yield ctx.complain_of(rule, fact, 1)
        return None

    return check


def _check_slots_without_offsets(ctx: InferenceContext) -> Inference:
    if not has_receive_offsets(ctx.arrays[2]):
        yield from _check_slots(SLOTS_OR_OFFSETS)(ctx)
    return None


def _check_reduction(ctx: InferenceContext) -> Inference:
    return (yield from _check_named_reduction(ctx, ctx.arrays[:1]))


VARIABLE_SIZE_RULES: Mapping[str, TypeRule] = {
    "ragged-all-to-all": _variable_size(_check_ragged_operands),
    "ncc.all_gather_v": _variable_size(_check_metadata, _check_slots(SLOTS)),
    "ncc.all_to_all_v": _variable_size(_check_metadata_with_offsets, _check_slots_without_offsets),
    "ncc.reduce_scatter_v": _variable_size(_check_metadata, _check_reduction),
}
"""The rules of collectives whose sizes are known when they run."""
