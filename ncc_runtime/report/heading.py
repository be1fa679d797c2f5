"""What reports of a placed program begin with: what it is and where it is."""

from typing import Any

from ncc_runtime.lowering.executable import Executable

SCHEMA = 1
"""Of every JSON object that `nccrt` prints."""


def heading(executable: Executable) -> str:
    """The first line: `mlp: 8 ranks on 1 x trn2.48xlarge, lnc 2, linear`."""
    topology, place = executable.topology, executable.placement
    return (
        f"{executable.program.name}: {executable.ranks} ranks on {topology.nodes} x "
        f"{topology.name}, lnc {topology.lnc}, {place.strategy}"
    )


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
    }
