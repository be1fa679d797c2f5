"""Result types and rules of the collectives that HLO lacks: averages, rooted ones, barriers."""

from collections.abc import Mapping, Sequence

from ncc_compiler.ir.collectives import group_sizes, reduction_by_name
from ncc_compiler.ir.facts import Facts, Findings, Rule, one_or_tuple
from ncc_compiler.ir.infer_collectives import (
    along,
    check_groups,
    check_sizes,
    common_size,
)
from ncc_compiler.ir.ops_collectives import AVERAGES, KNOWN_REDUCTION, ROOT_IS_MEMBER
from ncc_compiler.ir.types import ArrayType, TokenType
from ncc_runtime.neff.reductions import Reduction, is_defined


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
