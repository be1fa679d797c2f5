"""Which chosen nodes of a computation others depend on, or depend on others, as sets of bits."""

from collections.abc import Collection

from ncc_compiler.ir.graph import Computation

Bits = int
"""Bit k stands for the k-th chosen node, in the order of the computation."""


def chosen_before(body: Computation, chosen: Collection[int]) -> list[Bits]:
    """For every node, the chosen ones that it depends on, directly or through others."""
    bit = {position: 1 << k for k, position in enumerate(sorted(chosen))}
    found: list[Bits] = []
    for node in body.nodes:
        bits = 0
        for operand in node.operands:
            bits |= found[operand] | bit.get(operand, 0)
        found.append(bits)
    return found


def chosen_behind(body: Computation, chosen: Collection[int]) -> list[Bits]:
    """For every node, the chosen ones that depend on it, directly or through others."""
    bit = {position: 1 << k for k, position in enumerate(sorted(chosen))}
    found: list[Bits] = [0] * len(body.nodes)
    for position in range(len(body.nodes) - 1, -1, -1):
        bits = found[position] | bit.get(position, 0)
        for operand in body.nodes[position].operands:
            found[operand] |= bits
    return found
