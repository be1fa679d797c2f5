"""The small matrix: every algorithm on every machine that takes it, on at most four ranks."""

import functools
import random
import zlib
from collections.abc import Iterator, Mapping

import attrs

import ncc_compiler
import ncc_runtime
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError, PlacementError
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.reductions import Reduction
from tests.mutants import Mutant, sample
from tests.mutation.engine_programs import BODIES, BODIES_OF_GROUPS, model_text
from tests.mutation.used_collectives import used_collective
from tests.programs import collective_program

MACHINES = {
    "trn1": ("trn1", 1, "linear"),
    "trn1, a rank per chip": ("trn1", 1, "spread"),
    "trn2": ("trn2", 1, "linear"),
    "inf2": ("inf2", 1, "linear"),
    "two trn1 over EFA": ("trn1", 2, "linear"),
    "two trn2 over EFA": ("trn2", 2, "linear"),
}


FIXED = {op: names for op, names in ALGORITHMS.items() if not op.is_counted}
"""Those whose bytes the oracles follow; tests/runtime/test_verify_counted.py breaks the others."""


@attrs.frozen
class Small:
    """A program and where it is placed."""

    name: str  # of the operator, or of the model
    algorithm: str
    machine: str
    ranks: int
    is_used: bool = False  # by an engine, and twice
    reduction: Reduction = Reduction.ADD
    in_place: bool = False

    def executable(self) -> Executable:
        """LoweringError or PlacementError if the machine or the algorithm does not take it."""
        topology, nodes, placement = MACHINES[self.machine]
        is_model = self.name in BODIES | BODIES_OF_GROUPS
        program = _compiled(self.name, self.ranks) if is_model else self._program()
        forced = {"all-reduce" if is_model else self.name: self.algorithm}
        return ncc_runtime.load(
            program, topology, nodes=nodes, placement=placement, algorithms=forced
        ).executable

    def _program(self) -> Program:
        op = CollectiveOp(self.name)
        ring = tuple((rank, (rank + 1) % self.ranks) for rank in range(self.ranks))
        pairs = ring if op is CollectiveOp.PERMUTE else ()
        size = 2 * self.ranks
        if self.is_used:
            return used_collective(
                op,
                self.ranks,
                size,
                pairs=pairs,
                reduction=self.reduction,
                in_place=self.in_place,
            )
        sizes = () if op is CollectiveOp.BARRIER else (size,)
        return collective_program(op, self.ranks, sizes, pairs=pairs)

    def __str__(self) -> str:
        how = [self.name, f"by {self.algorithm}"]
        how += ["used"] * self.is_used + ["in place"] * self.in_place
        how += [self.reduction.value] * (self.reduction is not Reduction.ADD)
        return f"{' '.join(how)}, {self.ranks} ranks, {self.machine}"


@functools.cache
def _compiled(name: str, ranks: int):
    return ncc_compiler.compile_text(model_text(name, ranks))


def candidates() -> Iterator[Small]:
    """Every program of the matrix, also those that cannot be placed."""
    for machine in MACHINES:
        for op, algorithms in FIXED.items():
            for algorithm in algorithms:
                yield Small(op.value, algorithm, machine, 4)
                for ranks in (2, 3):
                    yield Small(op.value, algorithm, machine, ranks, is_used=True)
                if op.reduces:
                    average = Small(op.value, algorithm, machine, 2, reduction=Reduction.AVERAGE)
                    yield attrs.evolve(average, is_used=True)
                if op is CollectiveOp.ALL_REDUCE:
                    yield Small(op.value, algorithm, machine, 2, is_used=True, in_place=True)
    for name in BODIES:
        for algorithm, machine in (("ring", "trn1"), ("kangaring", "inf2"), ("mesh", "trn2")):
            yield Small(name, algorithm, machine, 2)
    for name in BODIES_OF_GROUPS:
        yield Small(name, "ring", "trn1", 4)


def cases(machine: str | None = None) -> Mapping[Small, Executable]:
    """Every program of the matrix that can be placed, filled; of one machine or of all."""
    found = {}
    for small in candidates():
        if machine not in (None, small.machine):
            continue
        try:
            found[small] = small.executable()
        except (LoweringError, PlacementError):
            continue
    return found


def small_mutants(small: Small, executable: Executable, most: int | None) -> list[Mutant]:
    """One of each kind, or so many of them; others for every program."""
    seed = zlib.crc32(str(small).encode())
    mutants = sample(executable, seed, of_each_kind=1)
    return mutants if most is None else random.Random(seed).sample(mutants, min(most, len(mutants)))
