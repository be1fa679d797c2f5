"""Kill rates: what the model checker says of mutants against what the proofs say."""

import re
from collections import Counter
from collections.abc import Sequence

import attrs

from ncc_runtime.lowering.executable import Executable
from ncc_runtime.verify.prove import prove
from tests.model_checker_pairs import decide
from tests.mutants import Mutant

RIGHT = {
    "deadlock": {"deadlock"},
    "races": {"races", "races of engines"},
    "values": {"semantics"},
    "routes": {"well-formed"},
    "counts": {"counters"},
}
"""The proofs whose business a fault is."""

FAULTY = frozenset(RIGHT)
"""What may be wrong with a mutant that nobody searched: one of these."""

STRICTER = (
    ("well-formed", ""),
    ("counters", ""),
    ("races", "reports completion while its memory is still in use"),
    ("races", "is used before that rank has come to the collective"),
    ("races of engines", "waits for what no queue of its rank increments"),
    ("semantics", "holds what was never written"),
)
"""Where the contract asks for more than one program needs, which is proved piece by piece.

The form of programs, counters that name one increment each, memory handed over and back whether or
not somebody else uses it, and zeros written even where there were zeros before.
"""


@attrs.frozen
class Said:
    """What the proofs say of an executable."""

    refuted: frozenset[str]
    untried: frozenset[str]  # they presume one that is refuted
    breach: str  # the first, "" if there is none

    @classmethod
    def of(cls, executable: Executable) -> "Said":
        proofs = prove(executable)
        return cls(
            frozenset(proof.name for proof in proofs if proof.texts),
            frozenset(proof.name for proof in proofs if proof.presumed),
            next((breach for proof in proofs for breach in proof.texts), ""),
        )


@attrs.frozen
class Outcome:
    """One mutant: what is wrong with it, and which proofs say so."""

    program: str
    kind: str
    about: str
    faults: frozenset[str]  # of the model checker; empty: equivalent
    said: Said

    @property
    def is_killed(self) -> bool:
        return bool(self.said.refuted)

    @property
    def is_right(self) -> bool:
        """Whether a proof whose business it is refuses it, or one that this proof presumes."""
        named = set().union(*(RIGHT[fault] for fault in self.faults))
        return self.is_killed and bool(named & (self.said.refuted | self.said.untried))

    @property
    def is_explained(self) -> bool:
        """Whether it is a fault, or not refused, or refused for a reason of the contract's."""
        if self.faults or not self.is_killed:
            return True
        return any(
            proof in self.said.refuted and text in self.said.breach for proof, text in STRICTER
        )

    def __str__(self) -> str:
        faults = ", ".join(sorted(self.faults)) or "equivalent"
        said = ", ".join(sorted(self.said.refuted)) or "nothing"
        where = f"{self.program}: {self.kind}: {self.about}"
        return f"{where}: {faults}; refuted: {said}: {self.said.breach}"


def outcome(program: str, mutant: Mutant, faults: frozenset[str] | None = None) -> Outcome:
    """Both verdicts on a mutant; `faults` if it is known without a search."""
    if faults is None:
        faults = decide(mutant.executable).kinds
    return Outcome(program, mutant.kind, mutant.about, faults, Said.of(mutant.executable))


TITLES = ("mutation", "mutants", "equivalent", "faults", "killed", "rate", "equivalent, refused")


def report(found: Sequence[Outcome]) -> str:
    """Rates by kind of mutation, who refuses what, and why equivalent mutants are refused."""
    if all(one.faults == FAULTY for one in found):
        return "\n\n".join((_table(found), _by_proof(found)))
    return "\n\n".join((_table(found), _by_fault(found), _reasons(found)))


def _table(found: Sequence[Outcome]) -> str:
    rows = [TITLES]
    for kind in [*sorted({one.kind for one in found}), ""]:
        its = [one for one in found if kind in ("", one.kind)]
        faulty = [one for one in its if one.faults]
        killed = sum(one.is_killed for one in faulty)
        refused = sum(one.is_killed for one in its if not one.faults)
        rate = f"{100 * killed / len(faulty):.1f} %" if faulty else "-"
        counts = (len(its), len(its) - len(faulty), len(faulty), killed)
        rows.append((kind or "all", *map(str, counts), rate, str(refused)))
    return _aligned(rows)


def _by_proof(found: Sequence[Outcome]) -> str:
    counts = Counter(proof for one in found for proof in one.said.refuted or {"nothing"})
    rows = [(proof, str(count)) for proof, count in sorted(counts.items())]
    return _aligned([("refused by", "mutants"), *rows])


def _by_fault(found: Sequence[Outcome]) -> str:
    counts = Counter(
        (fault, proof)
        for one in found
        for fault in one.faults or {"equivalent"}
        for proof in one.said.refuted or {"nothing"}
    )
    rows = [(*key, str(count)) for key, count in sorted(counts.items())]
    return _aligned([("fault", "refused by", "mutants"), *rows], words=2)


def _aligned(rows: Sequence[tuple[str, ...]], words: int = 1) -> str:
    """A table, the first columns to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _reasons(found: Sequence[Outcome]) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    for one in found:
        if one.is_killed and not one.faults:
            counts[", ".join(sorted(one.said.refuted)), _fact(one.said.breach)] += 1
    lines = [f"{n:6}  {proof}: {fact}" for (proof, fact), n in counts.most_common()]
    return "\n".join(
        ["equivalent mutants that are refused, since the contract asks for more", *lines]
    )


def _fact(breach: str) -> str:
    """The first line of a breach without its place and numbers."""
    fact = breach.split("\n", 1)[0]
    fact = re.sub(r"\(p\d+[^)]*\)", "", fact)
    fact = re.sub(r"^.*?pc \d+ ?:? ?", "", fact)
    return re.sub(r"-?(0x)?\d+", "#", fact)[:100]
