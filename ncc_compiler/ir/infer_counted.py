"""Result types and rules of the collectives that move as many rows as arrays of numbers say."""

from collections.abc import Mapping

from ncc_compiler.ir.facts import Facts, Findings, Rule
from ncc_compiler.ir.infer_collectives import check_groups, check_sizes, common_size
from ncc_compiler.ir.infer_ncc import named_reduction
from ncc_compiler.ir.ops_collectives import (
    COUNTS_ARE_VECTORS,
    METADATA,
    ONE_LAYOUT,
    SLOTS,
    UPDATES_FOR_EACH,
)
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


def _ragged_all_to_all(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from check_sizes(facts)
    output = yield from _layout(facts)
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
    return output


def _metadata(facts: Facts) -> Findings:
    kind, members = facts.arrays[2], common_size(facts)
    right = (METADATA_ROWS, members or (kind.shape[1] if kind.rank == 2 else 0))
    if kind.dtype not in _WORDS or kind.shape != right:
        hint = "receive offsets are not supported: a member's rows land at its slot"
        hint = hint if kind.rank == 2 and kind.shape[0] > METADATA_ROWS else ""
        fact = f"operand 2 is {kind}, it should be u32[{right[0]},{right[1]}]"
        yield facts.complain_of(METADATA, fact, 2, hint)
    return None


def _slots(facts: Facts) -> Findings:
    output, members = facts.arrays[1], common_size(facts)
    if members and output.shape and output.shape[0] % members:
        fact = f"{output.shape[0]} rows of {output} do not divide by the {members} members"
        yield facts.complain_of(SLOTS, fact, 1)
    return None


def _into_slots(facts: Facts) -> Findings:
    """Every member has a slot in the output of every other."""
    yield from check_groups(facts)
    yield from check_sizes(facts)
    output = yield from _layout(facts)
    yield from _metadata(facts)
    yield from _slots(facts)
    return output


def _reduce_scatter_v(facts: Facts) -> Findings:
    yield from check_groups(facts)
    yield from check_sizes(facts)
    output = yield from _layout(facts)
    yield from _metadata(facts)
    yield from named_reduction(facts, facts.arrays[:1])
    return output


COUNTED_RULES: Mapping[str, Rule] = {
    "ragged-all-to-all": _ragged_all_to_all,
    "ncc.all_gather_v": _into_slots,
    "ncc.all_to_all_v": _into_slots,
    "ncc.reduce_scatter_v": _reduce_scatter_v,
}
"""The rules of collectives whose sizes are known when they run."""
