"""Groups of which the members of one instance stand for all, and whether a plan bears it.

Members come instance by instance, as many in each, at the same places. Their number in a group is
what a plan goes by, so a plan for them is known to fit the others when it is the same whoever of
three instances comes first: sizes, rings and strands, pieces, who takes part.
"""

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import IDLE, Job, Plan, Round, SecondTarget, Symmetry, Transfer
from ncc_runtime.errors import LoweringError
from ncc_runtime.machine_model.instances import FirstParts, maps_of


class UnfoldedError(LoweringError):
    """The ranks of one instance do not stand for those of the others."""


def fold_of(group: np.ndarray, seen: int) -> Symmetry | None:
    """How the members of an instance stand for a group; None where the group is in one.

    `seen` are the ranks of an instance. UnfoldedError if its members are not alike.
    """
    node = group // seen
    count = int((node == node[0]).sum())
    if count == len(group):
        return None
    if len(group) % count:
        raise UnfoldedError("instances hold different numbers of a group's members")
    block = group.reshape(-1, count)
    if (block % seen != block[0] % seen).any() or (block // seen != block[:, :1] // seen).any():
        raise UnfoldedError("members of a group do not come instance by instance, alike")
    return Symmetry(count)


def seen_members(groups: np.ndarray, seen: int) -> np.ndarray:
    """Of groups (groups, members) the ranks below `seen`, (groups that have some, as many)."""
    if seen > int(groups.max(initial=0)):
        return groups
    inside = groups < seen
    count = int(inside.sum(axis=1).max(initial=0))
    some = inside[:, 0]
    if (inside != (some[:, None] & (np.arange(groups.shape[1]) < count))).any():
        raise UnfoldedError("groups have different members in the first instance")
    return groups[some, :count]


@attrs.frozen(eq=False)
class FoldedParts:
    """What is priced where the ranks of the first instance stand for all."""

    seen: int
    parts: FirstParts  # what they pass

    def teams(
        self, teams: Sequence[tuple[Plan, np.ndarray]]
    ) -> list[tuple[Plan, np.ndarray]] | None:
        """Teams with members that are seen, and their groups; None if a plan is of all members."""
        found = []
        for plan, groups in teams:
            count = seen_members(groups, self.seen).shape[1]
            if count and plan.columns != count:
                return None
            if count:
                narrow = plan if count == plan.members else _narrowed(plan, count)
                found.append((narrow, groups[groups[:, 0] < self.seen]))
        return found


def _narrowed(plan: Plan, count: int) -> Plan:
    """With all columns of the first members, who name anybody."""
    rounds = tuple(
        Round(tuple(_of_first(move, count) for move in each.transfers)) for each in plan.rounds
    )
    return attrs.evolve(plan, rounds=rounds)


def _of_first(move: Transfer, count: int) -> Transfer:
    also, consumed = move.also, move.consumed
    return Transfer(
        peer=move.peer[:count],
        sources=tuple(
            piece if piece.owner is None else attrs.evolve(piece, owner=piece.owner[:count])
            for piece in move.sources
        ),
        target=move.target,
        size_bytes=move.size_bytes,
        also=None if also is None else SecondTarget(also.peer[:count], also.target),
        lane=move.lane,
        consumed=None if consumed is None else consumed[:count],
        credit=move.credit,
        divisor=move.divisor,
        strand=move.strand,
    )


def is_folded_truly(build: Callable[[Job], Plan], job: Job, plan: Plan) -> bool:
    """Whether other members have the plans that the first ones have in a folded one of the job."""
    if plan.symmetry is None:
        return True
    if not _turns_alike(plan, plan.symmetry):
        return False
    blocks = plan.members // plan.symmetry.representatives
    turns = () if plan.is_even else {blocks // 2, blocks - 1} - {0}
    others = (
        build(attrs.evolve(job, symmetry=attrs.evolve(plan.symmetry, rotation=turn)))
        for turn in turns
    )
    return all(_are_alike(plan, other) for other in others)


def _turns_alike(plan: Plan, fold: Symmetry) -> bool:
    """Whether members of a place turn to members of one place."""
    seen: dict[int, np.ndarray] = {}
    known = set()
    for move in _transfers(plan):
        for column in _partners(move):
            if column is None or id(column) in seen:
                continue
            seen[id(column)] = column
            content = column.tobytes()
            if content in known:
                continue
            known.add(content)
            if maps_of(column[None], plan.members // fold.representatives) is None:
                return False
    return True


def _are_alike(one: Plan, other: Plan) -> bool:
    if [len(each.transfers) for each in one.rounds] != [
        len(each.transfers) for each in other.rounds
    ]:
        return False
    assert one.symmetry is not None, "a whole plan is alike to itself"
    seen = one.symmetry.representatives
    return one.scratch_bytes == other.scratch_bytes and all(
        _moves_alike(first, second, seen)
        for first, second in zip(_transfers(one), _transfers(other), strict=True)
    )


def _transfers(plan: Plan) -> Iterator[Transfer]:
    for each in plan.rounds:
        yield from each.transfers


def _moves_alike(one: Transfer, other: Transfer, seen: int) -> bool:
    return (
        _said(one) == _said(other)
        and np.array_equal(one.size_bytes, other.size_bytes)
        and all(
            first is second
            or (
                first is not None
                and second is not None
                and np.array_equal(first[:seen] == IDLE, second[:seen] == IDLE)
            )
            for first, second in zip(_partners(one), _partners(other), strict=True)
        )
    )


def _said(move: Transfer) -> tuple[object, ...]:
    """What does not depend on the member."""
    spaces = tuple((piece.space, piece.tensor) for piece in (*move.sources, move.target))
    return (move.lane, move.strand, move.credit, move.divisor, spaces)


def _partners(move: Transfer) -> Iterator[np.ndarray | None]:
    yield move.peer
    yield move.consumed
    yield None if move.also is None else move.also.peer
    for piece in move.sources:
        yield piece.owner
