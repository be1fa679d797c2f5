"""Sites of faults in DMA rings and routes."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import attrs
import networkx
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from tests import mutant_edits as edit

Site = tuple[str, str, Callable[[], Executable]]
"""Kind, what is changed where, and how to make it."""


@attrs.frozen
class Cells:
    """Which cells of a column are tried: all, or so many random ones."""

    generator: random.Random
    most: int | None

    def some(self, cells: np.ndarray) -> list[list[int]]:
        """Of (n, 2) cells."""
        return cells[self.some_rows(list(range(len(cells))))].tolist()

    def some_rows(self, rows: list[int]) -> list[int]:
        if self.most is None or len(rows) <= self.most:
            return rows
        return self.generator.sample(rows, self.most)


def ring_sites(
    executable: Executable, number: int, queue: DmaQueue, cells: Cells
) -> Iterator[Site]:
    """Every place for every kind of fault in a ring."""
    for row, rank in cells.some(np.argwhere(queue.peer != IDLE)):
        yield from _left_out(executable, number, queue, (row, rank))
        yield from _shifted(executable, number, queue, (row, rank))
        yield from _redirected(executable, number, queue, (row, rank))
    yield from _moved(executable, number, queue, cells)
    joining = (queue.opcode == DmaOpcode.REDUCE) & (queue.size_bytes > 0).any(axis=1)
    for row in cells.some_rows(np.flatnonzero(joining).tolist()):
        for wrong in {1, int(queue.divisor[row]) + 1} - {int(queue.divisor[row])}:

            def make(row=row, wrong=wrong) -> Executable:
                divisor = np.array(queue.divisor)
                divisor[row] = wrong
                changed = attrs.evolve(queue, divisor=divisor)
                return edit.with_queue(executable, number, changed)

            yield "wrong divisor", f"{queue.name} {row}: {wrong}", make


def _left_out(
    executable: Executable, number: int, queue: DmaQueue, cell: edit.Cell
) -> Iterator[Site]:
    where = f"rank {cell[1]}, {queue.name} {cell[0]}"

    def silent() -> Executable:
        found = executable
        for which, post in enumerate(queue.sync.posts):
            if post.rank[cell] != IDLE:
                found = edit.with_post(found, number, which, cell, (IDLE, IDLE))
        return edit.with_cells(found, number, cell, {"size_bytes": 0})

    yield "descriptor neither moves nor signals", where, silent
    if queue.size_bytes[cell]:
        kind = _left_out_kind(queue, cell)
        yield kind, where, lambda: edit.with_cells(executable, number, cell, {"size_bytes": 0})
    if queue.size_bytes[cell] and queue.second_peer is not None and queue.second_peer[cell] != IDLE:
        also = {"second_peer": IDLE, "second_target": IDLE}
        yield (
            "second target left out",
            where,
            lambda: edit.with_cells(executable, number, cell, also),
        )


def _left_out_kind(queue: DmaQueue, cell: edit.Cell) -> str:
    """Zeros may be there already, and a copy onto itself changes nothing."""
    opcode, row_rank = DmaOpcode(int(queue.opcode[cell[0]])), cell[1]
    if opcode is DmaOpcode.FILL:
        return "zeros left out"
    own = queue.source_rank is None or queue.source_rank[(*cell, 0)] == row_rank
    there = queue.peer[cell] == row_rank and queue.target[cell] == queue.sources[(*cell, 0)]
    if opcode is DmaOpcode.COPY and own and there:
        return "copy onto itself left out"
    return "descriptor only signals"


def _shifted(
    executable: Executable, number: int, queue: DmaQueue, cell: edit.Cell
) -> Iterator[Site]:
    size = int(queue.size_bytes[cell])
    if not size:
        return
    placeholder = executable.program.placeholders[int(queue.placeholder[cell[0]])]
    steps = {"an element": placeholder.dtype.size_bytes, "a chunk": size}
    for name, step in steps.items():
        for by in (step, -step):
            where = f"rank {cell[1]}, {queue.name} {cell[0]} by {by}"
            yield from _shifted_by(executable, number, queue, cell, by, name, where)


def _shifted_by(executable, number, queue, cell, by, name, where) -> Iterator[Site]:
    room = executable.hbm_bytes - int(queue.size_bytes[cell])

    def fits(address: int) -> bool:
        return 0 <= address + by <= room

    for which, address in enumerate(queue.sources[cell].tolist()):
        if address != IDLE and fits(address):

            def make_source(which=which, address=address) -> Executable:
                return edit.with_source(executable, number, cell, which, address + by)

            yield f"source shifted by {name}", where, make_source
    for column, peers in (("target", queue.peer), ("second_target", queue.second_peer)):
        addresses = getattr(queue, column)
        if addresses is None or peers is None or peers[cell] == IDLE:
            continue
        if not fits(int(addresses[cell])):
            continue

        def make(column=column, address=int(addresses[cell])) -> Executable:
            return edit.with_cells(executable, number, cell, {column: address + by})

        yield f"target shifted by {name}", where, make


def _redirected(
    executable: Executable, number: int, queue: DmaQueue, cell: edit.Cell
) -> Iterator[Site]:
    peer = int(queue.peer[cell])
    others = [rank for rank in range(executable.ranks) if rank != peer]
    if not others:
        return
    other = others[sum(cell) % len(others)]
    where = f"rank {cell[1]}, {queue.name} {cell[0]}: {peer} to {other}"
    sem = int(queue.sync.posts[0].sem[cell])

    def data() -> Executable:
        return edit.with_cells(executable, number, cell, {"peer": other})

    def everything() -> Executable:
        return edit.with_post(data(), number, 0, cell, (other, sem))

    if queue.size_bytes[cell]:
        yield "data to another rank", where, data
    if queue.size_bytes[cell] or peer != cell[1]:  # nobody waits for nothing from itself
        yield "data and signal to another rank", where, everything


def _moved(executable: Executable, number: int, queue: DmaQueue, cells: Cells) -> Iterator[Site]:
    """Two neighbouring rows of a ring swapped, or the first done again instead of the second."""
    for rank in cells.some_rows(list(range(executable.ranks))):
        rows = np.flatnonzero(queue.peer[:, rank] != IDLE).tolist()
        for at in cells.some_rows(list(range(len(rows) - 1))):
            first, second = rows[at], rows[at + 1]
            if queue.opcode[first] != queue.opcode[second]:
                continue
            where = f"rank {rank}, {queue.name} {first}, {second}"
            swap, again = {first: second, second: first}, {second: first}
            for kind, order, signals in (
                ("rows of a ring swapped", swap, True),
                ("transfers of a ring swapped", swap, False),
                ("descriptor done again instead of the next", again, False),
            ):

                def make(rank=rank, order=order, signals=signals) -> Executable:
                    return edit.with_ring_rows_moved(executable, number, rank, order, signals)

                yield kind, where, make


def route_sites(executable: Executable, cells: Cells) -> Iterator[Site]:
    """Ways between chips that transfers take: around by other links, or over none that exists."""
    for here, there in cells.some(np.array(sorted(_chip_pairs(executable))).reshape(-1, 2)):
        table, per_node = executable.routes.table, executable.topology.chips_per_node
        node = np.array(here // per_node)
        pair = int(table.pair(node, np.array(here % per_node), np.array(there % per_node)))
        route = table.links[table.start[pair] : table.start[pair + 1]].tolist()
        where = f"c{here} to c{there}"
        for kind, links in (
            ("route over other links", _around(executable, here, there, route[0])),
            ("route over a link of another chip", [*route[:-1], _elsewhere(executable, route[-1])]),
            ("route that ends too early", route[:-1]),
        ):
            if links is not None:
                yield kind, where, lambda pair=pair, to=links: edit.with_route(executable, pair, to)


def _chip_pairs(executable: Executable) -> set[tuple[int, int]]:
    """Pairs of chips of one instance between which something moves."""
    chip, per_node = executable.placement.chip, executable.topology.chips_per_node
    found = set()
    for queue in executable.queues:
        if isinstance(queue, DmaQueue):
            ranks = np.broadcast_to(np.arange(executable.ranks), queue.peer.shape)
            moving = queue.peer != IDLE
            here, there = chip[ranks[moving]], chip[queue.peer[moving]]
            inside = (here != there) & (here // per_node == there // per_node)
            found.update(zip(here[inside].tolist(), there[inside].tolist(), strict=True))
    return found


def _around(executable: Executable, here: int, there: int, without: int) -> Sequence[int] | None:
    """A way that does not begin with a link, None if there is none."""
    links, count = executable.topology.links, executable.topology.links_per_node
    node = here // executable.topology.chips_per_node
    graph = networkx.DiGraph()
    for link in range(node * count, (node + 1) * count):
        if link - node * count != without and not links.is_down[link]:
            graph.add_edge(int(links.src[link]), int(links.dst[link]), link=link - node * count)
    if here not in graph or there not in graph or not networkx.has_path(graph, here, there):
        return None
    way = networkx.shortest_path(graph, here, there)
    return [graph.edges[edge]["link"] for edge in itertools.pairwise(way)]


def _elsewhere(executable: Executable, link: int) -> int:
    """A link that starts at another chip."""
    source = executable.topology.links.src[: executable.topology.links_per_node]
    return int(np.flatnonzero(source != source[link])[0])
