"""Which values are the same on all ranks of a group, whatever the inputs are."""

from ncc_compiler.ir.collectives import rank_groups
from ncc_compiler.ir.graph import Computation, Module, Node, Raw
from ncc_compiler.ir.ops import OPS
from ncc_compiler.overlap.work import CONTROL_FLOW
from ncc_runtime.neff.groups import Groups

_GIVES_ALL = frozenset({"all-gather", "all-reduce", "ncc.avg_all_reduce"})
"""Collectives that give every member the same."""

_TELLS_RANKS = frozenset({"partition-id", "replica-id"})


def alike_in_groups(
    module: Module, body: Computation, groups: Groups, *, trust_shardings: bool
) -> list[bool]:
    """For every node, whether all members of a group have the same value.

    A parameter may differ from rank to rank even where its sharding says that it is replicated,
    unless that is to be trusted.
    """
    found: list[bool] = []
    for node in body.nodes:
        if node.op == "parameter":
            is_entry = body.name == module.entry
            found.append(trust_shardings and is_entry and _is_replicated(node))
        elif node.op in _GIVES_ALL:
            found.append(rank_groups(module, node) == groups)
        elif OPS[node.op].collective or node.op in CONTROL_FLOW or node.op in _TELLS_RANKS:
            found.append(False)
        else:
            found.append(all(found[operand] for operand in node.operands))
    return found


def _is_replicated(parameter: Node) -> bool:
    sharding = parameter.attributes.get("sharding")
    return isinstance(sharding, Raw) and sharding.text.replace(" ", "") == "{replicated}"
