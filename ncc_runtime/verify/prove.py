"""All proofs of a placed program, in order; read this file first.

    well-formed          numbers stand for something, and the hardware has what they take
    counters             semaphores only grow, and "value n" names one increment
    deadlock             every queue comes to its end, on every order
    semantics            every byte of every result is made of what the collective promises
    races                inside a collective, semaphores order what touches the same memory
    races of engines     so they do what engines and streams of one rank touch

None of them shares code with what made the executable. docs/proofs.md says why they suffice.
"""

import functools
import time
from collections.abc import Callable, Sequence

import attrs

from ncc_runtime.errors import ProofError
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.order import GreedyRun
from ncc_runtime.progress import steps
from ncc_runtime.verify.counters import Edges, prove_counters
from ncc_runtime.verify.deadlock import prove_deadlock
from ncc_runtime.verify.engine_races import prove_local
from ncc_runtime.verify.proof import Proof
from ncc_runtime.verify.races import prove_races
from ncc_runtime.verify.segments import Segment, segments
from ncc_runtime.verify.semantics.semantics import prove_semantics
from ncc_runtime.verify.wellformed.wellformed import prove_well_formed

SHOWN = 3
"""Breaches that a refusal shows in full; `nccrt verify` shows all."""


@attrs.frozen
class Part:
    """A proof, and the one that it presumes, with all that that one presumes."""

    name: str
    presumes: str
    make: "Callable[[_Prover], Proof]"


@attrs.frozen(eq=False)
class Evidence:
    """What proofs were made from, for others who ask what a proved program does."""

    segments: tuple[Segment, ...]
    run: GreedyRun  # that comes to its end


def prove(executable: Executable) -> tuple[Proof, ...]:
    """Every proof; one that presumes another that does not hold is not tried, and says so."""
    return prove_with_evidence(executable)[0]


def prove_with_evidence(executable: Executable) -> tuple[tuple[Proof, ...], Evidence | None]:
    """The same, and evidence if all hold."""
    executable.check_is_whole()
    prover = _Prover(executable)
    made: dict[str, Proof] = {}
    for part in steps(PARTS, "proofs", "proofs"):
        before = made.get(part.presumes)
        if before is not None and not before.holds:
            made[part.name] = Proof(part.name, "", presumed=before.presumed or before.name)
            continue
        started = time.perf_counter()
        proof = part.make(prover)
        made[part.name] = attrs.evolve(proof, seconds=time.perf_counter() - started)
    proofs = tuple(made.values())
    return proofs, prover.evidence() if all(proof.holds for proof in proofs) else None


def refuse(proofs: Sequence[Proof], shown: int = SHOWN) -> None:
    """ProofError with the first breaches, if any proof does not hold."""
    broken = [proof for proof in proofs if not proof.holds]
    if not broken:
        return
    names = ", ".join(proof.name for proof in broken if proof.breaches)
    breaches = [f"{proof.name}: {breach}" for proof in broken for breach in proof.breaches]
    lines = [line for breach in breaches[:shown] for line in breach.splitlines()]
    more = len(breaches) - shown
    if shown and more > 0:
        lines.append(f"… and {more} more, which nccrt verify shows")
    raise ProofError("\n  ".join([f"not proved: {names}", *lines]))


class _Prover:
    """Makes the proofs of an executable; what several of them need is worked out once."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self._run: GreedyRun | None = None

    @functools.cached_property
    def edges(self) -> Edges:
        return Edges(self.executable)

    @functools.cached_property
    def segments(self) -> tuple[Segment, ...]:
        return segments(self.executable, self.edges)

    def evidence(self) -> Evidence:
        assert self._run is not None, "proved programs come to their end"
        return Evidence(self.segments, self._run)

    def form(self) -> Proof:
        return prove_well_formed(self.executable)

    def counters(self) -> Proof:
        return prove_counters(self.executable, self.edges)

    def deadlock(self) -> Proof:
        proof, self._run = prove_deadlock(self.executable, self.edges)
        return proof

    def semantics(self) -> Proof:
        assert self._run is not None, "the proof of semantics follows a run"
        return prove_semantics(self.executable, self.segments, self._run)

    def races(self) -> Proof:
        assert self._run is not None, "the proof of races follows a run"
        return prove_races(self.executable, self.segments, self._run, self.edges)

    def local(self) -> Proof:
        return prove_local(self.executable)


PARTS = (
    Part("well-formed", "", _Prover.form),
    Part("counters", "well-formed", _Prover.counters),
    Part("deadlock", "counters", _Prover.deadlock),
    Part("semantics", "deadlock", _Prover.semantics),
    Part("races", "deadlock", _Prover.races),
    Part("races of engines", "deadlock", _Prover.local),
)
"""In order; a proof comes behind what it presumes."""
