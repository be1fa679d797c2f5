"""How much memory a stretch of a computation takes, by the order of its nodes."""

from collections.abc import Collection, Sequence

import attrs

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.graph import Computation, Node

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
class Lifetimes:
    """Per node of a computation: what it makes, and which makers it reads."""

    made_in: tuple[tuple[int, ...], ...]  # nodes that made what its value lies in
    size_bytes: tuple[int, ...]  # of what it makes; 0 where the memory is there all the time
    reads: tuple[tuple[int, ...], ...]  # nodes whose memory it reads
    readers: tuple[tuple[int, ...], ...]  # nodes that read its memory, in order


def lifetimes_of(
    body: Computation, stretches: Sequence[int], kept: Collection[int] = ()
) -> Lifetimes:
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
    return Lifetimes(tuple(makers), tuple(sizes), tuple(reads), tuple(map(tuple, readers)))


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


def peak_bytes(lifetimes: Lifetimes, order: Sequence[int]) -> int:
    """The most that lives at once when nodes run in this order, which may be a stretch of them."""
    live = Live(lifetimes)
    peak = 0
    for position in order:
        peak = max(peak, live.bytes + lifetimes.size_bytes[position])
        live.run(position)
    return peak


class Live:
    """What lives while nodes run one after the other."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self._lifetimes = lifetimes
        self._left = [len(readers) for readers in lifetimes.readers]
        self.bytes = 0

    def run(self, position: int) -> None:
        """The node has run: its results live until their last reader has, what it read may end."""
        sizes, left = self._lifetimes.size_bytes, self._left
        self.bytes += sizes[position] if left[position] else 0
        for maker in self._lifetimes.reads[position]:
            left[maker] -= 1
            if not left[maker]:
                self.bytes -= sizes[maker]
