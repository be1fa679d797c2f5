"""Limits of the runtime: groups of a program, channels, ranks and chips of an algorithm."""

from collections.abc import Iterable, Iterator

import attrs
import numpy as np

from ncc_runtime.group_rules.rules import (
    CHANNELS,
    GROUPS_OF_A_PROGRAM,
    KANGARING_RANKS,
    MESH_CHIPS,
    Limit,
)
from ncc_runtime.group_rules.verdict import Places, Ranks, Verdict, cores_text
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import Placement


@attrs.frozen
class LimitUse:
    """How one group of a placeholder has been filled."""

    placeholder: int
    algorithm: str
    ranks: Ranks
    channels: int


def limit_verdicts(placement: Placement, uses: Iterable[LimitUse]) -> tuple[Verdict, ...]:
    """The limits that filled groups exceed."""
    return tuple(verdict for use in uses for verdict in _exceeded(placement, use))


def _exceeded(placement: Placement, use: LimitUse) -> Iterator[Verdict]:
    amounts: list[tuple[Limit, int, str]] = [(CHANNELS, use.channels, "channels")]
    if use.algorithm.startswith("kangaring"):
        amounts.append((KANGARING_RANKS, len(use.ranks), "ranks"))
    if use.algorithm.startswith("mesh"):
        chips = len(np.unique(placement.chip[list(use.ranks)]))
        amounts.append((MESH_CHIPS, chips, "chips"))
    for limit, amount, what in amounts:
        if amount > limit.most:
            fact = f"{use.algorithm} with {amount} {what}: {limit.fact}"
            yield Verdict(use.placeholder, use.ranks, limit.id, False, fact, limit.source)


def groups_verdicts(program: Program, placement: Placement) -> Iterator[Verdict]:
    """A verdict on the first group with a rank that is in too many; nearest: a group in use."""
    taken: dict[Ranks, None] = {}
    count = np.zeros(program.ranks, np.int64)
    for number, placeholder in enumerate(program.placeholders):
        for group in dict.fromkeys(placeholder.groups):
            if len(group) == 1 or group in taken:
                continue
            members = np.array(group)
            count[members] += 1
            if count[members].max() > GROUPS_OF_A_PROGRAM.most:
                full = int(members[count[members].argmax()])
                others = [other for other in taken if full in other]
                yield _too_many_groups(placement, number, group, full, others)
                return
            taken[group] = None


def _too_many_groups(
    placement: Placement, number: int, group: Ranks, rank: int, others: list[Ranks]
) -> Verdict:
    """Refuses a group because one of its ranks is in too many others."""
    limit = GROUPS_OF_A_PROGRAM
    nearest = min(others, key=lambda other: len(set(other) ^ set(group)))
    places = places_of(placement, nearest)
    return Verdict(
        placeholder=number,
        ranks=group,
        rule=limit.id,
        allowed=False,
        fact=f"rank {rank} is in {len(others) + 1} replica groups: {limit.fact}",
        source=limit.source,
        nearest=places,
        advice=f"nearest group in use: {cores_text(placement.topology, places)}",
    )


def places_of(placement: Placement, ranks: Ranks) -> Places:
    """The cores of some ranks."""
    members = list(ranks)
    columns = placement.node[members], placement.logical_core[members]
    return tuple(sorted(zip(*(column.tolist() for column in columns), strict=True)))
