"""Single transfers: what one member makes of a step, and what it waits for; no columns yet."""

from collections.abc import Mapping, Sequence

import attrs

from ncc_runtime.plans.loops import Stretch

Way = tuple[str, int, int]
"""What runs in order: transfers that arrive from a member in a lane, or are sent in a lane."""


@attrs.define(eq=False)
class Single:
    """One transfer of one member."""

    member: int
    peer: int
    sources: tuple[Stretch, ...]
    target: Stretch  # at the peer
    size_bytes: int
    lane: int
    needs: "Known"
    also: Stretch | None = None  # the same at home
    divisor: int = 1
    writer: int | None = None  # whose slot is empty once this has read
    empties: "Single | None" = None  # the transfer that empties the slot it writes to
    round: int = 0
    number: int = -1  # of its transfer in the plan
    credit: int = 0

    @property
    def arrival(self) -> Way:
        """By what the peer knows that it has come."""
        return "arrived", self.member, self.lane

    @property
    def completion(self) -> Way:
        """By what the member knows that it is complete."""
        return "sent", self.member, self.lane


Known = Mapping[Way, tuple[Single, ...]]
"""What is waited for: of each way the last transfers, several if they are of one round."""


def latest(known: Sequence[Known]) -> Known:
    """All together: of each way the last, which imply those of earlier rounds."""
    known = [one for one in known if one]
    if len(known) == 1:
        return known[0]
    found: dict[Way, tuple[Single, ...]] = {}
    for one in known:
        for way, singles in one.items():
            ours = found.get(way, ())
            if not ours or ours[0].round < singles[0].round:
                found[way] = singles
            elif ours[0].round == singles[0].round:
                found[way] = ours + tuple(single for single in singles if single not in ours)
    return found


def rounds_before(single: Single) -> int:
    """The first round that a transfer can be in."""
    before = [one.round + 1 for ones in single.needs.values() for one in ones]
    if single.empties is not None:
        before.append(single.empties.round + 1)
    return max(before, default=0)
