"""How long collectives take on every preset: the speeds that orders are judged at.

    python benchmarks/collective_speeds.py

An all-reduce over all ranks of an instance, and of two where instances can be joined, at 4 KiB and
at 64 MiB: its start, and what a byte takes beside that. `SPEEDS` of
ncc_compiler/overlap/cost_model.py are about the quickest, the median and the slowest of these.
"""

import json
import statistics
import subprocess
import sys

from ncc_runtime.topology.format.spec import preset_names
from ncc_runtime.topology.graph import build

SMALL, LARGE = 4 * 1024, 64 * 1024 * 1024


def microseconds(topology: str, nodes: int, ranks: int) -> list[float]:
    """Predicted times of both sizes."""
    command = (
        f"nccrt bench all_reduce -r {ranks} --topology {topology} --nodes {nodes} "
        f"-b {SMALL} -e {LARGE} -f {LARGE // SMALL} --json"
    )
    found = json.loads(subprocess.run(command.split(), check=True, capture_output=True).stdout)
    return [row["time_us"] for row in found["results"]]


def main() -> None:
    starts, rates = [], []
    print("topology              nodes  ranks  start us  ps a byte")
    for topology in preset_names():
        one = build(topology)
        for nodes in (1, 2) if one.efa is not None else (1,):
            ranks = nodes * one.ranks_per_node
            if ranks < 4:
                continue
            small, large = microseconds(topology, nodes, ranks)
            per_byte = (large - small) * 1e6 / (LARGE - SMALL)
            starts.append(small)
            rates.append(per_byte)
            print(f"{topology:22}{nodes:5}{ranks:7}{small:10.1f}{per_byte:11.2f}", flush=True)
    for name, values in (("start, us", starts), ("ps a byte", rates)):
        print(
            f"{name}: least {min(values):.2f}, median {statistics.median(values):.2f}, "
            f"most {max(values):.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
