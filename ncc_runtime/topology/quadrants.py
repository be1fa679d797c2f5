"""Which link port of its chip each logical core sits at, where that is published (Trainium2).

A Trainium2 chip has four S-engines, each with two physical cores, a memory stack and one of the
ports N, W, S, E. Which is which depends on whether the chip's row and column are even or odd. Bytes
that leave by another port first cross the chip.
"""

import numpy as np

from ncc_runtime.topology.graph import Topology

PORTS = "NWSE"
"""Ports of a torus by their codes 0..3; the opposite of a port is two further round."""

NO_PORT = -1


def port_codes(topology: Topology) -> np.ndarray:
    """The port by which each link of an instance leaves its chip, (links_per_node,) int8."""
    if not topology.core_ports:
        return np.full(topology.links_per_node, NO_PORT, np.int8)
    return np.array([PORTS.index(port) for port in topology.links.port], np.int8)


def opposite(codes: np.ndarray) -> np.ndarray:
    """The port by which a link enters, given the one by which it leaves the chip before."""
    return np.where(codes == NO_PORT, codes, (codes + 2) % 4).astype(np.int8)


def dies_of_cores(topology: Topology) -> np.ndarray:
    """The die of every logical core of a chip, (ranks_per_chip,) int8, in order."""
    first_core = np.arange(topology.ranks_per_chip) * topology.lnc
    return (first_core * topology.intra_chip.dies // topology.cores_per_chip).astype(np.int8)


def ports_of_cores(topology: Topology) -> np.ndarray:
    """The port code of every logical core, (chips_per_node, ranks_per_chip) int8, or NO_PORT."""
    shape = (topology.chips_per_node, topology.ranks_per_chip)
    if not topology.core_ports:
        return np.full(shape, NO_PORT, np.int8)
    words = np.array([[PORTS.index(port) for port in word] for word in topology.core_ports])
    row, column = np.divmod(np.arange(shape[0]), topology.dims[1])
    first_core = np.arange(shape[1]) * topology.lnc
    quadrant = first_core * words.shape[1] // topology.cores_per_chip
    return words[(row % 2 * 2 + column % 2)[:, None], quadrant].astype(np.int8)
