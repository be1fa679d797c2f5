"""Whether every transfer has a way: links that exist and follow each other, or the network."""

from collections.abc import Iterator

from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable


def broken_routes(executable: Executable) -> Iterator[str]:
    """What is wrong with the ways of transfers, each pair of ranks once."""
    pairs: set[tuple[int, int]] = set()
    for queue in executable.queues:
        if isinstance(queue, DmaQueue):
            pairs.update(_pairs(queue))
            yield from _far_reads(executable, queue)
    for src, dst in sorted(pairs):
        reason = _broken(executable, src, dst)
        if reason:
            yield f"rank {src} to {dst}: {reason}"


def _pairs(queue: DmaQueue) -> Iterator[tuple[int, int]]:
    peers = [queue.peer] if queue.second_peer is None else [queue.peer, queue.second_peer]
    for column in peers:
        for row in column.tolist():
            yield from ((rank, peer) for rank, peer in enumerate(row) if peer not in (IDLE, rank))


def _far_reads(executable: Executable, queue: DmaQueue) -> Iterator[str]:
    """Sources in the memory of another chip."""
    if queue.source_rank is None:
        return
    chip = executable.placement.chip
    for row, owners in enumerate(queue.source_rank.tolist()):
        for rank, its_owners in enumerate(owners):
            for owner in its_owners:
                if owner != IDLE and chip[owner] != chip[rank]:
                    yield f"rank {rank}, {queue.name} {row} reads another chip, of rank {owner}"


def _broken(executable: Executable, src: int, dst: int) -> str:
    """Why bytes cannot go from one rank to another; empty if they can."""
    topology, chip = executable.topology, executable.placement.chip
    here, there = int(chip[src]), int(chip[dst])
    if here // topology.chips_per_node != there // topology.chips_per_node:
        return "" if topology.efa is not None else "instances without a network"
    for link in executable.routes.links(src, dst):
        if not 0 <= link < len(topology.links.src):
            return f"link {link} does not exist"
        if topology.links.is_down[link]:
            return f"link {link} is down"
        if int(topology.links.src[link]) != here:
            return f"link {link} does not start at chip {here}"
        here = int(topology.links.dst[link])
    return "" if here == there else f"the way ends at chip {here}, not {there}"
