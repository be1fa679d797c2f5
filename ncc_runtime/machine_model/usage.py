"""What a transfer uses of the machine: the parts that its bytes pass, and its latencies.

This is the only such table; price and clock both read it. A transfer is one row of a DMA ring. The
engines of the rank that owns the ring read the sources, in the rank's own memory or in that of
another rank of its chip, and write the result to one or two peers. All amounts are bytes of the
result, so what is read or moved several times counts several times:

    links of the route to a peer          once, where the peer is on another chip of the instance
    the memory stack of a peer            once, written
    the memory stack of a source          once, read
    chip ports out of and into a core     once, where both ends are different cores of one chip
    adapters, sender's and receiver's     once, where the peer is in another instance
    ends of the queue pair, likewise      once, where a limit of it is known
    the DMA engines of the ring           `Usage.dma_passes` times

An adapter reads memory and cannot add: what is reduced for another instance is written to the
sender's own memory first, once, and read from there, once (`Usage.is_relayed`). A ring does one
after the other, so such a transfer takes as long as both together (assumed).

What differs between the two readers stays with them: the price adds up all ranks of all groups, the
clock keeps every transfer apart.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.machine_model.instances import IDLE
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.topology.routes import Transport


@attrs.frozen(eq=False)
class Usage:
    """Which parts the bytes of transfers pass, a sparse matrix as three columns.

    A transfer and a part may stand in several entries; their times add up.
    """

    transfer: np.ndarray  # (entries,) int64
    part: np.ndarray  # (entries,) int64, numbered as in Parts
    times: np.ndarray  # (entries,) int64, how often each byte of the result passes the part
    dma_passes: np.ndarray  # (transfers,) int64, the `times` of the ring's DMA engines
    is_relayed: np.ndarray  # (transfers,) bool, reduced in memory before an adapter sends it


def transfer_usage(
    parts: Parts,
    ranks: np.ndarray,
    peers: Sequence[np.ndarray],
    owners: Sequence[np.ndarray],
    reduces: np.ndarray | bool,
    stream: int,
    lane: int,
) -> Usage:
    """What transfers of one ring number use, transfer i by the ring of ranks[i].

    Each column of `peers` and of `owners` holds the rank that is written to, or whose memory holds
    a source, for every transfer; IDLE for none. `reduces` says which transfers add their sources.
    """
    transfers: list[np.ndarray] = []
    used: list[np.ndarray] = []

    def use(transfer: np.ndarray, part: np.ndarray) -> None:
        transfers.append(transfer)
        used.append(np.asarray(part, np.int64))

    writes: np.ndarray = np.zeros(len(ranks), np.int64)
    is_relayed: np.ndarray = np.zeros(len(ranks), bool)
    for peer in peers:
        active = np.flatnonzero(peer != IDLE)
        src, dst = ranks[active], peer[active]
        writes[active] += 1
        start, links = parts.routes.link_runs(src, dst)
        use(np.repeat(active, np.diff(start)), links)
        use(active, parts.stack[dst])
        transport = parts.routes.transport(src, dst)
        on_chip = np.flatnonzero(transport == Transport.INTRA_CHIP.code)
        use(active[on_chip], parts.chip_out(src[on_chip]))
        use(active[on_chip], parts.chip_in(dst[on_chip]))
        over_efa = np.flatnonzero(transport == Transport.EFA.code)
        for part in parts.network(src[over_efa], dst[over_efa]):
            use(active[over_efa], part)
        is_relayed[active[over_efa]] = True

    reads: np.ndarray = np.zeros(len(ranks), np.int64)
    for owner in owners:
        active = np.flatnonzero(owner != IDLE)
        reads[active] += 1
        use(active, parts.stack[owner[active]])
        # DMA engines read no farther than their chip, so another owner is a core of the same one
        other = np.flatnonzero((owner != IDLE) & (owner != ranks))
        use(other, parts.chip_out(owner[other]))
        use(other, parts.chip_in(ranks[other]))

    # An engine reads and writes at the same time, so the slower side counts. In a reduction a byte
    # of every source passes the engines as often as the topology file says.
    reads *= np.where(reduces, parts.routes.topology.dma.reduce_passes, 1)
    is_relayed &= reduces
    relayed = np.repeat(np.flatnonzero(is_relayed), 2)
    use(relayed, parts.stack[ranks[relayed]])
    dma_passes = np.maximum(np.maximum(reads, 1), writes)
    single = [np.ones(len(column), np.int64) for column in transfers]
    use(np.arange(len(ranks)), parts.dma(ranks, stream, lane))
    return Usage(
        np.concatenate(transfers),
        np.concatenate(used),
        np.concatenate([*single, dma_passes]),
        dma_passes,
        is_relayed,
    )


def first_byte_ps(parts: Parts, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """From the start of a transfer until its first byte is at `dst`, int64.

    The published latency of EFA is from memory to memory and contains the start of the DMA.
    """
    over_efa = parts.routes.transport(src, dst) == Transport.EFA.code
    start = np.where(over_efa, 0, np.int64(parts.model.dma_start_ps))
    return np.asarray(parts.routes.latency_ps(src, dst) + start)


def completion_ps(parts: Parts, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """From the last byte of `src` at `dst` until `dst` sees the semaphore write behind it, int64.

    The write follows its data over the same route, so the route's latency is paid already.
    """
    model = parts.model
    return np.where(src == dst, np.int64(model.semaphore_local_ps), model.semaphore_remote_ps)


def signal_ps(parts: Parts, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Until `dst` sees a semaphore write of `src` that follows no data, such as a credit, int64."""
    return np.asarray(completion_ps(parts, src, dst) + parts.routes.latency_ps(src, dst))
