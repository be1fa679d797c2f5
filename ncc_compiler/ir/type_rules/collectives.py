"""Result types of collectives, and the rules of their groups, pairs and reductions.

Result types and rules of the collectives that HLO lacks: averages, rooted ones, barriers.

Result types and rules of the collectives that move as many rows as arrays of numbers say.
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
from ncc_compiler.ir.type_rules.facts import (
    Facts,
    Findings,
    Rule,
    are_distinct_dimensions,
    one_or_tuple,
    parameter_types,
    result_type,
)
from ncc_compiler.ir.types import ArrayType, TokenType, TupleType, element_type
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import ExplicitGroups, GroupMode
from ncc_runtime.neff.shared.reductions import Reduction, is_defined


def members(facts: Facts) -> tuple[str, int]:
    """What an id names, and how many of them there are."""
    module, mode = facts.module, mode_of(facts.node)
    what, count = "replica", module.replica_count
    if mode is GroupMode.FLATTENED_ID:
        count = module.ranks
    elif mode is GroupMode.CROSS_PARTITION:
        what, count = "partition", module.num_partitions
    return what if count < module.ranks else "rank", count


def check_groups(facts: Facts) -> Findings:
    """The rules that collectives with groups share; to name everybody is not a rule of each."""
    try:
        what, count = members(facts)
    except ValueError as error:
        key = "use_global_device_ids"
        yield facts.complain_of(CHANNEL_FOR_GLOBAL_IDS, str(error), key, "add channel_id=1")
        return None
    groups = written_groups(facts.node)
    times = Counter(rank for group in groups for rank in group)
    for rank in sorted(rank for rank, found in times.items() if found > 1):
        fact = f"{what} {rank} appears {times[rank]} times in the replica groups"
        yield facts.complain_of(RANKS_ONCE, fact, _in_groups(facts, rank, 1))
    for rank in sorted(rank for rank in times if rank >= count):
        fact = f"{what} {rank} is out of range: there are {count}"
        place, hint = _in_groups(facts, rank, 0), range_hint(facts, what, rank)
        yield facts.complain_of(IDS_EXIST, fact, place, hint)
    is_sound = all(found == 1 and rank < count for rank, found in times.items())
    missing = [rank for rank in range(count) if rank not in times] if groups and is_sound else []
    if missing and EVERYBODY in OPS[facts.node.op].rules:
        fact = f"{what} {_some(missing)} {'is' if len(missing) == 1 else 'are'} in no replica group"
        hint = "name everybody, or leave the groups out to mean everybody"
        yield facts.complain_of(EVERYBODY, fact, "replica_groups", hint)
    for position, group in enumerate(groups):
        if not group:
            fact = f"replica group {position} is empty"
            yield facts.complain_of(NO_EMPTY_GROUP, fact, "replica_groups")
    return None


def _in_groups(facts: Facts, rank: int, occurrence: int) -> Place:
    """Where the groups name a rank; the whole attribute if they do not spell it out."""
    groups = facts.attribute("replica_groups")
    if not isinstance(groups, ExplicitGroups):
        return "replica_groups"
    return _nth(
        "replica_groups", [one for group in groups.groups for one in group], rank, occurrence
    )


def _nth(key: str, numbers: Sequence[int], wanted: int, occurrence: int) -> Number:
    """Where an attribute that lists numbers has an occurrence of one, counted from 0."""
    found = [position for position, number in enumerate(numbers) if number == wanted]
    return Number(key, found[occurrence])


def range_hint(facts: Facts, what: str, rank: int) -> str:
    """What the ids name, where a rank may have been meant."""
    if what == "rank" or rank >= facts.module.ranks:
        return ""
    if what == "partition":
        return "with a channel_id the ids are partition numbers"
    missing = "a channel_id of 1 or more"
    if OPS[facts.node.op].attribute("use_global_device_ids") is not None:
        missing = "use_global_device_ids=true and channel_id"
    return f"without {missing} the ids are replica numbers"


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")


def check_sizes(facts: Facts) -> Findings:
    """The equal-sizes rule; `common_size` gives the size where it holds."""
    sizes = [len(group) for group in written_groups(facts.node)]
    if len(set(sizes)) > 1:
        fact = f"{facts.node.op} needs groups of one size, these have {_some(sorted(set(sizes)))}"
        yield facts.complain_of(EQUAL_SIZES, fact, "replica_groups")
    return None


def common_size(facts: Facts) -> int:
    """Members of a group, or 0 where the groups are not understood."""
    if len({len(group) for group in written_groups(facts.node)}) > 1:
        return 0
    try:
        return group_size(facts.module, facts.node)
    except ValueError:
        return 0


def _dimension(facts: Facts) -> Findings:
    for position, kind in enumerate(facts.arrays):
        dimensions = facts.node.integers("dimensions")
        if len(dimensions) != 1 or not are_distinct_dimensions(dimensions, kind.rank):
            named = ", ".join(map(str, dimensions)) or "none"
            fact = f"dimension {named} of operand {position} is out of range: it is {kind}"
            hint = f"one of 0 to {kind.rank - 1}" if kind.rank else "a scalar has no dimension"
            place: Place = Number("dimensions", 0) if len(dimensions) == 1 else "dimensions"
            yield facts.complain_of(ONE_DIMENSION, fact, place, hint)
    return None


def _scaled(kind: ArrayType, dimension: int, times: int, parts: int) -> ArrayType:
    size = kind.shape[dimension] * times // parts
    return ArrayType(kind.dtype, (*kind.shape[:dimension], size, *kind.shape[dimension + 1 :]))


def along(facts: Facts, times: int, parts: int) -> Findings:
    """Every operand with its dimension multiplied and divided, once that is sound."""
    right = True
    for complaint in _dimension(facts):
        right = False
        yield complaint
    if not right or not times or not parts:
        return None
    dimension = facts.node.integers("dimensions")[0]
    for position, kind in enumerate(facts.arrays):
        if DIVIDES in OPS[facts.node.op].rules and kind.shape[dimension] % max(times, parts):
            fact = (
                f"dimension {dimension} of {kind} does not divide by the "
                f"{max(times, parts)} members of a group"
            )
            yield facts.complain_of(DIVIDES, fact, position)
            right = False
    if not right:
        return None
    return one_or_tuple([_scaled(kind, dimension, times, parts) for kind in facts.arrays])


def _reduction(facts: Facts) -> Findings:
    """Rules 6 and 7 of the collectives that reduce."""
    callee = facts.callee()
    if callee is None:
        return None
    given, result = parameter_types(callee), result_type(callee)
    for kind in facts.arrays:
        scalar = ArrayType(kind.dtype)
        if given != [scalar, scalar] or result != scalar:
            shown = ", ".join(map(str, given))
            fact = f"%{callee.name} takes ({shown}) and returns {result}, the operands are {kind}"
            hint = f"it should take two {scalar} and return one"
            if len({other.dtype for other in facts.arrays}) > 1:
                hint = "write one collective for each element type"
            yield facts.complain_of(SCALAR_REGION, fact, "to_apply", hint)
            return None
    if reduction_of(callee) is None:
        known = ", ".join(reduction.value for reduction in REGION_REDUCTIONS)
        fact = f"%{callee.name} is no reduction that a collective performs"
        hint = f"one of {known} on the two parameters"
        yield facts.complain_of(KNOWN_REGION, fact, "to_apply", hint)
    return None


def _all_reduce(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from _reduction(facts)
    return one_or_tuple(facts.operands)


def _all_gather(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from check_sizes(facts)
    return (yield from along(facts, common_size(facts), 1))


def _reduce_scatter(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from _reduction(facts)
    yield from check_sizes(facts)
    return (yield from along(facts, 1, common_size(facts)))


def _all_to_all(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from check_sizes(facts)
    size = common_size(facts)
    if "dimensions" in facts.node.attributes:
        return (yield from along(facts, size, size))
    first = facts.arrays[0]
    if size and len(facts.operands) != size:
        fact = f"{len(facts.operands)} operands for groups of {size}"
        hint = "or cut one operand by dimensions={d}"
        yield facts.complain_of(OPERAND_FOR_EACH, fact, hint=hint)
    for position, kind in enumerate(facts.arrays):
        if kind != first:
            fact = f"operands differ: {first} and {kind}"
            yield facts.complain_of(OPERAND_FOR_EACH, fact, position)
    return TupleType(facts.operands)


def _collective_permute(facts: Facts) -> Findings:
    what, count = members(facts)
    pairs = written_pairs(facts.node)
    for rule, end, side in ((SOURCES_ONCE, "source", 0), (TARGETS_ONCE, "target", 1)):
        times = Counter(pair[side] for pair in pairs)
        for rank in sorted(rank for rank, found in times.items() if found > 1):
            fact = f"{what} {rank} is the {end} of {times[rank]} pairs"
            second = [pair[side] for pair in pairs]
            place = _nth("source_target_pairs", second, rank, 1)
            yield facts.complain_of(rule, fact, Number(place.key, 2 * place.position + side))
    ids = [rank for pair in pairs for rank in pair]
    for rank in sorted({rank for rank in ids if rank >= count}):
        fact = f"{what} {rank} is out of range: there are {count}"
        place = _nth("source_target_pairs", ids, rank, 0)
        yield facts.complain_of(PAIRS_EXIST, fact, place, range_hint(facts, what, rank))
    if not moves_slices(facts.node):
        return one_or_tuple(facts.operands)
    return (yield from _moved_slices(facts))


def _moved_slices(facts: Facts) -> Findings:
    """The rules of a permute that moves slices of its input into its output."""
    if len(facts.operands) != 4:
        fact = f"{len(facts.operands)} operands with slice_sizes"
        hint = "write (input, output, input starts, output starts)"
        yield facts.complain_of(INPUT_AND_OUTPUT, fact, hint=hint)
        return None
    buffers = [
        kind.elements if isinstance(kind, TupleType) else (kind,) for kind in facts.operands[:2]
    ]
    if (
        len(buffers[0]) != len(buffers[1])
        or not buffers[0]
        or not all(
            isinstance(one, ArrayType)
            and isinstance(other, ArrayType)
            and one.dtype == other.dtype
            and one.rank == other.rank
            for one, other in zip(*buffers, strict=False)
        )
        or isinstance(facts.operands[0], TupleType) != isinstance(facts.operands[1], TupleType)
    ):
        fact = f"the input is {facts.operands[0]}, the output {facts.operands[1]}"
        yield facts.complain_of(INPUT_AND_OUTPUT, fact, 1)
        return None
    try:
        slices = moved_slices(facts.node, facts.operands)
    except SliceSizesError as error:
        yield facts.complain_of(SIZES_OF_SLICES, str(error), SLICE_SIZES)
        return None
    except ValueError as error:
        yield facts.complain_of(STARTS_OF_SLICES, str(error), 2)
        return None
    for one in slices:
        for position in (0, 1):
            kind = buffers[position][one.array or 0]
            starts = element_type(facts.operands[2 + position], one.starts)
            assert isinstance(kind, ArrayType)
            assert isinstance(starts, TupleType)
            if len(starts.elements) != kind.rank:
                fact = f"starts of a slice of {kind} are {starts}"
                hint = "one integer for each dimension"
                yield facts.complain_of(STARTS_OF_SLICES, fact, 2 + position, hint)
            elif len(one.sizes) != kind.rank or any(
                size > limit for size, limit in zip(one.sizes, kind.shape, strict=True)
            ):
                sizes = ",".join(map(str, one.sizes))
                fact = f"a slice of {{{sizes}}} does not fit in {kind}"
                yield facts.complain_of(SIZES_OF_SLICES, fact, SLICE_SIZES)
                break
    return facts.operands[1]


def _broadcast(facts: Facts) -> Findings:
    yield from check_groups(facts)
    return one_or_tuple(facts.operands)


COLLECTIVE_RULES: Mapping[str, Rule] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "collective-permute": _collective_permute,
    "collective-broadcast": _broadcast,
}


def _averages(facts: Facts) -> Findings:
    for position, kind in enumerate(facts.arrays):
        if not is_defined(Reduction.AVERAGE, kind.dtype):
            hint = "convert the operand, or sum and divide as is meant"
            yield facts.complain_of(AVERAGES, f"{kind} has no average", position, hint)
    return None


def _avg_all_reduce(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from _averages(facts)
    return one_or_tuple(facts.operands)


def _avg_reduce_scatter(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from _averages(facts)
    yield from check_sizes(facts)
    return (yield from along(facts, 1, common_size(facts)))


def _root(facts: Facts) -> Findings:
    """The rule of the root, where the groups are understood."""
    root, sizes = facts.node.integer("root"), group_sizes(facts.module, facts.node)
    if sizes and not 0 <= root < min(sizes):
        fact = f"root is {root}, a group has {min(sizes)} members"
        hint = "it counts the members of a group from 0, in the order of the group"
        yield facts.complain_of(ROOT_IS_MEMBER, fact, "root", hint)
    return None


def _reduce(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from named_reduction(facts, facts.arrays)
    yield from _root(facts)
    return one_or_tuple(facts.operands)


def named_reduction(facts: Facts, kinds: Sequence[ArrayType]) -> Findings:
    """The reduction that is named is one, and is defined on the elements of these arrays."""
    for kind in kinds:
        try:
            found = reduction_by_name(facts.node, kind.dtype)
        except ValueError:
            known = ", ".join(reduction.value for reduction in Reduction)
            fact = f"{facts.attribute('reduction')} is no reduction"
            yield facts.complain_of(KNOWN_REDUCTION, fact, "reduction", f"one of {known}")
            return None
        if found is None or not is_defined(found, kind.dtype):
            fact = f"{facts.attribute('reduction')} is not defined on {kind.dtype.value}"
            yield facts.complain_of(KNOWN_REDUCTION, fact, "reduction")
            return None
    return None


def _gather(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from check_sizes(facts)
    yield from _root(facts)
    return (yield from along(facts, common_size(facts), 1))


def _scatter(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from check_sizes(facts)
    yield from _root(facts)
    return (yield from along(facts, 1, common_size(facts)))


def _barrier(facts: Facts) -> Findings:
    yield from check_groups(facts)
    return one_or_tuple(facts.operands) if facts.operands else TokenType()


NCC_RULES: Mapping[str, Rule] = {
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

_NUMBERS = (DType.S32, DType.S64, DType.U32, DType.U64)
_WORDS = (DType.U32, DType.S32)


def _layout(facts: Facts) -> Findings:
    """Operand and output have rows of one kind; the result is the output, with rows replaced."""
    operand, output = facts.arrays[:2]
    if not operand.shape or not output.shape:
        place = 0 if not operand.shape else 1
        yield facts.complain_of(ONE_LAYOUT, f"operand {place} is a scalar: it has no rows", place)
    elif (operand.dtype, operand.shape[1:]) != (output.dtype, output.shape[1:]):
        fact = f"rows of operand 0, {operand}, are not rows of operand 1, {output}"
        yield facts.complain_of(ONE_LAYOUT, fact, 1)
    return output


def _counted(*checks: Rule) -> Rule:
    """What all have in common, then what is checked of each."""

    def rule(facts: Facts) -> Findings:
        yield from check_groups(facts)
        yield from check_sizes(facts)
        output = yield from _layout(facts)
        for check in checks:
            yield from check(facts)
        return output

    return rule


def _tables(facts: Facts) -> Findings:
    """Offsets and sizes of a ragged all-to-all."""
    first = facts.arrays[2]
    for position, kind in enumerate(facts.arrays[2:], 2):
        if kind.dtype not in _NUMBERS or kind.rank != 1:
            yield facts.complain_of(COUNTS_ARE_VECTORS, f"operand {position} is {kind}", position)
        elif kind.shape != first.shape:
            fact = f"operand {position} is {kind}, operand 2 is {first}"
            yield facts.complain_of(COUNTS_ARE_VECTORS, fact, position)
    members = common_size(facts)
    if members and first.rank == 1 and (first.shape[0] % members or not first.shape[0]):
        fact = f"{first.shape[0]} entries do not divide by the {members} members of a group"
        yield facts.complain_of(UPDATES_FOR_EACH, fact, 2)
    return None


def has_receive_offsets(metadata: ArrayType) -> bool:
    """Whether the receivers say where rows land, in a fourth row."""
    return metadata.rank == 2 and metadata.shape[0] == METADATA_ROWS + 1


def _metadata(facts: Facts) -> Findings:
    kind = facts.arrays[2]
    right = f"u32[{METADATA_ROWS},{_columns(facts)}]"
    if kind.dtype not in _WORDS or kind.shape != (METADATA_ROWS, _columns(facts)):
        hint = "receive offsets are for ncc.all_to_all_v: here rows land at a slot"
        hint = hint if has_receive_offsets(kind) else ""
        yield facts.complain_of(METADATA, f"operand 2 is {kind}, it should be {right}", 2, hint)
    return None


def _columns(facts: Facts) -> int:
    """Columns of metadata: one a member, where the groups are understood."""
    kind = facts.arrays[2]
    return common_size(facts) or (kind.shape[1] if kind.rank == 2 else 0)


def _metadata_or_offsets(facts: Facts) -> Findings:
    kind, rows = facts.arrays[2], METADATA_ROWS + has_receive_offsets(facts.arrays[2])
    if kind.dtype not in _WORDS or kind.shape != (rows, _columns(facts)):
        fact = f"operand 2 is {kind}, it should be u32[{rows},{_columns(facts)}]"
        yield facts.complain_of(METADATA_WITH_OFFSETS, fact, 2)
    replicas, partitions = facts.module.replica_count, facts.module.num_partitions
    if has_receive_offsets(kind) and replicas > 1 and partitions > 1:
        fact = f"operand 2 is {kind}, there are {replicas} replicas of {partitions} partitions"
        hint = "leave receive offsets out, and move rows from the slots"
        yield facts.complain_of(ONE_KIND_OF_IDS, fact, 2, hint)
    return None


def _slots(rule: str) -> Rule:
    """The output divides into slots."""

    def check(facts: Facts) -> Findings:
        output, members = facts.arrays[1], common_size(facts)
        if members and output.shape and output.shape[0] % members:
            fact = f"{output.shape[0]} rows of {output} do not divide by the {members} members"
            yield facts.complain_of(rule, fact, 1)
        return None

    return check


def _slots_or_offsets(facts: Facts) -> Findings:
    if not has_receive_offsets(facts.arrays[2]):
        yield from _slots(SLOTS_OR_OFFSETS)(facts)
    return None


def _reduction_by_name(facts: Facts) -> Findings:
    yield from named_reduction(facts, facts.arrays[:1])
    return None


COUNTED_RULES: Mapping[str, Rule] = {
    "ragged-all-to-all": _counted(_tables),
    "ncc.all_gather_v": _counted(_metadata, _slots(SLOTS)),
    "ncc.all_to_all_v": _counted(_metadata_or_offsets, _slots_or_offsets),
    "ncc.reduce_scatter_v": _counted(_metadata, _reduction_by_name),
}
"""The rules of collectives whose sizes are known when they run."""
