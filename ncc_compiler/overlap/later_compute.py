"""Which values compute that is still to come depends on, and which go to results alone.

A value feeds compute if a heavy operation (a matrix product, say) uses it, directly or through
others: in its computation, behind the loop or branch that gives it, or in a later iteration. So
does a value that decides where control flow goes. A gradient feeds none: it goes into an update,
and that into a result.
"""

from collections.abc import Iterable, Mapping

from ncc_compiler.ir.calls import branch_names
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.types import TupleType
from ncc_compiler.overlap.work import HEAVY

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
