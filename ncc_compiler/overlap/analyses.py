"""Which values compute that is still to come depends on, and which go to results alone.

A value feeds compute if a heavy operation (a matrix product, say) uses it, directly or through
others: in its computation, behind the loop or branch that gives it, or in a later iteration. So
does a value that decides where control flow goes. A gradient feeds none: it goes into an update,
and that into a result.

Which chosen nodes of a computation others depend on, or depend on others, as sets of bits.

When compute reaches each node if it waits for no collective, and how much is behind each.

How much memory a stretch of a computation takes, by the order of its nodes.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs
import numpy as np

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.order import branch_names
from ncc_compiler.ir.types import TupleType
from ncc_compiler.overlap.cost_model import CONTROL_FLOW, HEAVY, OpWork
from ncc_runtime.neff.isa import ENGINES

Elements = frozenset[int]
"""Elements of a tuple; of a value that is none, element 0 stands for it."""


def feeds_compute(module: Module) -> Mapping[str, tuple[bool, ...]]:
    """For the nodes of every computation that runs, whether any of their value feeds compute."""
    found = _Search(module)
    found.visit(module.entry, frozenset())
    return {name: tuple(map(bool, fed)) for name, fed in found.fed.items()}


def _whole(node: Node) -> Elements:
    kind = node.type
    return frozenset(range(len(kind.elements))) if isinstance(kind, TupleType) else frozenset((0,))


class _Search:
    """From results back to parameters; fed elements of each node so far."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._wanted: dict[str, Elements] = {}  # of the results of computations, so far
        self.fed: dict[str, list[Elements]] = {}

    def visit(self, name: str, wanted: Elements) -> list[Elements]:
        """Mark what feeds compute, if these elements of the result do; gives parameters'."""
        body = self._module.computations[name]
        if name in self._wanted and wanted <= self._wanted[name]:
            return [self.fed[name][position] for position in body.parameters()]
        self._wanted[name] = self._wanted.get(name, frozenset()) | wanted
        fed = self.fed.setdefault(name, [frozenset()] * len(body.nodes))
        fed[body.root] |= wanted
        for position in range(len(body.nodes) - 1, -1, -1):
            node = body.nodes[position]
            for operand, elements in self._through(body, node, fed[position]):
                fed[operand] |= elements
        return [fed[position] for position in body.parameters()]

    def _through(
        self, body: Computation, node: Node, wanted: Elements
    ) -> Iterable[tuple[int, Elements]]:
        """The operands of a node that feed compute, if these elements of it do."""
        match node.op:
            case "tuple":
                return [
                    (operand, _whole(body.nodes[operand]))
                    for k, operand in enumerate(node.operands)
                    if k in wanted
                ]
            case "get-tuple-element":
                element = frozenset((node.integer("index"),))
                return [(node.operands[0], element)] if wanted else []
            case "while":
                return [(node.operands[0], self._loop(node, wanted))]
            case "conditional":
                return self._branches(body, node, wanted)
        if not wanted and node.op not in HEAVY:
            return []
        return [(operand, _whole(body.nodes[operand])) for operand in node.operands]

    def _loop(self, node: Node, wanted: Elements) -> Elements:
        """Grow what is wanted of the state by what an iteration wants of the one before."""
        condition = node.callee("condition")
        (tested,) = self.visit(condition, frozenset((0,)))
        wanted |= tested
        while True:
            (needed,) = self.visit(node.callee("body"), wanted)
            if needed <= wanted:
                return wanted
            wanted |= needed

    def _branches(
        self, body: Computation, node: Node, wanted: Elements
    ) -> list[tuple[int, Elements]]:
        found = [(int(node.operands[0]), _whole(body.nodes[node.operands[0]]))]
        for name, operand in zip(branch_names(node), node.operands[1:], strict=True):
            (needed,) = self.visit(name, wanted)
            found.append((operand, needed))
        return found


Bits = int
"""Bit k stands for the k-th chosen node, in the order of the computation."""


def ancestors_among(body: Computation, chosen: Collection[int]) -> list[Bits]:
    """For every node, the chosen ones that it depends on, directly or through others."""
    bit = {position: 1 << k for k, position in enumerate(sorted(chosen))}
    found: list[Bits] = []
    for node in body.nodes:
        bits = 0
        for operand in node.operands:
            bits |= found[operand] | bit.get(operand, 0)
        found.append(bits)
    return found


def descendants_among(body: Computation, chosen: Collection[int]) -> list[Bits]:
    """For every node, the chosen ones that depend on it, directly or through others."""
    bit = {position: 1 << k for k, position in enumerate(sorted(chosen))}
    found: list[Bits] = [0] * len(body.nodes)
    for position in range(len(body.nodes) - 1, -1, -1):
        bits = found[position] | bit.get(position, 0)
        for operand in body.nodes[position].operands:
            found[operand] |= bits
    return found


@attrs.frozen
class ComputeTimes:
    """In program order, each engine one after the other; units of `work.py`."""

    ready: tuple[int, ...]  # per node: when its operands are there
    behind: tuple[int, ...]  # per collective: work of what waits for it and for none after it


def compute_times(
    body: Computation, works: Sequence[OpWork], before: Sequence[Bits]
) -> ComputeTimes:
    """The pace of a computation; `before` says which collectives each node depends on."""
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


_NAMES = frozenset(
    {
        *("after-all", "bitcast", "get-tuple-element", "opt-barrier", "optimization-barrier"),
        *("reshape", "tuple", "ncc.barrier"),
    }
)
"""Ops whose results are their operands under another name."""

_ELSEWHERE = _NAMES | {"constant", "parameter"}
"""Ops that make nothing."""


@attrs.frozen
class LiveRanges:
    """Per node of a computation: what it makes, and which makers it reads."""

    made_in: tuple[tuple[int, ...], ...]  # nodes that made what its value lies in
    size_bytes: tuple[int, ...]  # of what it makes; 0 where the memory is there all the time
    reads: tuple[tuple[int, ...], ...]  # nodes whose memory it reads
    readers: tuple[tuple[int, ...], ...]  # nodes that read its memory, in order


def live_ranges_of(
    body: Computation, stretches: Sequence[int], kept: Collection[int] = ()
) -> LiveRanges:
    """The lifetimes of a computation cut into stretches (a number for each node).

    What is used outside of its stretch, and the values `kept`, have memory all the time.
    """
    makers = _makers(body)
    sizes = [0 if node.op in _ELSEWHERE else _bytes(node) for node in body.nodes]
    reads: list[tuple[int, ...]] = []
    readers: list[list[int]] = [[] for _ in body.nodes]
    for position, node in enumerate(body.nodes):
        found = {maker for operand in node.operands for maker in makers[operand]}
        for maker in found:
            if stretches[maker] != stretches[position]:
                sizes[maker] = 0
        reads.append(() if node.op in _NAMES else tuple(sorted(found)))
        for maker in reads[-1]:
            readers[maker].append(position)
    for value in kept:
        for maker in makers[value]:
            sizes[maker] = 0
    return LiveRanges(tuple(makers), tuple(sizes), tuple(reads), tuple(map(tuple, readers)))


def _bytes(node: Node) -> int:
    return sum(array.size_bytes for array in leaves(node.type))


def _makers(body: Computation) -> list[tuple[int, ...]]:
    """For every node, the nodes that made what its value lies in."""
    found: list[tuple[int, ...]] = []
    for position, node in enumerate(body.nodes):
        if node.op not in _NAMES:
            found.append((position,))
            continue
        operands = node.operands
        source = body.nodes[operands[0]] if operands else node
        if node.op == "get-tuple-element" and source.op == "parameter":
            found.append((position,))  # elements of a state are told apart
            continue
        if node.op == "get-tuple-element" and source.op == "tuple":
            operands = (source.operands[node.integer("index")],)
        if len(operands) == 1:
            found.append(found[operands[0]])
        else:
            found.append(tuple(dict.fromkeys(m for operand in operands for m in found[operand])))
    return found


def peak_bytes(lifetimes: LiveRanges, order: Sequence[int]) -> int:
    """The most that lives at once when nodes run in this order, which may be a stretch of them."""
    return max(_needs(lifetimes, order), default=0)


def _needs(lifetimes: LiveRanges, order: Sequence[int]) -> list[int]:
    """What lives while each node of an order runs, its results included."""
    left = [len(readers) for readers in lifetimes.readers]
    needs, live = [], 0
    for position in order:
        size = lifetimes.size_bytes[position]
        needs.append(live + size)
        live += size if left[position] else 0
        for maker in lifetimes.reads[position]:
            left[maker] -= 1
            if not left[maker]:
                live -= lifetimes.size_bytes[maker]
    return needs


class MemoryBudget:
    """What is left of a stretch while its nodes run in another order than the program's.

    A node may run ahead if all that is left could then run in program order within the limit: a
    safe state of the banker's algorithm (Dijkstra, EWD 623). The first node that is left keeps the
    state safe, so memory never runs out, whatever was made ahead before.
    """

    def __init__(self, lifetimes: LiveRanges, stretch: range, limit_bytes: float) -> None:
        """The limit is at least what the stretch takes in program order."""
        self._lifetimes, self._start, self._limit_bytes = lifetimes, stretch.start, limit_bytes
        # By node, when it is its turn in program order; float64, since nothing bounds a size, and
        # -inf for what has run, which stays so whatever is added.
        self._needs = np.array(_needs(lifetimes, stretch), np.float64)
        self._live_bytes = 0
        self._unread = {  # by maker: its readers; those that have run are dropped at the end only
            position: list(lifetimes.readers[position])
            for position in stretch
            if lifetimes.size_bytes[position]
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
        if self._live_bytes + self._lifetimes.size_bytes[position] > self._limit_bytes:
            return False
        return bool(self._needs_before(position).max() <= self._limit_bytes)

    def run(self, position: int) -> None:
        """Note that a node has run."""
        place = position - self._start
        if self._limit_bytes < math.inf:
            self._needs[self._first : place] = self._needs_before(position)
            if self._unread.get(position):
                self._live_bytes += self._lifetimes.size_bytes[position]
            for maker in self._lifetimes.reads[position]:
                if self._is_last_reader(maker, position) and len(self._unread[maker]) == 1:
                    self._live_bytes -= self._lifetimes.size_bytes[maker]
        self._needs[place] = -np.inf
        while self._first < len(self._needs) and self._has_run(self.first):
            self._first += 1

    def _needs_before(self, position: int) -> np.ndarray:
        """What the nodes before this one need if it runs now: its results live all that time.

        What it alone still reads ends behind the reader before it, and no longer here.
        """
        needs = self._needs[self._first : position - self._start].copy()
        if self._unread.get(position):
            needs += self._lifetimes.size_bytes[position]
        for maker in self._lifetimes.reads[position]:
            if self._is_last_reader(maker, position):
                others = self._unread[maker][:-1]
                behind = others[-1] + 1 - self.first if others else 0
                needs[max(0, behind) :] -= self._lifetimes.size_bytes[maker]
        return needs

    def _is_last_reader(self, maker: int, position: int) -> bool:
        """Whether, in program order, nobody who is left reads the maker's result after this one."""
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
