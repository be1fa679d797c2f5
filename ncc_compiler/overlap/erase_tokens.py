"""Removes arrays of one element that tie collectives to each other in a chain.

Frameworks for Neuron thread such a token through collectives, as the last operand and result of
each that says `has_token="1"`, so that they keep their order until the program is compiled. It
holds no value that is of use. Here the ranks agree on the order of collectives anyway, as all run
one program, and dependences follow from the data.
"""

import re
from collections.abc import Collection, Iterable
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Computation, Module, Node, Raw
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import DROPPED, Rebuild, users_of, with_computations

_HAS_TOKEN = re.compile(r'\bhas_token\s*=\s*"?(1|true)\b')
_TOKEN_ATTRIBUTE = re.compile(r',?\s*\bhas_token\s*=\s*(?:"[^"]*"|\w+)')
_PASSES_ON = frozenset(
    {
        *("add", "bitcast", "broadcast", "concatenate", "convert", "copy", "get-tuple-element"),
        *("multiply", "pad", "reshape", "slice"),
    }
)
"""What stands between two links of a chain."""


@attrs.frozen
class EraseTokens(Pass):
    """Tokens go that nothing but collectives use; one that is a result stays what it is."""

    name: ClassVar[str] = "erase-tokens"

    def run(self, module: Module) -> Module:
        computations = {
            name: _without_tokens(body) if any(map(has_token, body.nodes)) else body
            for name, body in module.computations.items()
        }
        return with_computations(module, computations)


def has_token(node: Node) -> bool:
    """Whether the last operand of a collective of several is a token, and its last result."""
    frontend = node.attributes.get("frontend_attributes")
    is_marked = isinstance(frontend, Raw) and _HAS_TOKEN.search(frontend.text) is not None
    if not is_marked or not OPS[node.op].collective or len(node.operands) < 2:
        return False
    return isinstance(node.type, TupleType) and len(node.type.elements) == len(node.operands)


def _without_tokens(body: Computation) -> Computation:
    erased, links = _chains(body)
    if not erased:
        return body
    rebuild = Rebuild(body)
    for position, node in enumerate(body.nodes):
        if position in links:
            rebuild.new_ids.append(DROPPED)
            continue
        rewired = rebuild.rewired(node)
        if position in erased:
            rebuild.new_ids.append(rebuild.add(_without_last(rewired)))
        elif _is_only_result(body, node, erased):
            rebuild.new_ids.append(rewired.operands[0])
        else:
            rebuild.new_ids.append(rebuild.add(rewired))
    return rebuild.finish()


def _chains(body: Computation) -> tuple[frozenset[int], frozenset[int]]:
    """Collectives whose tokens go, and the nodes between them, which nothing else uses."""
    users = users_of(body)
    erased, links = set[int](), set[int]()
    for position in range(len(body.nodes) - 1, -1, -1):  # users come after what they use
        node = body.nodes[position]
        if position == body.root:
            continue
        if has_token(node):
            if _is_unused(body, node, users[position], links):
                erased.add(position)
        elif node.op in _PASSES_ON and all(
            user in links or (user in erased and position not in body.nodes[user].operands[:-1])
            for user in users[position]
        ):
            links.add(position)
    return frozenset(erased), frozenset(links)


def _is_unused(body: Computation, node: Node, users: Iterable[int], links: Collection[int]) -> bool:
    """Whether the token has one element on a side, and its result is used by other tokens only."""
    assert isinstance(node.type, TupleType), node.name
    sides = body.nodes[node.operands[-1]].type, node.type.elements[-1]
    if not any(isinstance(side, ArrayType) and side.elements == 1 for side in sides):
        return False
    last = len(node.operands) - 1
    return all(
        body.nodes[user].op == "get-tuple-element"
        and (body.nodes[user].integer("index") != last or user in links)
        for user in users
    )


def _is_only_result(body: Computation, node: Node, erased: Collection[int]) -> bool:
    """Whether it takes the only result that is left of a collective, which is no tuple any more."""
    if node.op != "get-tuple-element" or node.operands[0] not in erased:
        return False
    return len(body.nodes[node.operands[0]].operands) == 2


def _without_last(node: Node) -> Node:
    """The collective without its last operand and result, and without `has_token`."""
    assert isinstance(node.type, TupleType), node.name
    kinds = node.type.elements[:-1]
    frontend = node.attributes["frontend_attributes"]
    assert isinstance(frontend, Raw), node.name
    rest = {key: value for key, value in node.attributes.items() if key != "frontend_attributes"}
    text = _TOKEN_ATTRIBUTE.sub("", frontend.text).replace("{,", "{").replace(",}", "}")
    if text != "{}":
        rest["frontend_attributes"] = Raw(text)
    kind = kinds[0] if len(kinds) == 1 else TupleType(kinds)
    return attrs.evolve(node, operands=node.operands[:-1], type=kind, attributes=rest)
