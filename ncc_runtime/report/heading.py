"""What reports of a placed program begin with: what it is and where it is."""

from typing import Any

from ncc_runtime.lowering.capacity import rank_capacity, size_text
from ncc_runtime.lowering.executable import Executable

SCHEMA = 1
"""Of every JSON object that `nccrt` prints."""


def heading(executable: Executable) -> str:
    """The first line: `mlp: 8 ranks on 1 x trn2.48xlarge, lnc 2, linear`."""
    topology, place = executable.topology, executable.placement
    line = (
        f"{executable.program.name}: {executable.ranks} ranks on {topology.nodes} x "
        f"{topology.name}, lnc {topology.lnc}, {place.strategy}"
    )
    if not executable.ignores_memory:
        return line
    need, there = size_text(executable.hbm_bytes), size_text(rank_capacity(topology))
    return f"{line}\nmemory ignored: it takes {need} a rank, which has {there}"


def facts(executable: Executable) -> dict[str, Any]:
    """The same as the first keys of an object."""
    topology = executable.topology
    return {
        "schema": SCHEMA,
        "model": executable.program.name,
        "topology": topology.name,
        "nodes": topology.nodes,
        "lnc": topology.lnc,
        "placement": executable.placement.strategy,
        "ranks": executable.ranks,
        "memory_ignored": executable.ignores_memory,
    }
