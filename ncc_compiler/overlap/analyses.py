"""Dataflow analyses that the passes of this folder share.

- `feeds_compute`: which values reach a heavy operation (a matrix product, say), directly or through
  others: in their computation, behind the loop or branch that gives them, or in a later iteration.
  So does a value that decides where control flow goes. A gradient feeds none: it goes into an
  update, and that into a result.
- `ancestors_among`, `descendants_among`: reachability to chosen nodes, as bit sets.
- `compute_times`: when compute reaches each node if it waits for no collective.
- `live_ranges_of`, `peak_bytes`, `MemoryBudget`: the memory that values take at the same time, by
  the order of nodes, and which reorderings keep it within a limit.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs
import numpy as np

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.order import branch_names
from ncc_compiler.ir.types import TupleType
from ncc_compiler.overlap.cost_model import CONTROL_FLOW, FUSION, HEAVY, OpWork
from ncc_runtime.neff.isa import ENGINES

Elements = frozenset[int]
"""Elements of a tuple; of a value that is none, element 0 stands for it."""


def feeds_compute(module: Module) -> Mapping[str, tuple[bool, ...]]:
    """For the nodes of every computation that runs, whether any of their value feeds compute."""
    walk = _BackwardWalk(module)
    walk.visit(module.entry, frozenset())
    return {name: tuple(map(bool, fed)) for name, fed in walk.fed.items() if name not in walk.fused}


def _all_elements(node: Node) -> Elements:
    kind = node.type
    return frozenset(range(len(kind.elements))) if isinstance(kind, TupleType) else frozenset((0,))


class _BackwardWalk:
    """A backward dataflow analysis, from results to parameters, up to a fixed point at loops.

    The lattice is the set of a value's tuple elements that feed compute ("demanded" elements).
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._demanded: dict[str, Elements] = {}  # of the results of computations, so far
        self.fed: dict[str, list[Elements]] = {}
        self.fused: set[str] = set()  # computations of fusions

    def visit(self, name: str, demanded: Elements) -> list[Elements]:
        """Mark what feeds compute, if these elements of the result do; gives parameters'."""
        body = self._module.computations[name]
        if name in self._demanded and demanded <= self._demanded[name]:
            return [self.fed[name][position] for position in body.parameters()]
        self._demanded[name] = self._demanded.get(name, frozenset()) | demanded
        fed = self.fed.setdefault(name, [frozenset()] * len(body.nodes))
        fed[body.root] |= demanded
        for position in range(len(body.nodes) - 1, -1, -1):
            node = body.nodes[position]
            for operand, elements in self._through(body, node, fed[position]):
                fed[operand] |= elements
        return [fed[position] for position in body.parameters()]

    def _through(
        self, body: Computation, node: Node, demanded: Elements
    ) -> Iterable[tuple[int, Elements]]:
        """The operands of a node that feed compute, if these elements of it do."""
        match node.op:
            case "tuple":
                return [
                    (operand, _all_elements(body.nodes[operand]))
                    for k, operand in enumerate(node.operands)
                    if k in demanded
                ]
            case "get-tuple-element":
                element = frozenset((node.integer("index"),))
                return [(node.operands[0], element)] if demanded else []
            case "opt-barrier" | "optimization-barrier":
                return [(node.operands[0], demanded)]
            case "while":
                return [(node.operands[0], self._loop(node, demanded))]
            case "conditional":
                return self._branches(body, node, demanded)
            case op if op == FUSION:
                self.fused.add(node.callee("calls"))
                by_fusion = self.visit(node.callee("calls"), demanded)
                return zip(node.operands, by_fusion, strict=True)
        if not demanded and node.op not in HEAVY:
            return []
        return [(operand, _all_elements(body.nodes[operand])) for operand in node.operands]

    def _loop(self, node: Node, demanded: Elements) -> Elements:
        """The demanded elements of the state: a fixed point over iterations."""
        (by_condition,) = self.visit(node.callee("condition"), frozenset((0,)))
        demanded |= by_condition
        while True:
            (by_body,) = self.visit(node.callee("body"), demanded)
            if by_body <= demanded:
                return demanded
            demanded |= by_body

    def _branches(
        self, body: Computation, node: Node, demanded: Elements
    ) -> list[tuple[int, Elements]]:
        """The predicate, and what each branch demands of its argument."""
        pairs = [(int(node.operands[0]), _all_elements(body.nodes[node.operands[0]]))]
        for name, operand in zip(branch_names(node), node.operands[1:], strict=True):
            (by_branch,) = self.visit(name, demanded)
            pairs.append((operand, by_branch))
        return pairs


Bits = int
"""Bit k stands for the k-th chosen node, in the order of the computation."""


def ancestors_among(body: Computation, chosen: Collection[int]) -> list[Bits]:
    """For every node, the chosen ones that it depends on, directly or through others."""
    bit = {position: 1 << k for k, position in enumerate(sorted(chosen))}
    ancestors: list[Bits] = []
    for node in body.nodes:
        bits = 0
        for operand in node.operands:
            bits |= ancestors[operand] | bit.get(operand, 0)
        ancestors.append(bits)
    return ancestors


def descendants_among(body: Computation, chosen: Collection[int]) -> list[Bits]:
    """For every node, the chosen ones that depend on it, directly or through others."""
    bit = {position: 1 << k for k, position in enumerate(sorted(chosen))}
    descendants: list[Bits] = [0] * len(body.nodes)
    for position in range(len(body.nodes) - 1, -1, -1):
        bits = descendants[position] | bit.get(position, 0)
        for operand in body.nodes[position].operands:
            descendants[operand] |= bits
    return descendants


@attrs.frozen
class ComputeTimes:
    """Times in program order if nothing waits for a collective; units of `cost_model.py`."""

    ready: tuple[int, ...]  # per node: when its operands are there
    behind: tuple[int, ...]  # per collective: work of what waits for it and for none after it


def compute_times(
    body: Computation, works: Sequence[OpWork], before: Sequence[Bits]
) -> ComputeTimes:
    """The times of a computation; `before` says which collectives each node depends on."""
    free = dict.fromkeys(ENGINES, 0)
    ready, done = [0] * len(body.nodes), [0] * len(body.nodes)
    behind = [0] * max(bits.bit_length() for bits in (*before, 0))
    for position, node in enumerate(body.nodes):
        work = works[position]
        start = ready[position] = max([done[operand] for operand in node.operands], default=0)
        if node.op in CONTROL_FLOW:
            start = max(start, *free.values())
            free = dict.fromkeys(ENGINES, start)
        elif work.engine is not None and not work.latency:
            start = max(start, free[work.engine])
            free[work.engine] = start + work.duration
            if before[position]:
                behind[before[position].bit_length() - 1] += work.duration
        done[position] = start + (0 if work.latency else work.duration)
    return ComputeTimes(tuple(ready), tuple(behind))


_RENAMES = frozenset(
    {
        *("after-all", "bitcast", "get-tuple-element", "opt-barrier", "optimization-barrier"),
        *("reshape", "tuple", "ncc.barrier"),
    }
)
"""Ops whose results are their operands under another name: they take no time or memory."""

_WITHOUT_MEMORY = _RENAMES | {"constant", "parameter"}
"""Ops whose values take no memory that is allocated for them."""


@attrs.frozen
class LiveRanges:
    """Per node of a computation: which nodes define what it reads, and who reads what it makes."""

    defined_by: tuple[tuple[int, ...], ...]  # nodes that made the memory its value lies in
    size_bytes: tuple[int, ...]  # of what it makes; 0 where the memory is there all the time
    handed_on_bytes: tuple[int, ...]  # of a fusion: the sizes of its results, which are elements
    reads: tuple[tuple[int, ...], ...]  # nodes whose memory it reads
    readers: tuple[tuple[int, ...], ...]  # nodes that read its memory, in order


def live_ranges_of(
    body: Computation, region_ids: Sequence[int], kept: Collection[int] = ()
) -> LiveRanges:
    """The live ranges of a computation cut into regions (`region_ids`: a number for each node).

    What is used outside of its region, and the values `kept`, have memory all the time.
    """
    makers = _makers(body)
    sizes = [
        0 if node.op in _WITHOUT_MEMORY else sum(array.size_bytes for array in leaves(node.type))
        for node in body.nodes
    ]
    elements = [  # the results of fusions
        position
        for position, node in enumerate(body.nodes)
        if node.op == "get-tuple-element" and body.nodes[node.operands[0]].op == FUSION
    ]
    for element in elements:
        sizes[element] = sum(array.size_bytes for array in leaves(body.nodes[element].type))
        sizes[body.nodes[element].operands[0]] = 0
    reads: list[tuple[int, ...]] = []
    readers: list[list[int]] = [[] for _ in body.nodes]
    for position, node in enumerate(body.nodes):
        read = {maker for operand in node.operands for maker in makers[operand]}
        for maker in read:
            if region_ids[maker] != region_ids[position]:
                sizes[maker] = 0
        reads.append(() if node.op in _RENAMES else tuple(sorted(read)))
        for maker in reads[-1]:
            readers[maker].append(position)
    for value in kept:
        for maker in makers[value]:
            sizes[maker] = 0
    handed_on = [0] * len(body.nodes)
    for element in elements:
        handed_on[body.nodes[element].operands[0]] += sizes[element]
    return LiveRanges(
        tuple(makers), tuple(sizes), tuple(handed_on), tuple(reads), tuple(map(tuple, readers))
    )


def _makers(body: Computation) -> list[tuple[int, ...]]:
    """For every node, the nodes that made the memory its value lies in."""
    makers: list[tuple[int, ...]] = []
    for position, node in enumerate(body.nodes):
        if node.op not in _RENAMES:
            makers.append((position,))
            continue
        operands = node.operands
        source = body.nodes[operands[0]] if operands else node
        if node.op == "get-tuple-element" and source.op in ("parameter", FUSION):
            makers.append((position,))  # elements of a state, and results, live for themselves
            continue
        if node.op == "get-tuple-element" and source.op == "tuple":
            operands = (source.operands[node.integer("index")],)
        if len(operands) == 1:
            makers.append(makers[operands[0]])
        else:
            makers.append(tuple(dict.fromkeys(m for operand in operands for m in makers[operand])))
    return makers


def peak_bytes(ranges: LiveRanges, order: Sequence[int]) -> int:
    """The most bytes live at once when nodes run in this order: of a computation, or a region."""
    return max(_live_bytes(ranges, order), default=0)


def _live_bytes(ranges: LiveRanges, order: Sequence[int]) -> list[int]:
    """The bytes that are live while each node of an order runs, its results included."""
    readers_left = [len(readers) for readers in ranges.readers]
    live_bytes, live = [], 0
    for position in order:
        size = ranges.size_bytes[position]
        live_bytes.append(live + size)
        live += size if readers_left[position] else 0
        for maker in ranges.reads[position]:
            readers_left[maker] -= 1
            if not readers_left[maker]:
                live -= ranges.size_bytes[maker]
    return live_bytes


class MemoryBudget:
    """The memory that is left to a region while its nodes run in another order than the program's.

    A node may run ahead if all that is left could then run in program order within the limit: a
    safe state of the banker's algorithm (Dijkstra, EWD 623). The first node that is left keeps the
    state safe, so memory never runs out, whatever was made ahead before.
    """

    def __init__(self, ranges: LiveRanges, region: range, limit_bytes: float) -> None:
        """The limit is at least what the region takes in program order."""
        self._ranges, self._start, self._limit_bytes = ranges, region.start, limit_bytes
        # By node that is left: the bytes live when it runs, if all that is left runs in program
        # order. float64, since nothing bounds a size; -inf for nodes that have run, which stays
        # -inf whatever is added.
        self._needs = np.array(_live_bytes(ranges, region), np.float64)
        self._live_bytes = 0
        self._unread = {  # by maker: its readers; those that have run are dropped at the end only
            position: list(ranges.readers[position])
            for position in region
            if ranges.size_bytes[position]
        }
        self._first = 0  # the first that is left, counted from the start

    @property
    def first(self) -> int:
        """The first node that is left."""
        return self._start + self._first

    def has_room(self, position: int) -> bool:
        """Whether a node whose operands are there may run now."""
        if position == self.first or self._limit_bytes == math.inf:
            return True
        made = self._ranges.size_bytes[position] + self._ranges.handed_on_bytes[position]
        if self._live_bytes + made > self._limit_bytes:
            return False
        needs = self._needs_before(position) + self._ranges.handed_on_bytes[position]
        return bool(needs.max() <= self._limit_bytes)

    def run(self, position: int) -> None:
        """Note that a node has run."""
        place = position - self._start
        if self._limit_bytes < math.inf:
            self._needs[self._first : place] = self._needs_before(position)
            if self._unread.get(position):
                self._live_bytes += self._ranges.size_bytes[position]
            for maker in self._ranges.reads[position]:
                if self._is_last_reader(maker, position) and len(self._unread[maker]) == 1:
                    self._live_bytes -= self._ranges.size_bytes[maker]
        self._needs[place] = -np.inf
        while self._first < len(self._needs) and self._has_run(self.first):
            self._first += 1

    def _needs_before(self, position: int) -> np.ndarray:
        """What the nodes before this one need if it runs now: its results live all that time.

        The live range of what it is the last to read then ends at the reader before it.
        """
        needs = self._needs[self._first : position - self._start].copy()
        if self._unread.get(position):
            needs += self._ranges.size_bytes[position]
        for maker in self._ranges.reads[position]:
            if self._is_last_reader(maker, position):
                others = self._unread[maker][:-1]
                behind = others[-1] + 1 - self.first if others else 0
                needs[max(0, behind) :] -= self._ranges.size_bytes[maker]
        return needs

    def _is_last_reader(self, maker: int, position: int) -> bool:
        """Whether no node that is left reads the maker's result after this one in program order."""
        readers = self._unread.get(maker)
        if not readers:
            return False
        while len(readers) > 1 and self._has_run(readers[-1]):
            readers.pop()
        if readers[-1] != position:
            return False
        while len(readers) > 1 and self._has_run(readers[-2]):
            del readers[-2]
        return True

    def _has_run(self, position: int) -> bool:
        return bool(self._needs[position - self._start] == -np.inf)
