"""Symmetry between instances: the first one's ranks and parts represent those of all.

The ranks of an instance are numbered one after another. A rank's *place* is its number inside its
instance. Ranks of one place do the same where they run on the same core and communicate with ranks
of one place; they do it at the same times where their cores are equally fast, too.
"""

import attrs
import numpy as np

from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import duration_ps

IDLE = -1


def are_placed_alike(parts: Parts) -> bool:
    """Whether ranks of a place run on the same core of all instances, behind the same links.

    Cores may be slowed in one and not in another: nothing but times depends on that.
    """
    topology, place = parts.routes.topology, parts.routes.placement
    count = topology.nodes
    if parts.ranks % count:
        return False
    node = np.arange(parts.ranks) // (parts.ranks // count)
    chip_in_node = place.chip % topology.chips_per_node
    columns = [
        chip_in_node,
        place.core,
        topology.links.is_down,
        *(parts.rates[parts.span(kind)] for kind in PartKind if kind is not PartKind.DMA),
    ]
    return (
        bool((place.chip // topology.chips_per_node == node).all())
        and len(np.unique(topology.links.variant)) == 1
        and all(is_repeated(column, count) for column in columns if len(column))
    )


def are_equally_fast(parts: Parts) -> bool:
    """Whether cores that are placed alike run at the same rates in all instances."""
    topology, place = parts.routes.topology, parts.routes.placement
    speeds = topology.engines_percent(place.chip, place.core), parts.rates[parts.span(PartKind.DMA)]
    return all(is_repeated(column, topology.nodes) for column in speeds)


def is_repeated(column: np.ndarray, count: int) -> bool:
    """Whether the last dimension is `count` equal blocks."""
    if count == 1 or column.shape[-1] == 1 or column.strides[-1] == 0:
        return True
    block = column.shape[-1] // count
    return bool((column[..., block:] == column[..., :-block]).all())


def maps_of(ranks: np.ndarray, count: int) -> np.ndarray | None:
    """By row, instance and place, the instance of the partner: (rows, count, ranks of one).

    `ranks` (rows, ranks) holds the partner of each rank, IDLE for none. None unless all ranks of
    one place have partners of one place, all in their own instances or each in another one.
    """
    places = ranks.shape[1] // count
    partner = ranks.reshape(len(ranks), count, places)
    has_partner = partner != IDLE
    own_node = np.arange(count)[:, None]
    node = np.where(has_partner, partner // places, own_node)
    place = np.where(has_partner, partner % places, IDLE)
    is_equitable = (
        (place == place[:, :1]).all()
        and (np.sort(node, axis=1) == own_node).all()  # a permutation of the instances
        and ((node == own_node) == (node == own_node)[:, :1]).all()
    )
    return node if is_equitable else None


def part_classes(parts: Parts, count: int) -> np.ndarray:
    """For every part, and every rank's pool of DMA engines behind them, the first instance's."""
    spans = [(parts.count, parts.count + parts.ranks)]
    for kind in PartKind:
        first, end = parts.span(kind).start, parts.span(kind).stop
        # these come twice: all of them outwards, then all inwards
        both_ways = (PartKind.CHIP, PartKind.EFA, PartKind.QUEUE_PAIR)
        middle = (first + end) // 2 if kind in both_ways else end
        spans += [(first, middle), (middle, end)]
    number = np.arange(parts.count + parts.ranks)
    for first, end in spans:
        number[first:end] = first + (number[first:end] - first) % max(1, (end - first) // count)
    return number


@attrs.frozen(eq=False)
class FirstParts:
    """Parts of the first instance, numbered anew, each representing its symmetric ones.

    Where groups and plans are alike these carry as much as it does, so the slowest of them says how
    long that takes.
    """

    number: np.ndarray  # (parts,) of every part, its representative
    rates: np.ndarray  # of the slowest part that it represents
    kinds: np.ndarray  # numbers of PartKind, ascending

    @classmethod
    def of(cls, parts: Parts, count: int) -> "FirstParts":
        """The parts of the first of `count` symmetric instances."""
        classes = part_classes(parts, count)[: parts.count]
        kept, number = np.unique(classes, return_inverse=True)
        kinds = np.repeat(
            np.arange(len(PartKind)),
            [parts.span(kind).stop - parts.span(kind).start for kind in PartKind],
        )
        rates = parts.rates[kept]
        np.minimum.at(rates, number, parts.rates)
        return cls(number, rates, kinds[kept])

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.rates)

    def span(self, kind: PartKind) -> slice:
        """The parts of one kind."""
        code = tuple(PartKind).index(kind)
        first, end = np.searchsorted(self.kinds, (code, code + 1)).tolist()
        return slice(first, end)

    def kind(self, part: int) -> PartKind:
        """The kind of a part."""
        return tuple(PartKind)[int(self.kinds[part])]

    def time_ps(self, amounts: np.ndarray) -> np.ndarray:
        """(parts,) the times that parts take for these amounts."""
        return duration_ps(amounts, self.rates)
