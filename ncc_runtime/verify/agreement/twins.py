"""Blocks of several programs that are one: a loop or branch around what they share."""

from collections.abc import Mapping

from ncc_runtime.neff.stages import Place


class Twins:
    """Which blocks are one, as far as is known; of a program no two blocks are."""

    def __init__(self) -> None:
        self._wholes: dict[Place, Mapping[int, int]] = {}  # by block: by stage, the one there

    def unite(self, one: Place, other: Place) -> bool:
        """Two blocks are one; False, and nothing changes, if two of one stage would be."""
        mine, theirs = (self._wholes.get(place, dict((place,))) for place in (one, other))
        if any(mine.get(stage, block) != block for stage, block in theirs.items()):
            return False
        whole = {**mine, **theirs}
        self._wholes |= dict.fromkeys(whole.items(), whole)
        return True

    def firsts(self) -> Mapping[Place, Place]:
        """Each block that is one with a block of a stage before, and that of the first stage."""
        firsts = {place: min(whole.items()) for place, whole in self._wholes.items()}
        return {place: first for place, first in firsts.items() if place != first}
