"""Which chosen nodes of a computation others depend on, as sets of bits."""

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
