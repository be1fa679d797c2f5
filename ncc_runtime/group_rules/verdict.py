"""Verdicts: what one rule says of a group, as data and as one line.

Verdicts are made of two things. The nearest allowed group to one that is refused has its size, if
any that is allowed has, and the smallest symmetric difference; of equal ones it is the closest in
size, then one on all of the group's instances before one on a single instance, then the first that
is listed. The chains that source-target pairs form tell which of them close to rings.
"""

from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import Notice, PlacementError
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.topology.graph import Topology

Ranks = tuple[int, ...]

Places = tuple[tuple[int, int], ...]
"""Cores as (instance, logical core), sorted."""

SECTION = "docs/topology.md#groups"
"""Where the rules and their sources stand."""

MOST_RANGES = 8
"""A message lists no more runs of numbers than this."""


@attrs.frozen
class Verdict:
    """The result of one rule for a group of a placeholder, or for several with the same result."""

    placeholder: int
    ranks: Ranks  #: the first of the groups; empty where the rule is not about groups
    rule: str
    allowed: bool
    fact: str
    source: str
    nearest: Places = ()  #: the nearest allowed group, if this one is refused and there is one
    advice: str = ""  #: the same as a text

    def __str__(self) -> str:
        """One line: the fact, the rule and its source, and what would be allowed."""
        line = f"{self.fact} ({self.rule}: {self.source})"
        return f"{line}; {self.advice}" if self.advice else line


def refusals(judged: Iterable[Verdict]) -> tuple[tuple[Verdict, int], ...]:
    """The first verdict of every rule that is broken, and how many placeholders break it."""
    first: dict[str, Verdict] = {}
    broken: dict[str, set[int]] = {}
    for verdict in judged:
        if not verdict.allowed:
            first.setdefault(verdict.rule, verdict)
            broken.setdefault(verdict.rule, set()).add(verdict.placeholder)
    return tuple((verdict, len(broken[rule])) for rule, verdict in first.items())


def refuse(judged: Iterable[Verdict]) -> None:
    """PlacementError if a rule of the hardware refuses any group."""
    refused = refusals(judged)
    if refused:
        (verdict, _), *others = refused
        more = f"; also broken: {', '.join(other.rule for other, _ in others)}" if others else ""
        raise PlacementError(f"refused as by the hardware: {verdict}{more}")


def warnings(judged: Iterable[Verdict]) -> tuple[Notice, ...]:
    """One for every rule that is broken, coded by the rule."""
    notices = []
    for verdict, count in refusals(judged):
        words = [verdict.fact, verdict.advice, f"{count} collectives in all" if count > 1 else ""]
        notices.append(Notice(verdict.rule, "; ".join(filter(None, words)), SECTION))
    return tuple(notices)


def cores_text(topology: Topology, places: Places) -> str:
    """Cores as messages name them: `cores 0-3,12-15`, `cores 0-3 of instances 0-1`."""
    by_node: dict[int, list[int]] = {}
    for node, core in places:
        by_node.setdefault(node, []).append(core)
    by_cores: dict[Ranks, list[int]] = {}
    for node, node_cores in by_node.items():
        by_cores.setdefault(tuple(node_cores), []).append(node)
    texts = []
    for cores, nodes in by_cores.items():
        word = "instance" if len(nodes) == 1 else "instances"
        where = f" of {word} {_short(nodes)}" if topology.nodes > 1 else ""
        texts.append(f"{'cores' if len(cores) > 1 else 'core'} {_short(cores)}{where}")
    return ", ".join(texts[:MOST_RANGES]) + (", …" if len(texts) > MOST_RANGES else "")


def _short(numbers: Sequence[int]) -> str:
    runs = ranks_text(numbers).split(",")
    if len(runs) <= MOST_RANGES:
        return ",".join(runs)
    return f"{','.join(runs[:MOST_RANGES])},… ({len(numbers)} in all)"


def nearest_group(masks: np.ndarray, parts: np.ndarray, *, alone: bool = False) -> np.ndarray:
    """Cores of the nearest allowed group, (instances, cores) bool; none where nothing is allowed.

    `masks` (k, cores) lists what is allowed on an instance, `parts` (instances, cores) the group.
    On several instances the same cores of each are allowed, one core too, unless `alone`.
    """
    options = []
    if len(parts) == 1 or not alone:
        options.append(_on_all(masks, parts))
    if len(parts) > 1:
        options.append(_on_one(masks, parts))
    best = min(options, key=lambda option: option[0])
    return best[1]


_Distance = tuple[bool, int, int]
"""Whether it has another size, its symmetric difference, and by how much its size differs."""


def _on_all(masks: np.ndarray, parts: np.ndarray) -> tuple[_Distance, np.ndarray]:
    """The best of the same cores on every instance, with its distance."""
    if len(parts) > 1:
        masks = np.concatenate([masks, np.eye(parts.shape[1], dtype=bool)])
    shared = (masks.astype(np.int64) @ parts.T.astype(np.int64)).sum(1)
    distance, index = _closest(masks.sum(1) * len(parts), shared, int(parts.sum()))
    chosen = np.zeros_like(parts)
    chosen[:] = masks[index] if index is not None else False
    return distance, chosen


def _on_one(masks: np.ndarray, parts: np.ndarray) -> tuple[_Distance, np.ndarray]:
    """The best on one instance alone, with its distance."""
    shared = masks.astype(np.int64) @ parts.T.astype(np.int64)
    sizes = np.repeat(masks.sum(1), len(parts))
    distance, index = _closest(sizes, shared.ravel(), int(parts.sum()))
    chosen = np.zeros_like(parts)
    if index is not None:
        mask, instance = divmod(index, len(parts))
        chosen[instance] = masks[mask]
    return distance, chosen


def _closest(sizes: np.ndarray, shared: np.ndarray, total: int) -> tuple[_Distance, int | None]:
    """The distance of the best candidate, and its index; None if there is none."""
    if not len(sizes):
        return (True, np.iinfo(np.int64).max, 0), None
    differences, lengths = sizes + total - 2 * shared, np.abs(sizes - total)
    index = int(np.lexsort((lengths, differences, lengths > 0))[0])
    return (bool(lengths[index]), int(differences[index]), int(lengths[index])), index


@attrs.frozen
class PairChain:
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


def chains(pairs: Sequence[tuple[int, int]]) -> Iterator[PairChain]:
    """Every chain, open ones first; a rank that sends to itself is in none."""
    after = {source: target for source, target in pairs if source != target}
    entered = set(after.values())
    visited: set[int] = set()
    for first in (*(source for source in after if source not in entered), *after):
        if first in visited:
            continue
        chain, rank = [first], after[first]
        while rank != first and rank in after:
            chain.append(rank)
            rank = after[rank]
        chain += [rank] if rank != first else []
        visited.update(chain)
        yield PairChain(tuple(chain), rank == first)
