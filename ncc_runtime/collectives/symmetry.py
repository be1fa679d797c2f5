"""Symmetric instances: the ranks of one represent those of all, where only times are wanted.

A collective over alike instances is often one program many times over. Move every rank to the same
place of the next instance: if that automorphism of the machine maps the transfers to themselves,
all instances do the same at the same time, and one of them is enough. Its ranks are the
*representatives*; they have columns and still name ranks of other instances. The field knows this
as symmetry reduction (Emerson and Sistla, "Symmetry and model checking", 1996).

It takes three steps, and each raises or says no where the symmetry ends:

    group   its members come instance by instance, as many in each, at the same places
            (`group_symmetry`), so a plan needs the columns of the first instance's members only;
            all groups together take the same places of every instance (`check_groups`)
    plan    an algorithm may treat instances differently all the same. It goes by the numbers of
            members, so its plan is made again with other instances numbered first: it has to come
            out equal in sizes, rings, strands and in who takes part (`is_symmetric`)
    ranks   the ranks of a program that have columns, and what a column of peers means for them
            (`RankSymmetry`)
"""

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import (
    IDLE,
    Job,
    Plan,
    Round,
    SecondTarget,
    Symmetry,
    Transfer,
)
from ncc_runtime.errors import LoweringError
from ncc_runtime.machine_model.instances import FirstParts, is_repeated, maps_of


class AsymmetryError(LoweringError):
    """The ranks of one instance do not represent those of the others."""


@attrs.frozen(eq=False)
class Ends:
    """Senders and receivers, for representatives.

    A receiver may be of another instance. The representative at the same place of the first one
    then gets the same from a sender elsewhere: both transfers share a channel number.
    """

    senders: np.ndarray  # (s,) int32, representatives
    receivers: np.ndarray  # (s,) int32, any rank
    places: np.ndarray  # (s,) int32, the representatives of the receivers
    sources: np.ndarray  # (s,) int32, who sends to the places


@attrs.frozen
class RankSymmetry:
    """The ranks that have columns: 0..representatives-1, which represent all. By default all."""

    ranks: int
    representatives: int = attrs.field()

    @representatives.default
    def _everybody(self) -> int:
        return self.ranks

    def members(self, groups: np.ndarray) -> np.ndarray:
        """The representatives of (groups, members), without groups that have none."""
        return representative_members(groups, self.representatives)

    def ends(self, peer: np.ndarray) -> Ends:
        """The senders and receivers in a column of peers, (ranks,), IDLE for none.

        AsymmetryError if ranks that are alike do not send to ranks that are alike.
        """
        count = self.representatives
        senders = np.flatnonzero(peer[:count] != IDLE).astype(np.int32)
        receivers = peer[senders]
        if count == self.ranks:
            return Ends(senders, receivers, receivers, senders)
        maps = maps_of(peer[None], self.ranks // count)
        if maps is None:
            raise AsymmetryError("instances do not turn to each other alike")
        # maps[0][i, p] is the instance that place p of instance i sends to; the source is the i
        # for which that is the first instance
        sources = ((maps[0] == 0).argmax(axis=0) * count + np.arange(count)).astype(np.int32)
        return Ends(senders, receivers, (receivers % count).astype(np.int32), sources[senders])


def group_symmetry(group: np.ndarray, representatives: int) -> Symmetry | None:
    """The symmetry by which an instance's members represent a group; None where it is in one.

    `representatives` are the ranks of an instance. AsymmetryError if its members are not alike.
    """
    node = group // representatives
    count = int((node == node[0]).sum())
    if count == len(group):
        return None
    if len(group) % count:
        raise AsymmetryError("instances hold different numbers of a group's members")
    blocks = group.reshape(-1, count)
    places, nodes = blocks % representatives, blocks // representatives
    if (places != places[0]).any() or (nodes != nodes[:, :1]).any():
        raise AsymmetryError("members of a group do not come instance by instance, alike")
    return Symmetry(count)


def check_groups(groups: Sequence[Sequence[int]], representatives: int, ranks: int) -> None:
    """AsymmetryError unless groups take the same places of every instance.

    So that what is priced for the groups of the first instance holds for all: groups inside
    instances have the same members in each, others as many instances and the same members there.
    """
    shares: list[list[tuple[int, ...]]] = [[] for _ in range(ranks // representatives)]
    for group in groups:
        members = np.array(group)
        node = members // representatives
        nodes = np.unique(node).tolist()
        for one in nodes:
            places = members[node == one] % representatives
            shares[one].append((len(nodes), *places.tolist()))
    if any(sorted(share) != sorted(shares[0]) for share in shares[1:]):
        raise AsymmetryError("groups do not take the same places of every instance")


def representative_members(groups: np.ndarray, representatives: int) -> np.ndarray:
    """The members of groups (groups, members) in the first instance; some groups have none."""
    if representatives > int(groups.max(initial=0)):
        return groups
    inside = groups < representatives
    count = int(inside.sum(axis=1).max(initial=0))
    has_some = inside[:, 0]
    if (inside != (has_some[:, None] & (np.arange(groups.shape[1]) < count))).any():
        raise AsymmetryError("groups have different members in the first instance")
    return groups[has_some, :count]


def of_representatives(column: np.ndarray, count: int) -> np.ndarray:
    """A plan's column for the first `count` members; it may have no others."""
    return column if len(column) == count else column[:count]


def equal_sizes(column: np.ndarray, count: int) -> np.ndarray:
    """The same of sizes; AsymmetryError if members of other instances move other amounts."""
    first = of_representatives(column, count)
    if not is_repeated(column, len(column) // len(first)):
        raise AsymmetryError("members of different instances move different amounts")
    return first


@attrs.frozen(eq=False)
class RepresentativeParts:
    """What is priced where the ranks of the first instance represent all."""

    representatives: int
    parts: FirstParts  # what they pass

    def plans(
        self, plans: Sequence[tuple[Plan, np.ndarray]]
    ) -> list[tuple[Plan, np.ndarray]] | None:
        """Plans for representatives, and their groups; None if a plan has columns of all members.

        What is priced are the columns of these members; who they send to may be anybody.
        """
        reduced = []
        for plan, groups in plans:
            count = representative_members(groups, self.representatives).shape[1]
            if count and plan.columns != count:
                return None
            if count:
                narrow = plan if count == plan.members else _narrowed(plan, count)
                reduced.append((narrow, groups[groups[:, 0] < self.representatives]))
        return reduced


def _narrowed(plan: Plan, count: int) -> Plan:
    """The plan with columns of the first members alone; they may name any member."""

    def narrow(move: Transfer) -> Transfer:
        return Transfer(
            peer=move.peer[:count],
            sources=tuple(
                piece if piece.owner is None else attrs.evolve(piece, owner=piece.owner[:count])
                for piece in move.sources
            ),
            target=move.target,
            size_bytes=move.size_bytes,
            second_target=None
            if move.second_target is None
            else SecondTarget(move.second_target.peer[:count], move.second_target.target),
            lane=move.lane,
            consumed=None if move.consumed is None else move.consumed[:count],
            credit=move.credit,
            divisor=move.divisor,
            strand=move.strand,
        )

    rounds = tuple(Round(tuple(map(narrow, one_round.transfers))) for one_round in plan.rounds)
    return attrs.evolve(plan, rounds=rounds)


def is_symmetric(build: Callable[[Job], Plan], job: Job, plan: Plan) -> bool:
    """Whether other members have the plans that the representatives have in this plan of the job.

    `build` makes the plan of a job. Three numberings are compared: those that begin with the first,
    the middle and the last instance. We assume that an algorithm that treats instances differently
    shows it there.
    """
    symmetry = plan.symmetry
    if symmetry is None:
        return True
    blocks = plan.members // symmetry.representatives
    if not _peers_are_symmetric(plan, blocks):
        return False
    # where sizes are known to be equal, the columns of peers decide alone
    rotations = () if plan.has_equal_sizes else {blocks // 2, blocks - 1} - {0}
    for rotation in rotations:
        rotated = build(attrs.evolve(job, symmetry=attrs.evolve(symmetry, rotation=rotation)))
        if not _are_alike(plan, rotated, symmetry.representatives):
            return False
    return True


def _peers_are_symmetric(plan: Plan, blocks: int) -> bool:
    """Whether members at one place name members at one place; each distinct column once."""
    known_objects: dict[int, np.ndarray] = {}  # by id, which is unique while the column is kept
    known_contents = set()
    for move in _transfers(plan):
        for column in _partners(move):
            if column is None or id(column) in known_objects:
                continue
            known_objects[id(column)] = column
            content = column.tobytes()
            if content not in known_contents:
                known_contents.add(content)
                if maps_of(column[None], blocks) is None:
                    return False
    return True


def _are_alike(plan: Plan, rotated: Plan, representatives: int) -> bool:
    """Whether plans are equal but for offsets and for the members that representatives name."""
    counts, rotated_counts = (
        [len(one_round.transfers) for one_round in each.rounds] for each in (plan, rotated)
    )
    if counts != rotated_counts or plan.scratch_bytes != rotated.scratch_bytes:
        return False
    for first, second in zip(_transfers(plan), _transfers(rotated), strict=True):
        if _without_columns(first) != _without_columns(second):
            return False
        if not np.array_equal(first.size_bytes, second.size_bytes):
            return False
        for column, other in zip(_partners(first), _partners(second), strict=True):
            if column is other:
                continue
            if column is None or other is None:
                return False
            if not np.array_equal(
                column[:representatives] == IDLE, other[:representatives] == IDLE
            ):
                return False
    return True


def _transfers(plan: Plan) -> Iterator[Transfer]:
    for one_round in plan.rounds:
        yield from one_round.transfers


def _without_columns(move: Transfer) -> tuple[object, ...]:
    """The fields of a transfer that do not depend on the member."""
    spaces = tuple((piece.space, piece.tensor) for piece in (*move.sources, move.target))
    return (move.lane, move.strand, move.credit, move.divisor, spaces)


def _partners(move: Transfer) -> Iterator[np.ndarray | None]:
    """The columns of a transfer that name members."""
    yield move.peer
    yield move.consumed
    yield None if move.second_target is None else move.second_target.peer
    for piece in move.sources:
        yield piece.owner
