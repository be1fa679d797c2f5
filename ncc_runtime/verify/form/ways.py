"""Ways: between every two ranks that exchange anything, links or adapters that are there.

The way is what the executable's routes say; that it leads from one to the other over links that
exist is looked up in the columns of the topology.
"""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.topology.fabric import Links
from ncc_runtime.topology.routes import TRANSPORTS, Transport
from ncc_runtime.verify.form.columns import distinct_rows
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Subject

MOST_NAMED = 4
"""Pairs named in full; the rest are counted."""


@rule("exe-W20", is_of_all=True)
def ways_exist(subject: Subject) -> Iterator[str]:
    """Of data and of semaphore writes; links that are down do not count."""
    executable = subject.executable
    senders, receivers = _pairs(subject)
    wanted = _transports(executable, senders, receivers)
    named = executable.routes.transport(senders, receivers)
    for pair in np.flatnonzero(named != wanted)[:MOST_NAMED].tolist():
        given, right = TRANSPORTS[int(named[pair])].value, TRANSPORTS[int(wanted[pair])].value
        yield f"rank {senders[pair]} to {receivers[pair]}: by {given}, must be {right}"
    if executable.topology.efa is None and (wanted == Transport.EFA.code).any():
        pair = int(np.argmax(wanted == Transport.EFA.code))
        yield (
            f"rank {senders[pair]} to {receivers[pair]}: on two instances, and "
            f"{executable.topology.name} has no EFA adapters"
        )
    inside = wanted == Transport.NEURONLINK.code
    yield from _broken(executable, senders[inside], receivers[inside])


def _pairs(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Senders and receivers of all transfers, signals and other words, each pair once."""
    ranks = subject.executable.ranks
    used: np.ndarray = np.zeros((ranks, ranks), bool)
    columns = [post.rank for ring in subject.rings for post in ring.queue.sync.posts]
    columns += [ring.queue.peer for ring in subject.rings]
    columns += [one for ring in subject.rings if (one := ring.queue.second_peer) is not None]
    columns += [
        post.rank[queue.opcode == CcOpcode.SIGNAL]
        for _, queue in subject.programs
        for post in queue.sync.posts
    ]
    for column in columns:
        rows = distinct_rows(column)
        senders, receivers = np.broadcast_arrays(subject.everybody, rows)
        there = receivers != IDLE
        used[senders[there], receivers[there]] = True
    senders, receivers = np.nonzero(used)
    return senders.astype(np.int32), receivers.astype(np.int32)


def _transports(executable: Executable, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
    """What the placement says that the ways between ranks are, as codes."""
    chip, per_node = executable.placement.chip, executable.topology.chips_per_node
    a, b = chip[senders], chip[receivers]
    cases = [senders == receivers, a == b, a // per_node == b // per_node]
    found = (Transport.LOCAL, Transport.INTRA_CHIP, Transport.NEURONLINK, Transport.EFA)
    codes = [np.uint8(one.code) for one in found]
    return np.select(cases, codes[:3], codes[3])


def _broken(executable: Executable, senders: np.ndarray, receivers: np.ndarray) -> Iterator[str]:
    """Ways whose links do not lead from the first chip to the last, link by link."""
    links, chip = executable.topology.links, executable.placement.chip
    start, way = executable.routes.link_runs(senders, receivers)
    exists = (way >= 0) & (way < len(links))
    known = np.where(exists, way, 0)
    is_first: np.ndarray = np.zeros(len(way) + 1, bool)
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
        ids = way[start[number] : start[number + 1]].tolist()
        yield f"rank {a} to {b}: {_missing(links, ids, int(chip[a]), int(chip[b]))}"
    more = len(empty) + len(bad) - MOST_NAMED
    if more > 0:
        yield f"{more} more pairs of ranks have no way"


def _missing(links: Links, way: list[int], chip: int, goal: int) -> str:
    """The first link of a way that is not there."""
    text = ", ".join(_name(links, link) for link in way)
    for link in way:
        if not 0 <= link < len(links):
            return f"the way {text} takes link {link}, there are {len(links)}"
        if links.src[link] != chip:
            there = links.end(int(links.src[link]))
            return f"the way {text} needs a link from {links.end(chip)} to {there}, there is none"
        if links.is_down[link]:
            return f"the way {text} takes {_name(links, link)}, which is down"
        chip = int(links.dst[link])
    return f"the way {text or 'of no link'} ends at {links.end(chip)}, not at c{goal}"


def _name(links: Links, link: int) -> str:
    known = 0 <= link < len(links)
    return links.step(link) if known else f"link {link}"


RULES = (ways_exist,)
