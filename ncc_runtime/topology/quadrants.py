"""Which link ports of its chip each logical core sits at, where that is published (Trainium2).

A Trainium2 chip has four S-engines, each with two physical cores, a memory stack and one of the
ports N, W, S, E. Which is which depends on whether the chip's row and column are even or odd. In an
UltraServer two of them also have each of the ports D and U, and every second instance is turned.
Bytes that leave by another port first cross the chip.
"""

import numpy as np

from ncc_runtime.topology.graph import Topology

PORTS = "NWSEDU"
"""Ports of a torus by their codes."""

_OPPOSITE = np.array([2, 3, 0, 1, 5, 4, -1], np.int8)  # NO_PORT, index -1, is its own

NO_PORT = -1


def port_codes(topology: Topology) -> np.ndarray:
    """The port by which each link of an instance leaves its chip, (links_per_node,) int8."""
    known = set("".join(topology.core_ports)) - {" "}
    codes = [PORTS.index(port) if port in known else NO_PORT for port in topology.links.port]
    return np.array(codes, np.int8)


def opposite(codes: np.ndarray) -> np.ndarray:
    """The port by which a link enters, given the one by which it leaves the chip before."""
    return np.asarray(_OPPOSITE[codes])


def dies_of_cores(topology: Topology) -> np.ndarray:
    """The die of every logical core of a chip, (ranks_per_chip,) int8, in order."""
    first_core = np.arange(topology.ranks_per_chip) * topology.lnc
    return (first_core * topology.intra_chip.dies // topology.cores_per_chip).astype(np.int8)


def ports_of_cores(topology: Topology) -> np.ndarray:
    """The code of the port N, W, S or E of every logical core, (chips_per_node, ranks_per_chip)."""
    return _codes(topology, 0)


def planes_of_cores(topology: Topology) -> np.ndarray:
    """The code of the port D or U of every logical core, as ports_of_cores; or NO_PORT."""
    return _codes(topology, 1)


def _codes(topology: Topology, letter: int) -> np.ndarray:
    """By chip and core int8, of the first or second letter of its quadrant, or NO_PORT.

    `core_ports` has a word for each parity of row and column, or of plane, row and column, such as
    `NWSE` or `ND WU SD EU`: the ports of the four quadrants.
    """
    shape = (topology.chips_per_node, topology.ranks_per_chip)
    quadrants = [word.split() if " " in word else list(word) for word in topology.core_ports]
    if not quadrants or len(quadrants[0][0]) <= letter:
        return np.full(shape, NO_PORT, np.int8)
    codes = np.array([[PORTS.index(ports[letter]) for ports in word] for word in quadrants])
    rows, columns = topology.levels[0].dims[-2:]
    plane, within = np.divmod(np.arange(shape[0]), rows * columns)
    row, column = np.divmod(within, columns)
    variant = (plane % 2 * 4 + row % 2 * 2 + column % 2) % len(codes)
    first_core = np.arange(shape[1]) * topology.lnc
    quadrant = first_core * codes.shape[1] // topology.cores_per_chip
    return codes[variant[:, None], quadrant].astype(np.int8)
