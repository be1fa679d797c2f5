"""Between every two ranks that exchange anything, a route over what is there (exe-W20).

The executable says by which transport and over which links. This rule works the transport out of
the placement, and follows the links one by one in the columns of the topology: each must start
where the one before ended, none may be down, the last must end at the receiver's chip. Another
route over links that exist is as good as the one that was chosen.
"""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.topology.fabric import Links
from ncc_runtime.topology.routes import TRANSPORTS, Transport
from ncc_runtime.verify.counters import narrowed
from ncc_runtime.verify.wellformed.rule import Subject, rule

MOST_NAMED = 4
"""Pairs named in full; the rest are counted."""


@rule("exe-W20", is_of_all=True)
def routes_exist(subject: Subject) -> Iterator[str]:
    """Of data and of semaphore writes; links that are down do not count."""
    executable = subject.executable
    senders, receivers = _pairs(subject)
    due = _transports(executable, senders, receivers)
    stated = executable.routes.transport(senders, receivers)
    for pair in np.flatnonzero(stated != due)[:MOST_NAMED].tolist():
        given, right = TRANSPORTS[int(stated[pair])].value, TRANSPORTS[int(due[pair])].value
        yield f"rank {senders[pair]} to {receivers[pair]}: by {given}, must be {right}"
    if executable.topology.efa is None and (due == Transport.EFA.code).any():
        pair = int(np.argmax(due == Transport.EFA.code))
        yield (
            f"rank {senders[pair]} to {receivers[pair]}: on two instances, and "
            f"{executable.topology.name} has no EFA adapters"
        )
    over_links = due == Transport.NEURONLINK.code
    yield from _broken(executable, senders[over_links], receivers[over_links])


def _pairs(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Senders and receivers of all transfers, signals and completions, each pair once."""
    ranks = subject.executable.ranks
    used: np.ndarray = np.zeros((ranks, ranks), bool)
    columns = [post.rank for ring in subject.rings for post in ring.queue.sync.posts]
    columns += [peer for ring in subject.rings for _, peer in ring.targets]
    columns += [
        post.rank[queue.opcode == CcOpcode.SIGNAL]
        for _, queue in subject.programs
        for post in queue.sync.posts
    ]
    for column in columns:
        rows = narrowed(column)
        differs: np.ndarray = np.ones(len(rows), bool)  # from the row before; others say no more
        differs[1:] = (rows[1:] != rows[:-1]).any(axis=1)
        senders, receivers = np.broadcast_arrays(subject.everybody, rows[differs])
        there = receivers != IDLE
        used[senders[there], receivers[there]] = True
    senders, receivers = np.nonzero(used)
    return senders.astype(np.int32), receivers.astype(np.int32)


def _transports(executable: Executable, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
    """What the placement says that is between ranks, as codes."""
    chip, per_node = executable.placement.chip, executable.topology.chips_per_node
    a, b = chip[senders], chip[receivers]
    cases = [senders == receivers, a == b, a // per_node == b // per_node]
    transports = (Transport.LOCAL, Transport.INTRA_CHIP, Transport.NEURONLINK, Transport.EFA)
    codes = [np.uint8(one.code) for one in transports]
    return np.select(cases, codes[:3], codes[3])


def _broken(executable: Executable, senders: np.ndarray, receivers: np.ndarray) -> Iterator[str]:
    """Routes whose links do not lead from the first chip to the last, link by link."""
    links, chip = executable.topology.links, executable.placement.chip
    start, hops = executable.routes.link_runs(senders, receivers)  # of all pairs, one by one
    exists = (hops >= 0) & (hops < len(links))
    known = np.where(exists, hops, 0)
    is_first: np.ndarray = np.zeros(len(hops) + 1, bool)
    is_first[start] = True
    is_last = is_first[1:]
    pair = np.repeat(np.arange(len(senders)), np.diff(start))
    comes_from = np.where(is_first[:-1], chip[senders[pair]], np.roll(links.dst[known], 1))
    ends = ~is_last | (links.dst[known] == chip[receivers[pair]])
    good = exists & (links.src[known] == comes_from) & ends & ~links.is_down[known]
    bad = np.unique(pair[~good])
    empty = np.flatnonzero(np.diff(start) == 0)
    for number in np.concatenate((empty, bad))[:MOST_NAMED].tolist():
        a, b = int(senders[number]), int(receivers[number])
        route = hops[start[number] : start[number + 1]].tolist()
        yield f"rank {a} to {b}: {_missing(links, route, int(chip[a]), int(chip[b]))}"
    more = len(empty) + len(bad) - MOST_NAMED
    if more > 0:
        yield f"{more} more pairs of ranks have no way"


def _missing(links: Links, route: list[int], chip: int, goal: int) -> str:
    """The first link of a route that is not there."""

    def name(link: int) -> str:
        return links.step(link) if 0 <= link < len(links) else f"link {link}"

    text = ", ".join(map(name, route))
    for link in route:
        if not 0 <= link < len(links):
            return f"the way {text} takes link {link}, there are {len(links)}"
        if links.src[link] != chip:
            there = links.end(int(links.src[link]))
            return f"the way {text} needs a link from {links.end(chip)} to {there}, there is none"
        if links.is_down[link]:
            return f"the way {text} takes {name(link)}, which is down"
        chip = int(links.dst[link])
    return f"the way {text or 'of no link'} ends at {links.end(chip)}, not at c{goal}"
