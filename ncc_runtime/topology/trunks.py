"""Parallel links between the same two ends, joined into trunks of one summed rate.

A torus of an extent of 2 wraps onto the neighbour that it already has, and a graph may list a pair
more than once. A copy is dealt evenly over the links of its trunk (assumed): its DMA engines, each
with its own write of the semaphore, take them in turn, so that data and its semaphore stay on one
path. A trunk is then the same as one link of the sum of the rates. Where faults leave links of
different rates, the fastest are dealt to, as many of them as carry the most.
"""

import attrs
import numpy as np

from ncc_runtime.topology.faults import LinkStates
from ncc_runtime.topology.levels import Wiring
from ncc_runtime.topology.spec import BETWEEN_PORTS


def trunks_of(wiring: Wiring, states: LinkStates) -> tuple[Wiring, LinkStates]:
    """The wiring of an instance with one link for every trunk, and the states of all instances."""
    nodes = len(wiring.switches) + wiring.chips
    key = wiring.src.astype(np.int64) * nodes + wiring.dst
    _, first, trunk = np.unique(key, return_index=True, return_inverse=True)
    if len(first) == len(key):
        return wiring, states
    rank = np.argsort(np.argsort(first))  # trunks in the order of their first links
    trunk, first = rank[trunk], np.sort(first)
    words: list[list[str]] = [[] for _ in first]
    for link, port in zip(trunk.tolist(), wiring.port, strict=True):
        words[link].append(port)
    order, begins = _by_trunk(trunk)
    joined = attrs.evolve(
        wiring,
        src=wiring.src[first],
        dst=wiring.dst[first],
        port=tuple(BETWEEN_PORTS.join(ports) for ports in words),
        bandwidth_bytes_per_s=np.add.reduceat(wiring.bandwidth_bytes_per_s[order], begins),
        latency_ps=wiring.latency_ps[first],  # parallel links are of one dimension of one level
    )
    return joined, _states(states, trunk)


def _states(states: LinkStates, trunk: np.ndarray) -> LinkStates:
    """A trunk is down where all of its links are, and carries what those that are up do."""
    is_down = states.is_down.reshape(-1, len(trunk))
    rates = states.bandwidth_bytes_per_s.reshape(is_down.shape)
    order, begins = _by_trunk(trunk)
    all_down = np.logical_and.reduceat(is_down[:, order], begins, axis=1)
    kinds, kind = np.unique(np.where(is_down, 0, rates), axis=0, return_inverse=True)
    carried, strands = (column[kind.ravel()] for column in _carried(kinds, trunk))
    slowest = np.minimum.reduceat(rates[:, order], begins, axis=1)
    columns = all_down.ravel(), np.where(all_down, slowest, carried).ravel(), strands.ravel()
    for column in columns:
        column.setflags(write=False)
    return LinkStates(*columns, states.variant)


def _by_trunk(trunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Links sorted by trunk, and where each trunk begins among them."""
    order = np.argsort(trunk, kind="stable")
    return order, np.flatnonzero(np.diff(trunk[order], prepend=-1))


def _carried(rates: np.ndarray, trunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, trunks): the most that some links carry, each the same, int64; how many, int32."""
    shape = len(rates), int(trunk.max()) + 1
    found, strands = np.zeros(shape, np.int64), np.zeros(shape, np.int32)
    for kind, row in enumerate(rates):
        order = np.lexsort((-row, trunk))  # of every trunk the fastest first
        its, links = trunk[order], np.arange(1, len(row) + 1)
        links -= np.searchsorted(its, its)
        np.maximum.at(found[kind], its, row[order] * links)
        is_most = (row[order] * links == found[kind, its]) & (row[order] > 0)
        np.maximum.at(strands[kind], its[is_most], links[is_most].astype(np.int32))
    return found, strands
