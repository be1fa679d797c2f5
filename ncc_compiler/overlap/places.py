"""Orders that are worth keeping, though no value depends on them.

A step that may write where it reads does so only if nobody reads the old value after it: an update
of a slice, or what makes the next state of a loop. Where that holds in program order, it stays so;
else the array would be copied. And a barrier stays among the collectives of its stream.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Computation
from ncc_compiler.ir.ops import OPS
from ncc_compiler.overlap.lifetimes import Lifetimes

_IN_PLACE = frozenset({"copy", "dynamic-update-slice"})
_BARRIER = "ncc.barrier"


def kept_orders(body: Computation, lifetimes: Lifetimes) -> Mapping[int, Sequence[int]]:
    """For some nodes, others that stay before them."""
    found: dict[int, list[int]] = defaultdict(list)
    for position, node in enumerate(body.nodes):
        if node.op in _IN_PLACE:
            for maker in _makers(body, lifetimes, position):
                _keep(found, lifetimes.readers[maker], position)
    _keep_states(body, lifetimes, found)
    _keep_barriers(body, found)
    return found


def _makers(body: Computation, lifetimes: Lifetimes, position: int) -> Sequence[int]:
    """Where the first operand of a node that works in place was made."""
    return lifetimes.made_in[body.nodes[position].operands[0]]


def _keep(found: dict[int, list[int]], readers: Sequence[int], writer: int) -> None:
    """Keep readers before the writer, if it comes after all of them now."""
    others = [reader for reader in readers if reader != writer]
    if all(reader < writer for reader in others):
        found[writer] += others


def _keep_states(body: Computation, lifetimes: Lifetimes, found: dict[int, list[int]]) -> None:
    """Of a body of a loop, new elements of the state behind what reads the old ones."""
    parameters, root = body.parameters(), body.nodes[body.root]
    is_body = len(parameters) == 1 and body.nodes[parameters[0]].type == root.type
    if not is_body or root.op != "tuple":
        return
    for position, node in enumerate(body.nodes):
        if node.op == "get-tuple-element" and node.operands == parameters:
            for maker in lifetimes.made_in[root.operands[node.integer("index")]]:
                _keep(found, lifetimes.readers[position], maker)


def _keep_barriers(body: Computation, found: dict[int, list[int]]) -> None:
    """Between the collectives that they stand between now."""
    barriers: dict[int, int] = {}  # by stream
    since: dict[int, list[int]] = defaultdict(list)
    if not any(node.op == _BARRIER for node in body.nodes):
        return
    for position, node in enumerate(body.nodes):
        if not OPS[node.op].collective:
            continue
        stream = written_stream(node) or 0
        if node.op == _BARRIER:
            found[position] += since.pop(stream, [])
            barriers[stream] = position
        elif stream in barriers:
            found[position].append(barriers[stream])
        since[stream].append(position)
