"""Alike ranks, proved once: a segment that may be turned is proved for one rank of each cycle.

The clocks of one rank, by distance along the cycle, stand for those of all, and one memory stands
for all that are used alike. Each family of lanes is proved alone, by what it tells along its own
cycle: that leaves order out and adds none, and is enough if families touch no common bytes.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.verify.races.accesses import Accesses, Claims, claims_between
from ncc_runtime.verify.races.class_stretches import Use, uses_of
from ncc_runtime.verify.races.class_turns import Turns, turns_of
from ncc_runtime.verify.races.clocks import lacking
from ncc_runtime.verify.races.steps import CC, Group, Steps
from ncc_runtime.verify.segments import Segment

RANKS_SHOWN = 5
"""Ranks of a cycle that a class is described by."""


@attrs.frozen(eq=False)
class Rotation:
    """Clocks of one rank: slot k is about the rank k places further along the cycle."""

    width: int  # length of the cycle

    @property
    def own(self) -> np.ndarray:
        return np.zeros(1, np.int64)

    def slots(self, rank: np.ndarray, of_rank: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return of_rank

    def carried(self, posted: np.ndarray, posters: np.ndarray, at: np.ndarray) -> np.ndarray:  # noqa: ARG002
        places = int(posters[0])  # of the poster, seen from who waits
        if places == 0:
            return posted
        return np.concatenate((posted[:, -places:], posted[:, :-places]), axis=1)


@attrs.frozen(eq=False)
class _Asked:
    """Waits of one rank for rows of the ranks some places on."""

    row: np.ndarray  # (w,) of the CC-core
    chain: np.ndarray  # (w,)
    post_row: np.ndarray  # (w,) of that chain
    family: np.ndarray  # (w,)
    poster: np.ndarray  # (w,) how many places on


def proved_by_turning(segment: Segment, chain: np.ndarray) -> str | None:
    """The classes of ranks of which one was proved for all; None says nothing at all."""
    turns = turns_of(segment)
    asked = None if turns is None else _asked(segment, turns)
    uses = None if turns is None or asked is None else uses_of(segment, turns)
    if turns is None or asked is None or uses is None or not _apart(turns, uses):
        return None
    proved: set[bytes] = set()
    for family, cycle in enumerate(turns.cycles):
        view = _view(turns, chain, asked, family)
        steps = view.steps()
        if steps is None:
            return None
        claims = view.claims(uses)
        content = view.content(claims)
        if content not in proved and lacking(steps, Rotation(cycle.length), claims).any():
            return None
        proved.add(content)
    return _text(segment, turns)


def _asked(segment: Segment, turns: Turns) -> _Asked | None:
    """What each wait asks for; None if one asks in vain, or a semaphore has several owners."""
    made, cc = turns.increments, segment.cc
    tails = made.row[(made.chain == CC) & (made.family == IDLE)]
    if not np.isin(np.flatnonzero(cc.lane != IDLE), tails).all():  # else nobody performs them
        return None
    same = np.diff(made.sem) == 0
    for column in (made.chain, made.family, made.places):
        if (same & (np.diff(column) != 0)).any():
            return None
    sem, value = cc.wait_sem[:, 0], cc.wait_value[:, 0]
    row = np.flatnonzero((sem != IDLE) & (value > 0))
    sem, value = sem[row], value[row]
    first = np.searchsorted(made.sem, sem)
    if (value > np.searchsorted(made.sem, sem, side="right") - first).any():
        return None
    at = first + value - 1
    return _Asked(row, made.chain[at], made.row[at], made.family[at], -made.places[at])


def _apart(turns: Turns, uses: Sequence[Use]) -> bool:
    """Whether families touch different stretches."""
    touched = [
        {
            number
            for use in uses
            if turns.family[use.ring] == family
            for number in np.unique(use.stretch[use.stretch != IDLE]).tolist()
        }
        for family in range(len(turns.cycles))
    ]
    return sum(map(len, touched)) == len(set().union(*touched))


@attrs.frozen(eq=False)
class _View:
    """What the CC-core of one rank does for one family of lanes; its rows counted anew."""

    length: int  # of the cycle
    rings: tuple[int, ...]  # of the segment; chain k + 1 is that of the k-th
    chain: np.ndarray  # (rows,) pushed, else IDLE
    pushed: np.ndarray  # (rows,) row of that ring
    waits: np.ndarray  # (5, w): row, chain, row of the chain, poster, CC row that must be done

    def steps(self) -> Steps | None:
        """All rows one after the other; None if a wait asks for what comes later."""
        row, _, _, _, need = self.waits
        if (need >= row).any():
            return None
        return Steps(
            ranks=1,
            chain=tuple(self.chain.tolist()),
            pushed=tuple(self.pushed.tolist()),
            performs=(None,) * len(self.rings),
            groups={
                row: (Group(chain, post_row, None, np.array([poster])),)
                for row, chain, post_row, poster, _ in self.waits.T.tolist()
            },
            batches=tuple((row, None) for row in range(len(self.chain))),
        )

    def claims(self, uses: Sequence[Use]) -> Claims:
        """What one rank must know, of ranks so many places on."""
        parts, moments = [], []
        for local, ring in enumerate(self.rings):
            pushing = np.flatnonzero(self.chain == local + 1)
            for use in uses:
                if use.ring == ring:
                    part = self._accesses(use, local + 1)
                    parts.append(part)
                    moments.append(pushing[part.row])
        accesses = Accesses.together(parts)
        if not len(accesses):
            return Claims(*(np.zeros(0, np.int64) for _ in range(6)))
        found = claims_between(accesses, np.concatenate(moments), len(self.chain) - 1)
        places = (found.of_rank - found.rank) % self.length
        return attrs.evolve(found, rank=np.zeros_like(places), of_rank=places)

    def _accesses(self, use: Use, chain: int) -> Accesses:
        """To the memory of one rank, whose stretches count as a byte each."""
        row = np.flatnonzero(use.stretch != IDLE)
        stretch, rank = use.stretch[row], -use.behind[row] % self.length
        return Accesses(
            memory=np.zeros_like(row),
            start=stretch,
            end=stretch + 1,
            rank=rank,
            chain=np.full_like(row, chain),
            row=row,
            writes=np.full(len(row), use.writes),
        )

    def content(self, claims: Claims) -> bytes:
        """Equal for families that are proved alike."""
        sizes = np.array([self.length, len(self.rings), len(self.chain), self.waits.shape[1]])
        columns = (sizes, self.chain, self.pushed, self.waits, *claims.columns())
        return b"".join(np.ascontiguousarray(column, np.int64).tobytes() for column in columns)


def _view(turns: Turns, chain: np.ndarray, asked: _Asked, family: int) -> _View:
    """The rows that matter to a family."""
    rings = tuple(number for number, one in enumerate(turns.family) if one == family)
    local = np.full(len(turns.family) + 1, IDLE)
    local[np.array(rings) + 1] = np.arange(len(rings)) + 1
    pushes = np.where(chain == IDLE, IDLE, local[chain])
    along = asked.family == family  # places along another cycle lead to other ranks
    of_ring = (local[asked.chain] != IDLE) & (along | (asked.family == IDLE))
    own = np.where(asked.chain == CC, along, of_ring)
    row, posting, post_row = asked.row[own], asked.chain[own], asked.post_row[own]
    told = post_row[posting == CC]
    rows = np.unique(np.concatenate(([0, len(chain) - 1], np.flatnonzero(pushes + 1), row, told)))
    kept = pushes[rows]
    pushed = np.full(len(rows), IDLE)
    need = post_row.copy()
    need[posting == CC] = np.searchsorted(rows, told)
    post_row = need.copy()
    for number in range(1, len(rings) + 1):
        pushing = np.flatnonzero(kept == number)
        pushed[pushing] = np.arange(len(pushing))
        its = local[posting] == number
        need[its] = pushing[post_row[its]]
    chains = np.where(posting == CC, CC, local[posting])
    waits = np.stack((np.searchsorted(rows, row), chains, post_row, asked.poster[own], need))
    return _View(turns.cycles[family].length, rings, kept, pushed, waits)


def _text(segment: Segment, turns: Turns) -> str:
    """The classes as people read them."""
    count = segment.ranks
    parts = []
    for family, cycle in enumerate(turns.cycles):
        lanes = [segment.rings[ring].lane for ring, one in enumerate(turns.family) if one == family]
        named = f"lane{'s' * (len(lanes) > 1)} {' and '.join(map(str, lanes))}"
        parts.append(f"along {named} ({' -> '.join(_shown(segment, cycle.successor))})")
    length = turns.cycles[0].length
    cycles = f" in {count // length} cycles of {length}" if length < count else ""
    order = range(count) if segment.members.order is None else segment.members.order[:count]
    first, last = int(order[0]), int(order[-1])
    who = f"{first}..{last}" if last - first + 1 == count else ranks_text([*map(int, order)])
    return f"ranks {who} as one class of {count:,}{cycles} by rotation {', '.join(parts)}"


def _shown(segment: Segment, successor: np.ndarray) -> Iterator[str]:
    """The first ranks of the cycle of the first."""
    at = 0
    for _ in range(RANKS_SHOWN):
        yield str(segment.members.rank(at))
        at = int(successor[at])
        if at == 0:
            yield str(segment.members.rank(0))
            return
    yield "..."
