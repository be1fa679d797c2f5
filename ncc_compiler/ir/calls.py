"""Which computations a node runs, and what they contain."""

from collections.abc import Iterable, Iterator

from ncc_compiler.ir.graph import Callee, Callees, Module, Node
from ncc_compiler.ir.ops import OPS


def branch_names(node: Node) -> tuple[str, ...]:
    """The branches of a conditional by their number; none where they are not said."""
    chosen = node.attributes.get("branch_computations")
    if isinstance(chosen, Callees):
        return chosen.names
    pair = [node.attributes.get(key) for key in ("true_computation", "false_computation")]
    names = tuple(callee.name for callee in pair if isinstance(callee, Callee))
    return names if len(names) == len(pair) else ()


def collectives_in(module: Module, names: Iterable[str]) -> Iterator[Node]:
    """The collectives of these computations and of all that they run, each once."""
    pending = list(dict.fromkeys(names))
    seen = set(pending)
    while pending:
        for node in module.computations[pending.pop()].nodes:
            if OPS[node.op].collective or node.op == "recv":
                yield node
            inner = {name for _, name in node.callees()}
            pending += sorted(inner - seen)
            seen |= inner
