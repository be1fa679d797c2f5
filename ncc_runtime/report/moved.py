"""What one collective takes each time it runs, counted from its descriptors: bytes, rows."""

import attrs
import numpy as np

from ncc_runtime.execution.sizes import assumed
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable
from ncc_runtime.topology.routes import TRANSPORTS, Routes, Transport


@attrs.frozen
class Moved:
    """Bytes of all ranks together, and instructions that some rank performs."""

    bytes_by_transport: tuple[int, ...]  # by Transport code
    bytes_by_link: tuple[tuple[str, int], ...]  # of links that carry any
    cc_instructions: int
    descriptor_runs: int

    def of(self, transport: Transport) -> int:
        """Bytes over one transport."""
        return self.bytes_by_transport[transport.code]

    @property
    def busiest_link(self) -> tuple[str, int]:
        """The link that carries most, and how much; `-` if none carries any."""
        return max(self.bytes_by_link, key=lambda one: one[1], default=("-", 0))


def moved(executable: Executable) -> tuple[Moved, ...]:
    """What every placeholder takes, in order; of variable size, what is assumed of it."""
    executable, _ = assumed(executable)
    count, routes = len(executable.program.placeholders), executable.routes
    by_transport = np.zeros((count, len(TRANSPORTS)), np.int64)
    by_link = np.zeros((count, len(executable.topology.links)), np.int64)
    runs, steps = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for queue in executable.queues:
        if isinstance(queue, CcQueue):
            steps += _active_rows(queue, count)
        elif isinstance(queue, DmaQueue):
            runs += np.bincount(queue.placeholder, (queue.peer != IDLE).sum(axis=1), count).astype(
                int
            )
            for peers in (queue.peer, queue.also_peer):
                _add_writes(routes, queue, peers, (by_transport, by_link))
    return tuple(
        Moved(
            tuple(by_transport[number].tolist()),
            _named(executable, by_link[number]),
            int(steps[number]),
            int(runs[number]),
        )
        for number in range(count)
    )


def _add_writes(
    routes: Routes, queue: DmaQueue, peers: np.ndarray | None, found: tuple[np.ndarray, np.ndarray]
) -> None:
    """Add what a ring writes at `peers` to the bytes by transport and by link."""
    if peers is None:
        return
    by_transport, by_link = found
    row, sender = np.nonzero(peers != IDLE)
    number, target = queue.placeholder[row], peers[row, sender]
    size = np.broadcast_to(queue.size_bytes, peers.shape)[row, sender].astype(np.int64)
    np.add.at(by_transport, (number, routes.transport(sender, target)), size)
    start, links = routes.link_runs(sender, target)
    hops = np.diff(start)
    np.add.at(by_link, (np.repeat(number, hops), links), np.repeat(size, hops))


def _active_rows(queue: CcQueue, count: int) -> np.ndarray:
    """Cells in which a rank waits or increments, by placeholder."""
    active = queue.sync.wait_sem != IDLE
    for post in queue.sync.posts:
        active = active | (post.rank != IDLE)
    cells = active.sum(axis=1)
    found = np.zeros(count, np.int64)
    own = queue.placeholder != IDLE
    np.add.at(found, queue.placeholder[own], cells[own])
    return found


def _named(executable: Executable, amounts: np.ndarray) -> tuple[tuple[str, int], ...]:
    names = executable.topology.links
    return tuple((names.name(int(one)), int(amounts[one])) for one in np.flatnonzero(amounts))
