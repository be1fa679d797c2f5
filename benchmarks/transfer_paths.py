"""Moves of many ranks: one indexed call over all of them, against one call a rank.

Prints, per size, the microseconds of both ways of `execution/values/transfers.py` and their ratio;
the size where the ratio crosses 1 is what SMALL_BYTES there stands on (docs/decisions.md, 7).

Run: python benchmarks/transfer_paths.py [--ranks 64]
"""

import argparse
import platform
import statistics
import time

import numpy as np

from ncc_runtime.execution.values.memory import Arena

REPEATS = 21


def median_us(move) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        move()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    ranks = parser.parse_args().ranks
    today = time.strftime("%Y-%m-%d")
    print(f"{today} {platform.processor() or platform.machine()}, {ranks} ranks")
    print(f"{'bytes':>8} {'together us':>12} {'one by one us':>14} {'ratio':>6}")
    everybody = np.arange(ranks)
    successor = np.roll(everybody, -1)
    for size in (64, 1024, 4096, 16384, 32768, 65536, 262144):
        arena = Arena(ranks, 4 * size)
        windows = arena.windows(np.dtype(np.float32), size // 4)
        source, target = np.zeros(ranks, np.int64), np.full(ranks, size // 2)

        def together(windows=windows, source=source, target=target) -> None:
            windows[successor, target] = windows[everybody, source]

        def one_by_one(arena=arena, size=size) -> None:
            for rank, peer in zip(everybody.tolist(), successor.tolist(), strict=True):
                arena.row(peer, 2 * size, size)[:] = arena.row(rank, 0, size)

        first, second = median_us(together), median_us(one_by_one)
        print(f"{size:>8} {first:>12.1f} {second:>14.1f} {first / second:>6.2f}")


if __name__ == "__main__":
    main()
