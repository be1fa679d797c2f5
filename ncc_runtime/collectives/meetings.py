"""Who has to tell whom that it has come to a collective: rows of a CC-core before and after data.

A rank tells everybody who will write into its memory, once in each lane, and everybody who will
read its operand, once; they wait for that. In the end it waits for its readers, in each lane.
"""

from collections.abc import Hashable

import numpy as np

from ncc_runtime.collectives.plan import IDLE, Transfer


class Meetings:
    """Counts them over the transfers of a team, for a rank that has as many as an average one."""

    def __init__(self, members: int) -> None:
        self._members = np.arange(members)
        self._known: set[Hashable] = set()  # kind, lane and column
        self._written = self._asked = self._read = 0
        self.lanes: set[int] = set()

    @property
    def signals(self) -> int:
        """Rows that tell others."""
        return self._written + self._share(self._asked)

    @property
    def readers(self) -> int:
        """Rows that wait for readers."""
        return self._share(self._read)

    def add(self, move: Transfer) -> int:
        """How many others a rank has to wait for before its transfer, for the first time."""
        self.lanes.add(move.lane)
        peers = [move.peer] if move.also is None else [move.peer, move.also.peer]
        first = sum(self._is_new("write", move.lane, peer) for peer in peers)
        self._written += first
        asked = 0
        for source in move.sources:
            if source.owner is not None:
                owner = np.where(move.peer == IDLE, IDLE, source.owner)
                self._read += self._fresh("read", move.lane, owner)
                asked += self._fresh("ask", 0, owner)
        self._asked += asked
        return first + self._share(asked)

    def _is_new(self, kind: str, lane: int, column: np.ndarray) -> bool:
        return self._fresh(kind, lane, column) > 0

    def _fresh(self, kind: str, lane: int, column: np.ndarray) -> int:
        """Pairs of different members in a column that has not been met."""
        key = kind, lane, column.tobytes()
        if key in self._known:
            return 0
        pairs = int(((column != IDLE) & (column != self._members)).sum())
        self._known.add(key)
        return pairs

    def _share(self, pairs: int) -> int:
        return -(-pairs // len(self._members))
