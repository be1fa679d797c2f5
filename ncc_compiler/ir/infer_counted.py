"""Result types and rules of the collectives that move as many rows as arrays of numbers say."""

from collections.abc import Mapping

from ncc_compiler.ir.facts import Facts, Findings, Rule
from ncc_compiler.ir.infer_collectives import check_groups, check_sizes, common_size
from ncc_compiler.ir.infer_ncc import named_reduction
from ncc_compiler.ir.ops_collectives import (
    COUNTS_ARE_VECTORS,
    METADATA,
    METADATA_WITH_OFFSETS,
    ONE_KIND_OF_IDS,
    ONE_LAYOUT,
    SLOTS,
    SLOTS_OR_OFFSETS,
    UPDATES_FOR_EACH,
)
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.dtypes import DType

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


def _reduction(facts: Facts) -> Findings:
    yield from named_reduction(facts, facts.arrays[:1])
    return None


COUNTED_RULES: Mapping[str, Rule] = {
    "ragged-all-to-all": _counted(_tables),
    "ncc.all_gather_v": _counted(_metadata, _slots(SLOTS)),
    "ncc.all_to_all_v": _counted(_metadata_or_offsets, _slots_or_offsets),
    "ncc.reduce_scatter_v": _counted(_metadata, _reduction),
}
"""The rules of collectives whose sizes are known when they run."""
