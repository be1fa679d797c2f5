"""The large matrix: every algorithm on every machine that takes it, on 8 to 64 ranks."""

import random
import zlib
from collections.abc import Iterator

import attrs

import ncc_runtime
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.reductions import Reduction
from tests.mutants import Mutant, sample
from tests.mutation.kinds import NEVER_EQUIVALENT
from tests.mutation.used_collectives import used_collective

PLACES = (  # topology, instances, placement, ranks
    ("trn1", 1, "spread", 8),
    ("trn2", 1, "spread", 16),
    ("trn1", 2, "linear", 16),
    ("inf2", 1, "linear", 24),
    ("trn1", 1, "linear", 32),
    ("trn2", 1, "linear", 64),
    ("trn2", 4, "linear", 64),
)


FIXED = {op: names for op, names in ALGORITHMS.items() if not op.is_counted}
"""Those whose bytes the oracles follow; tests/runtime/test_verify_counted.py breaks the others."""


@attrs.frozen
class Large:
    """A program of two equal collectives, and where it is placed."""

    op: CollectiveOp
    algorithm: str
    place: tuple[str, int, str, int]

    def executable(self) -> Executable:
        """LoweringError if the machine or the algorithm does not take it."""
        topology, nodes, placement, ranks = self.place
        turn = tuple((rank, (rank + 1) % ranks) for rank in range(ranks))
        program = used_collective(
            self.op,
            ranks,
            2 * ranks,
            pairs=turn if self.op is CollectiveOp.PERMUTE else (),
            reduction=Reduction.AVERAGE if ranks == 16 else Reduction.ADD,
        )
        return ncc_runtime.load(
            program,
            topology,
            nodes=nodes,
            placement=placement,
            algorithms={self.op.value: self.algorithm},
        ).executable

    def __str__(self) -> str:
        topology, nodes, placement, ranks = self.place
        where = f"{nodes} x {topology}, {placement}"
        return f"{self.op.value} by {self.algorithm}, {ranks} ranks, {where}"


def candidates() -> Iterator[Large]:
    """Every algorithm at every place, also where it cannot be."""
    for place in PLACES:
        for op, algorithms in FIXED.items():
            for algorithm in algorithms:
                yield Large(op, algorithm, place)


def large_cases(*places: tuple[str, int, str, int]) -> Iterator[tuple[Large, Executable]]:
    """Those that can be placed, made one after the other; of all places or of some."""
    for large in candidates():
        if places and large.place not in places:
            continue
        try:
            yield large, large.executable()
        except LoweringError:
            continue


def large_mutants(large: Large, executable: Executable, most: int | None) -> list[Mutant]:
    """One of each kind that is never equivalent, or so many of them."""
    seed = zlib.crc32(str(large).encode())
    mutants = sample(executable, seed, of_each_kind=1, kinds=NEVER_EQUIVALENT, most_cells=8)
    return mutants if most is None else random.Random(seed).sample(mutants, min(most, len(mutants)))
