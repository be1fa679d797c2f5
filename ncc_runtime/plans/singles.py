"""Single transfers: what one member makes of a step, and what it waits for; no columns yet."""

from collections.abc import Iterable, Mapping

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
    needs: "Mapping[Way, Single]"
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


def latest(known: Iterable[Mapping[Way, Single]]) -> dict[Way, Single]:
    """All together: of each way the last, which implies those before."""
    found: dict[Way, Single] = {}
    for one in known:
        for way, single in one.items():
            if way not in found or found[way].round < single.round:
                found[way] = single
    return found
