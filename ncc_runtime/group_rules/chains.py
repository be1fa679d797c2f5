"""The chains that source-target pairs form, and which of them close to rings."""

from collections.abc import Iterator, Sequence

import attrs

from ncc_runtime.group_rules.verdict import Ranks


@attrs.frozen
class Chain:
    """Ranks of which each sends to the next; in a ring the last sends to the first."""

    ranks: Ranks
    is_ring: bool

    @property
    def ends(self) -> tuple[int, int]:
        """The last rank and the first: the pair that closes an open chain."""
        return self.ranks[-1], self.ranks[0]

    def pairs(self) -> Iterator[tuple[int, int]]:
        targets = self.ranks[1:] + (self.ranks[:1] if self.is_ring else ())
        return zip(self.ranks, targets, strict=False)


def chains(pairs: Sequence[tuple[int, int]]) -> Iterator[Chain]:
    """Every chain, open ones first; a rank that sends to itself is in none."""
    after = {source: target for source, target in pairs if source != target}
    entered = set(after.values())
    seen: set[int] = set()
    for first in (*(source for source in after if source not in entered), *after):
        if first in seen:
            continue
        chain, rank = [first], after[first]
        while rank != first and rank in after:
            chain.append(rank)
            rank = after[rank]
        chain += [rank] if rank != first else []
        seen.update(chain)
        yield Chain(tuple(chain), rank == first)
