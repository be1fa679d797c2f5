"""The result of a run, as the caller gets it, and how its program and proofs are reported."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import numpy as np

from ncc_runtime.errors import InputError, StallError
from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.execution.trace import Trace, Traffic
from ncc_runtime.group_rules.verdict import Verdict
from ncc_runtime.host_memory import HostMemory
from ncc_runtime.lowering.capacity import rank_capacity
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.memory import MemoryUse, memory_json, memory_of, memory_text
from ncc_runtime.options import Policy, RunOptions
from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.report.collectives import CollectiveRow, collective_rows
from ncc_runtime.verify.proof import Proof

if TYPE_CHECKING:
    from ncc_runtime.report.rates import PerStep, Rates
    from ncc_runtime.report.timeline.marks import Mark


class FaultOfRun(Protocol):
    """A fault on one executable."""

    @property
    def name(self) -> str:
        """In one line."""

    @property
    def disturbance(self) -> Disturbance:
        """What it does, and where."""


class FaultsOfRun(Protocol):
    """What faults did to a run; `ncc_runtime/faults/report.py` makes it."""

    @property
    def faults(self) -> Sequence[FaultOfRun]:
        """The faults that were given."""

    @property
    def is_complete(self) -> bool:
        """Whether the run comes to its end."""

    @property
    def timeline(self) -> "tuple[Trace, Sequence[Mark]] | None":
        """What was performed, and marks of the faults; None for a run without an end."""

    def refusal(self) -> str:
        """In one line, why not."""

    def lines(self) -> Iterator[str]:
        """As printed."""

    def as_json(self) -> dict[str, Any]:
        """As an object."""


def spread_alone(_: int, given: RankedArray) -> np.ndarray:
    """[ranks, *shape] of an output, in an array that nobody else has."""
    return np.array(given.whole(), copy=not given.is_each)


@attrs.frozen
class Alternative:
    """The same program where one thing is chosen otherwise, and the time that it takes there."""

    words: str  # `policy=best`, as `--on` takes it
    time_us: float


@attrs.frozen(eq=False, repr=False)
class Run:
    """The result of a run; parts that were not requested are empty or None.

    `print(run)` is the summary of `nccrt run`, `as_dict()` what its `--json` prints; a notebook
    shows tables.

    - `outputs`: arrays, each `[ranks, *shape]`, in the order of the program's results
    - `ranked_outputs`: the same, where ranks with equal ones share one
    - `result`: what the function returns, as whole arrays in its trees
    - `time_us`: predicted time until the last rank is done, in microseconds; None without a clock
    - `healthy_us`: the same where nothing is down or slow, by the same policy; None if nothing is,
      or it cannot be told: what is forced does not run there, or sizes follow from values
    - `free_us`: the same where any order of reduction may be chosen; None unless one is held
    - `alternatives`: the same by the other policy and placement, where `options` ask for it
    - `collectives`: a row for each, with its algorithm, times in microseconds, bytes by transport
    - `proofs`: what was proved before it ran
    - `notes`: what was assumed, where data decides and values were not computed
    - `trace`: when each instruction ran, in picoseconds; None without a clock
    - `traffic`: bytes that each collective moved, rank by rank
    - `interpreters`: by collective, how its values were computed: "normal form" or "literal"
    - `spread`: makes `[ranks, *shape]` of an output of `ranked_outputs`, by its number
    - `host_memory`: memory of this host that its values were to take; None without values
    - `options`: how it ran
    - `host_s`: seconds that it took on this host
    - `faults`: what the faults that were given did; of a run that they keep from its end it is all
      there is, without outputs, times and traffic
    """

    executable: Executable
    options: RunOptions
    ranked_outputs: Sequence[RankedArray]
    trace: Trace | None
    traffic: tuple[Traffic, ...]
    proofs: tuple[Proof, ...] = ()
    notes: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()  # of the hardware's rules on the groups
    host_s: float = 0.0
    healthy_us: float | None = None
    free_us: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    faults: FaultsOfRun | None = None
    interpreters: Mapping[int, str] = attrs.field(factory=dict)
    host_memory: HostMemory | None = None
    assemble: Callable[[Sequence[RankedArray]], Any] | None = None  # `result` of the outputs
    spread: Callable[[int, RankedArray], np.ndarray] = spread_alone

    @functools.cached_property
    def outputs(self) -> list[np.ndarray]:
        """Arrays that are the caller's, [ranks, *shape]; made when they are asked for."""
        return [self.spread(number, one) for number, one in enumerate(self.ranked_outputs)]

    @functools.cached_property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """A row for each collective; made when it is asked for."""
        return collective_rows(self.executable, self.traffic, self.trace)

    @functools.cached_property
    def result(self) -> Any:
        """What the function returns, as whole arrays in its trees; None without values.

        Of a `.neff` file it is a mapping of whole arrays by name. A part that several ranks have is
        that of the lowest; an array of which the file does not say how it lies on the ranks stays
        `[ranks, *shape]`. StallError if faults keep the run from its end.
        """
        if self.faults is not None and not self.faults.is_complete:
            raise StallError(self.faults.refusal())
        return None if self.assemble is None else self.assemble(self.ranked_outputs)

    def __repr__(self) -> str:
        time = "no clock" if self.time_us is None else f"{self.time_us} us"
        outputs, collectives = len(self.ranked_outputs), len(self.collectives)
        return f"<Run: {outputs} outputs, {collectives} collectives, {time}>"

    def __str__(self) -> str:
        from ncc_runtime.report.summary import as_text

        return as_text(self.executable, self, self.options, self.host_s)

    def _repr_html_(self) -> str:

        from ncc_runtime.report.summary import as_html

        return as_html(self)

    def as_dict(self, per_step: "str | int | PerStep | None" = None) -> dict[str, Any]:
        """The object that `nccrt run --json` prints: times in microseconds, sizes in bytes.

        `per_step` is as for `rates`.
        """
        from ncc_runtime.report.summary import as_json

        return as_json(self.executable, self, self.options, self.host_s, self.verdicts, per_step)

    def rates(self, per_step: "str | int | PerStep | None" = None) -> "Rates | None":
        """How often it would run in a second, and how much of the matrix engines' peak it uses.

        `per_step` is what all ranks together do in one run: "8192 tokens", "32 sequences",
        "4 steps"; a number alone is of tokens. InputError if it cannot be read. None without a
        clock, and for a run that takes no time.
        """
        from ncc_runtime.report.rates import per_step_of, rates_of

        done = per_step_of(per_step)
        return None if self.trace is None else rates_of(self.trace, done)

    def write_chakra(self, path: str | os.PathLike[str], times: str = "alone") -> int:
        """Write the run as execution traces of Chakra into a new folder; returns their nodes.

        `times` of instructions are what they take if nobody else moves bytes ("alone"), those of
        the run, also of collectives ("run"), or "none" (docs/chakra.md). InputError if the run has
        no clock, and for a collective of variable size; StallError if faults keep it from its end,
        OSError where files cannot be written.
        """
        from ncc_runtime.report.chakra.write import TraceTimes, write_chakra

        if self.timeline is None:
            raise InputError("the run has no clock and so no order: run it with clock=True")
        if self.faults is not None and not self.faults.is_complete:
            raise StallError(self.faults.refusal())
        return write_chakra(path, self.timeline[0], TraceTimes(times))

    def write_trace(self, path: str | os.PathLike[str], ranks: Sequence[int] | None = None) -> None:
        """Write the timeline for ui.perfetto.dev: `.pftrace`, or `.json` for Chrome, also `.gz`.

        `ranks` are those that it shows, all by default. InputError if the run has no clock, or
        there is no such rank; NeffError if the file cannot be written.
        """
        from ncc_runtime.report.timeline.write import mask_of_ranks, write_timeline

        if self.timeline is None:
            raise InputError("the run has no clock and so no timeline: run it with clock=True")
        trace, marks = self.timeline
        write_timeline(os.fspath(path), trace, mask_of_ranks(self.executable, ranks), marks)

    def write_report(
        self,
        path: str | os.PathLike[str],
        against: "Run | None" = None,
        ranks: Sequence[int] | None = None,
        per_step: "str | int | PerStep | None" = None,
    ) -> None:
        """Write a page that opens from disk in any browser, `.html`: what `nccrt report` writes.

        `against` is a run of the same program elsewhere, which is shown beside it. `ranks` are
        those whose tracks it has, all by default; `per_step` is as for `rates`. InputError if a run
        has no clock, there is no such rank, or one of two models was loaded with `times_only` and
        so has fewer ranks' columns; OSError if the file cannot be written.
        """
        from ncc_runtime.report.page.page import write_page
        from ncc_runtime.report.rates import per_step_of

        write_page(path, self, against, ranks, per_step_of(per_step))

    @property
    def timeline(self) -> "tuple[Trace, Sequence[Mark]] | None":
        """What a timeline shows: the events, and marks of faults, also of a run that stalls."""
        if self.faults is not None:
            return self.faults.timeline
        return None if self.trace is None else (self.trace, ())

    @property
    def time_us(self) -> float | None:
        """Predicted time until the last rank is done, in microseconds."""
        return None if self.trace is None else self.trace.time_ps / 1e6


SCHEMA = 1
"""Of every JSON object that `nccrt` prints."""


def heading(executable: Executable) -> str:
    """The first lines: what runs where under which policy, and the memory it takes.

    `mlp: 8 ranks on 1 x trn2.48xlarge, lnc 2, linear; policy neuron`
    """
    ignored = ", ignored" if executable.ignores_memory else ""
    return (
        f"{executable.program.name}: {executable.ranks} ranks on {executable.placement.where}; "
        f"{choice_text(executable.policy, executable.is_deterministic)}\n"
        f"{memory_text(memory_use(executable))}{ignored}"
    )


def choice_text(policy: Policy, is_deterministic: bool) -> str:
    """`policy neuron`, and whether one order of reduction is held."""
    return f"policy {policy}" + ", one order of reduction" * is_deterministic


def memory_use(executable: Executable) -> MemoryUse:
    """What the rank that takes most takes of its memory."""
    capacity = rank_capacity(executable.topology)
    return memory_of(executable.program, executable.hbm_bytes, capacity)


def facts(executable: Executable) -> dict[str, Any]:
    """The same as the first keys of an object."""
    return {
        "schema": SCHEMA,
        "model": executable.program.name,
        **executable.placement.as_json(),
        "policy": executable.policy,
        "deterministic": executable.is_deterministic,
        "ranks": executable.ranks,
        "memory": memory_json(memory_use(executable)),
        "memory_ignored": executable.ignores_memory,
    }


MOST_CLASSES = 8
"""Classes of a proof that a text names; the rest are counted."""


@attrs.frozen(eq=False, repr=False)
class Verification:
    """What `Model.verify` found, as `nccrt verify` prints it.

    - `proved`: whether all of it holds, for every order of execution
    - `proofs`: one each for deadlock, semantics, races …, with witnesses of what does not hold
    """

    executable: Executable
    proofs: tuple[Proof, ...]

    @property
    def proved(self) -> bool:
        """Whether every proof holds."""
        return is_proved(self.proofs)

    def __repr__(self) -> str:
        failed = [proof.name for proof in self.proofs if not proof.holds]
        verdict = f"not proved: {', '.join(failed)}" if failed else f"{len(self.proofs)} proofs"
        return f"<Verification: {verdict}>"

    def __str__(self) -> str:
        return as_text(self.executable, self.proofs)

    def as_dict(self) -> dict[str, Any]:
        """The object that `nccrt verify --json` prints."""
        return as_json(self.executable, self.proofs)

    def _repr_html_(self) -> str:
        from ncc_runtime.report import html

        rows = (
            (proof.name, proof.verdict, proof.presumed, proof.size, proof.seconds)
            for proof in self.proofs
        )
        headings = ("proof", "verdict", "presumes", "size", "seconds")
        breaches = "\n".join(_breaches(self.proofs))
        return html.block(
            html.line(heading(self.executable)),
            html.table("proofs", headings, rows),
            html.preformatted(breaches) if breaches else "",
        )


def is_proved(proofs: Sequence[Proof]) -> bool:
    """Whether there are proofs, and all hold."""
    return bool(proofs) and all(proof.holds for proof in proofs)


def as_json(executable: Executable, proofs: Sequence[Proof]) -> dict[str, Any]:
    """The object that `nccrt verify --json` prints."""
    return {**facts(executable), "verified": verified(proofs)}


def verified(proofs: Sequence[Proof]) -> dict[str, Any]:
    """The proofs as an object; not proved without any."""
    return {
        "proved": is_proved(proofs),
        "seconds": _seconds(proofs),
        "proofs": [
            {
                "name": proof.name,
                "verdict": proof.verdict,
                "presumed": proof.presumed or None,
                "size": proof.size,
                "seconds": round(proof.seconds, 6),
                "classes": list(proof.classes),
                "conditions": list(proof.conditions),
                "breaches": list(proof.texts),
            }
            for proof in proofs
        ],
    }


def sentence(proofs: Sequence[Proof]) -> str:
    """The line of a run's summary: `proved: well-formed, deadlock, races, 0.050 s`."""
    if not proofs:
        return "not verified (--no-verify)"
    return f"proved: {', '.join(proof.name for proof in proofs)}, {_seconds(proofs):.3f} s"


def _seconds(proofs: Sequence[Proof]) -> float:
    return round(sum(proof.seconds for proof in proofs), 6)


def as_text(executable: Executable, proofs: Sequence[Proof]) -> str:
    """A line for each proof; then the classes, and every breach with its witness."""
    return "\n".join(
        [
            heading(executable),
            *_table(proofs),
            *_classes(proofs),
            *(f"{proof.name} holds if {text}" for proof in proofs for text in proof.conditions),
            *_breaches(proofs),
        ]
    )


def _table(proofs: Sequence[Proof]) -> Iterator[str]:
    rows = [
        (proof.name, proof.verdict, f"presumes {proof.presumed}" if proof.presumed else proof.size)
        for proof in proofs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, proof in zip(rows, proofs, strict=True):
        cells = [word.ljust(width) for word, width in zip(row, widths, strict=True)]
        yield "  ".join([*cells, f"{proof.seconds:.3f} s"])


def _classes(proofs: Sequence[Proof]) -> Iterator[str]:
    """Equivalence classes of ranks, of each of which one was proved."""
    for proof in proofs:
        for text in proof.classes[:MOST_CLASSES]:
            yield f"alike in {proof.name}: {text}"
        if len(proof.classes) > MOST_CLASSES:
            yield f"alike in {proof.name}: {len(proof.classes) - MOST_CLASSES} more"


def _breaches(proofs: Sequence[Proof]) -> Iterator[str]:
    for proof in proofs:
        for breach in proof.texts:
            first, *witness = breach.splitlines()
            yield f"{proof.name}: {first}"
            yield from (f"  {line}" for line in witness)
