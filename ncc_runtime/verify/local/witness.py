"""Races among a rank's chains as text: both rows, what is not known, and what is missing."""

import attrs
import numpy as np

from ncc_runtime.lowering.executable import Executable
from ncc_runtime.verify.local.accesses import Accesses
from ncc_runtime.verify.local.clocks import Chains
from ncc_runtime.verify.local.paths import Ways
from ncc_runtime.verify.local.search import Access, Race
from ncc_runtime.verify.places import place_of


def rank_text(ranks: np.ndarray) -> str:
    """Ranks in words: those that follow one another as first..last."""
    runs = np.split(ranks, np.flatnonzero(np.diff(ranks) != 1) + 1)
    parts = [f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts)}"


@attrs.frozen(eq=False)
class Teller:
    """Puts into words what was found of one rank's chains."""

    executable: Executable
    chains: Chains
    accesses: Accesses
    ways: Ways
    rank: int

    def race(self, race: Race) -> str:
        """Both accesses, what the later does not know, the way, and the wait that is missing."""
        one, other = race.earlier, race.later
        return "\n".join(
            (
                f"{self.place(one.chain, one.item)}: in no order with {self._name(other)}, which "
                f"touches {self._overlap(one, other)} too",
                f"  {self._name(one)} {self._does(one)}",
                f"  {self.place(other.chain, other.item)} {self._does(other)}",
                f"  when {self._name(other)} begins, it knows {self._knowledge(race)}",
                f"  way: {self._way(race)}",
                f"  missing: {self._missing(race)}",
            )
        )

    def place(self, chain: int, item: int) -> str:
        """Where an item stands and where it comes from."""
        items = self.chains.items[chain]
        return place_of(self.executable, items.queue, int(items.first[item]), self.rank)

    def _name(self, one: Access) -> str:
        return self._short(one.chain, one.item)

    def _short(self, chain: int, item: int) -> str:
        items = self.chains.items[chain]
        first, last = int(items.first[item]), int(items.last[item])
        return f"{items.name} pc {first}" if first == last else f"{items.name} pc {first} to {last}"

    def _overlap(self, one: Access, other: Access) -> str:
        accesses = self.accesses
        first = max(accesses.first[one.access], accesses.first[other.access])
        behind = min(accesses.behind[one.access], accesses.behind[other.access])
        return f"[{int(accesses.edges[first]):#x}, {int(accesses.edges[behind]):#x})"

    def _does(self, one: Access) -> str:
        """Reads or writes which tensor."""
        tensor = int(self.accesses.tensor[one.access])
        view = self.executable.program.tensors[tensor]
        verb = "writes" if self.accesses.is_write[one.access] else "reads"
        edges = self.accesses.edges
        first, last = (self.accesses.first[one.access], self.accesses.behind[one.access])
        extent = f"[{int(edges[first]):#x}, {int(edges[last]):#x})"
        return f"{verb} t{tensor} {view.name} {view.type_text}, {extent}"

    def _knowledge(self, race: Race) -> str:
        name = self.chains.items[race.earlier.chain].name
        if race.known == -1:
            return f"of nothing in {name}"
        return f"of {self._short(race.earlier.chain, race.known)}, and of nothing behind it"

    def _way(self, race: Race) -> str:
        start = self.ways.place(race.begin)
        if not race.trail:
            return f"straight through {start}"
        return f"from {start} {', '.join(race.trail)}, past all other blocks"

    def _missing(self, race: Race) -> str:
        one, other = race.earlier, race.later
        at = self._name(other)
        if self.chains.items[other.chain].engine is None:
            at = f"the trigger of {at}"
        if race.cure is None:
            return f"an increment behind {self._name(one)}, and a wait for it at {at}"
        name = self.chains.names[race.cure.sem]
        by = self._short(one.chain, race.cure.item)
        return f"a wait for {name} >= {race.cure.value} at {at}; {by} makes it"
