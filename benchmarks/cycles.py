"""How long Hamiltonian cycles of tori take to be made, and how many there are.

Prints, per torus, its chips, the cycles there and back that share no link, the most there can be,
and the least processor time of several runs.

Run: python benchmarks/cycles.py
"""

import math
import time

from ncc_runtime.topology.cycles import grid_cycles

TORI = ((4, 4, 4), (8, 4, 4), (5, 3, 2), (8, 8, 8), (7, 7, 7), (32, 16), (16, 8, 8), (16, 16, 16))
RUNS = 5


def seconds(dims: tuple[int, ...]) -> float:
    """The least of several runs."""
    taken = []
    for _ in range(RUNS):
        begun = time.process_time()
        grid_cycles(dims, ())
        taken.append(time.process_time() - begun)
    return min(taken)


def main() -> None:
    print(f"{'torus':10}  {'chips':>5}  {'cycles':>6}  {'most':>4}  {'ms':>7}")
    for dims in TORI:
        found = len(grid_cycles(dims, ()))
        name = "x".join(map(str, dims))
        times = f"{seconds(dims) * 1e3:7.1f}"
        print(f"{name:10}  {math.prod(dims):5}  {2 * found:6}  {2 * len(dims):4}  {times}")


if __name__ == "__main__":
    main()
