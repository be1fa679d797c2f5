"""Which bytes of a rank's memory each item of its chains reads and writes.

Memory is cut into cells at every edge of an access, so two accesses overlap where they share one.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, EngineQueue, Executable
from ncc_runtime.neff.isa import CASE, TEST
from ncc_runtime.verify.local.chains import Items, Kind
from ncc_runtime.verify.local.paths import Ways


@attrs.frozen(eq=False)
class Accesses:
    """Every access of every item, ordered by chain and item; empty ones are left out."""

    chain: np.ndarray  # (n,)
    item: np.ndarray  # (n,) of the chain
    tensor: np.ndarray  # (n,)
    is_write: np.ndarray  # (n,) bool
    first: np.ndarray  # (n,) cell
    behind: np.ndarray  # (n,) cell
    edges: np.ndarray  # (cells + 1,) addresses
    starts: tuple[np.ndarray, ...]  # by chain (items + 1,): where an item's accesses begin

    @property
    def cells(self) -> int:
        """Number of cells, at least 1."""
        return max(1, len(self.edges) - 1)


def accesses_of(executable: Executable, chains: Sequence[Items], ways: Ways) -> Accesses:
    """All accesses of a rank's chains; they are alike on all ranks."""
    found = [np.concatenate([*_of_chain(executable, items, ways)], axis=1) for items in chains]
    chain = np.repeat(np.arange(len(found)), [part.shape[1] for part in found])
    item, tensor, is_write = np.concatenate(found, axis=1)
    address, size = _extents(executable)
    touching = size[tensor] > 0
    order = np.flatnonzero(touching)
    order = order[np.lexsort((item[order], chain[order]))]
    chain, item, tensor, is_write = chain[order], item[order], tensor[order], is_write[order]
    start = address[tensor]
    end = start + size[tensor]
    edges = np.unique(np.concatenate((start, end)))
    starts = [
        np.searchsorted(item[chain == number], np.arange(len(items) + 1))
        + np.count_nonzero(chain < number)
        for number, items in enumerate(chains)
    ]
    return Accesses(
        chain=chain,
        item=item,
        tensor=tensor,
        is_write=is_write.astype(bool),
        first=np.searchsorted(edges, start),
        behind=np.searchsorted(edges, end),
        edges=edges,
        starts=tuple(starts),
    )


def _extents(executable: Executable) -> tuple[np.ndarray, np.ndarray]:
    """Address and size of every tensor."""
    program = executable.program
    base = np.array([buffer.address for buffer in program.buffers], np.int64)
    views = [(view.buffer, view.offset, view.size_bytes) for view in program.tensors]
    buffer, offset, size = np.array(views, np.int64).reshape(-1, 3).T
    return base[buffer] + offset, size


def _of_chain(executable: Executable, items: Items, ways: Ways) -> Iterator[np.ndarray]:
    """(item, tensor, whether it is written), one column for each access."""
    queue = executable.queues[items.queue]
    predicates = [block.predicate for block in ways.blocks]
    yield np.zeros((3, 0), np.int64)
    if isinstance(queue, EngineQueue):
        table = queue.table
        item = np.repeat(np.arange(len(table)), np.diff(table.start))
        results = table.start[:-1] + table.result_count
        yield np.stack([item, table.tensors, np.arange(len(item)) < results[item]])
        rows = zip(ways.structure.rows, ways.structure.pcs[queue.engine].tolist(), strict=True)
        yield _reads((pc, predicates[block]) for (code, block), pc in rows if code in (TEST, CASE))
        return
    for at in np.flatnonzero(items.kind == Kind.PLACEHOLDER).tolist():
        placeholder = executable.program.placeholders[int(items.subject[at])]
        both = ((*placeholder.operands, *placeholder.counts), placeholder.results)
        tensors = np.array([*both[0], *both[1]], np.int64)
        is_write = np.repeat([0, 1], [len(tensors_) for tensors_ in both])
        yield np.stack([np.full(len(tensors), at), tensors, is_write])
    controls = np.flatnonzero((items.kind == Kind.CONTROL) & (items.subject != IDLE))
    yield _reads((at, predicates[int(items.subject[at])]) for at in controls.tolist())


def _reads(pairs: Iterator[tuple[int, int]]) -> np.ndarray:
    columns = np.array([(item, tensor, 0) for item, tensor in pairs], np.int64)
    return columns.reshape(-1, 3).T
