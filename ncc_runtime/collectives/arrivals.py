"""Where what is sent in a reduce-scatter waits: numbered places in the scratch of every chip."""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import IDLE
from ncc_runtime.collectives.sends import Sends, turns


@attrs.frozen(eq=False)
class Arrivals:
    """What has come to chips before they send on, or complete a unit."""

    place: np.ndarray  # (sends,) int64, where it arrives
    before: np.ndarray  # (sends,) int64, how much of the unit has come to the sender
    kids: np.ndarray  # (sends, k) int64, the places of that, IDLE beyond the last
    home_kids: np.ndarray  # (units, k) int64, the same of the owner in the end
    home_slot: np.ndarray  # (units,) int64, the slot after the last arrival
    places: int  # of the chip that gets most

    @property
    def most(self) -> int:
        """The most that comes of one unit to one chip."""
        return self.kids.shape[1]

    @classmethod
    def of(cls, sends: Sends, chips: int) -> "Arrivals":
        """Every arrival has a place of its own, so that nothing is ever overwritten."""
        held: list[list[list[int]]] = [[[] for _ in sends.owners] for _ in range(chips)]
        count = [0] * chips
        place, kids = [], []
        ends = zip(sends.source.tolist(), sends.target.tolist(), sends.unit.tolist(), strict=True)
        for source, target, unit in ends:
            kids.append(held[source][unit].copy())
            held[target][unit].append(count[target])
            place.append(count[target])
            count[target] += 1
        home = [held[owner][unit] for unit, owner in enumerate(sends.owners.tolist())]
        most = max((len(one) for one in (*kids, *home)), default=0)
        home_slot = np.zeros(len(sends.owners), np.int64)
        is_home = sends.target == sends.owners[sends.unit]
        np.maximum.at(home_slot, sends.unit[is_home], sends.slot[is_home] + 1)
        return cls(
            place=np.array(place, np.int64),
            before=np.array([len(one) for one in kids], np.int64),
            kids=_table(kids, most),
            home_kids=_table(home, most),
            home_slot=home_slot,
            places=max(count, default=0),
        )

    def complete(self, sends: Sends, sizes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """By slot, units that are complete at different owners and alike in number of sources."""
        has = (self.home_kids != IDLE).sum(axis=1)
        for some in together(self.home_slot, has, sizes[sends.owners]):
            turn = turns(sends.owners[some])
            for one in range(int(turn.max()) + 1):
                yield int(self.home_slot[some[0]]), some[turn == one]


def together(*columns: np.ndarray) -> Iterator[np.ndarray]:
    """Numbers of rows that are equal in all columns, in the order of these."""
    if not len(columns[0]):
        return
    _, group = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    group = group.ravel()
    order = np.argsort(group, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def _table(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    found = np.full((len(rows), width), IDLE, np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found
