"""Which algorithm fills which placeholder: the registry, and the choice."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs

from ncc_runtime.collectives import (
    all_to_all,
    by_dimension,
    counted,
    direct,
    hierarchical,
    kangaring,
    mesh,
    one_chip,
    rdh,
    ring,
    rooted,
    shifts,
    single_step,
    synthesised,
    torus,
    tree,
)
from ncc_runtime.collectives.candidates import MANY, Algorithm, Candidate, Candidates
from ncc_runtime.collectives.folds import FoldedParts
from ncc_runtime.collectives.layout import Members
from ncc_runtime.collectives.loads import Loads
from ncc_runtime.collectives.machine import LoadsKey, Machine
from ncc_runtime.collectives.plan import Job
from ncc_runtime.collectives.price import least_ps, priced
from ncc_runtime.errors import LoweringError
from ncc_runtime.instances import FirstParts
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.parts import Parts
from ncc_runtime.placement import Placement
from ncc_runtime.timing import TimingModel
from ncc_runtime.topology.routes import Routes

ALGORITHMS: Mapping[CollectiveOp, Mapping[str, Algorithm]] = {
    CollectiveOp.ALL_REDUCE: {
        "ring": Algorithm(ring.arrange, ring.all_reduce, most_folded=MANY),
        "kangaring": Algorithm(kangaring.arrange, kangaring.all_reduce),
        "tree": Algorithm(tree.arrange, tree.all_reduce, most_folded=MANY),
        "double-tree": Algorithm(tree.arrange, tree.double_all_reduce, most_folded=MANY),
        "mesh": Algorithm(mesh.arrange, mesh.all_reduce),
        "single-step-mesh": Algorithm(single_step.arrange, single_step.all_reduce),
        "direct": Algorithm(one_chip.arrange, one_chip.all_reduce),
        "rdh": Algorithm(rdh.arrange, rdh.all_reduce),
        **{pair.name: Algorithm(pair.arrange, pair.all_reduce) for pair in hierarchical.PAIRS},
        **{
            kind.name: Algorithm(kind.arrange, kind.all_reduce, is_published=False)
            for kind in torus.KINDS
        },
        "synthesised": Algorithm(synthesised.arrange, synthesised.all_reduce, is_published=False),
    },
    CollectiveOp.REDUCE_SCATTER: {
        "ring": Algorithm(ring.arrange, ring.reduce_scatter, most_folded=MANY),
        "kangaring": Algorithm(kangaring.arrange, kangaring.reduce_scatter),
        "mesh": Algorithm(mesh.arrange, mesh.reduce_scatter),
        "rdh": Algorithm(rdh.arrange, rdh.reduce_scatter),
        **{pair.name: Algorithm(pair.arrange, pair.reduce_scatter) for pair in hierarchical.PAIRS},
        **{
            kind.name: Algorithm(kind.arrange, kind.reduce_scatter, is_published=False)
            for kind in torus.KINDS
        },
        "synthesised": Algorithm(
            synthesised.arrange, synthesised.reduce_scatter, is_published=False
        ),
    },
    CollectiveOp.ALL_GATHER: {
        "ring": Algorithm(ring.arrange, ring.all_gather, most_folded=MANY),
        "kangaring": Algorithm(kangaring.arrange, kangaring.all_gather),
        "mesh": Algorithm(mesh.arrange, mesh.all_gather),
        "rdh": Algorithm(rdh.arrange, rdh.all_gather),
        **{pair.name: Algorithm(pair.arrange, pair.all_gather) for pair in hierarchical.PAIRS},
        **{
            kind.name: Algorithm(kind.arrange, kind.all_gather, is_published=False)
            for kind in torus.KINDS
        },
        "synthesised": Algorithm(synthesised.arrange, synthesised.all_gather, is_published=False),
    },
    CollectiveOp.ALL_TO_ALL: {
        "direct": Algorithm(shifts.arrange, direct.all_to_all),
        "pairwise": Algorithm(shifts.arrange, all_to_all.pairwise),
        "bruck": Algorithm(direct.arrange, all_to_all.bruck),
        "torus": Algorithm(by_dimension.arrange, by_dimension.all_to_all, is_published=False),
    },
    CollectiveOp.PERMUTE: {"direct": Algorithm(direct.arrange, direct.permute)},
    CollectiveOp.BROADCAST: {"chain": Algorithm(rooted.arrange, rooted.broadcast)},
    CollectiveOp.REDUCE: {"chain": Algorithm(rooted.arrange, rooted.reduce)},
    CollectiveOp.GATHER: {"direct": Algorithm(rooted.arrange, rooted.gather)},
    CollectiveOp.SCATTER: {"direct": Algorithm(rooted.arrange, rooted.scatter)},
    CollectiveOp.RAGGED_ALL_TO_ALL: {
        "direct": Algorithm(shifts.arrange, counted.ragged_all_to_all)
    },
    CollectiveOp.ALL_GATHER_V: {"direct": Algorithm(shifts.arrange, counted.into_slots)},
    CollectiveOp.REDUCE_SCATTER_V: {"direct": Algorithm(shifts.arrange, counted.reduce_scatter)},
    CollectiveOp.ALL_TO_ALL_V: {"direct": Algorithm(shifts.arrange, counted.into_slots)},
    CollectiveOp.BARRIER: {"dissemination": Algorithm(rooted.arrange, rooted.barrier)},
}
"""Every algorithm of every operator; the first of each works for every group."""


def check_forced(forced: Mapping[str, str]) -> None:
    """Refuse `OP=NAME` that names no operator or no algorithm of it."""
    for op_name, name in forced.items():
        known = {op.value: list(algorithms) for op, algorithms in ALGORITHMS.items()}
        if op_name not in known:
            raise LoweringError(f"no collective {op_name!r}; there are {', '.join(known)}")
        if name not in known[op_name]:
            there = ", ".join(known[op_name])
            raise LoweringError(f"{op_name} has no algorithm {name!r}; it has {there}")


@attrs.frozen(eq=False)
class Choice:
    """What fills a placeholder, among what could."""

    chosen: Candidate
    is_forced: bool
    candidates: tuple[Candidate, ...]  # in the order of the registry


class Chooser:
    """Takes the cheapest for all placeholders on one placement; remembers loads and prices."""

    def __init__(
        self,
        placement: Placement,
        forced: Mapping[str, str],
        room_bytes: int | None = None,  # what is left for channel buffers; None: no limit
        streams: int = 1,  # of the program: those without a CC-core of their own share
        seen: int | None = None,  # ranks of the first instance, if they stand for all
    ) -> None:
        self._placement = placement
        self._forced = forced
        self._streams = streams
        self._seen = seen
        self._made = Candidates(placement, forced, room_bytes, seen)
        self._loads: dict[LoadsKey, Loads] = {}
        self._prices: dict[Candidate, Candidate] = {}  # what a candidate is with its price

    def unfolded(self) -> "Chooser":
        """The same for an executable of all ranks; it knows what this one has found out."""
        other = Chooser(self._placement, self._forced, streams=self._streams)
        other._made = self._made.unfolded()
        other._loads, other._prices = self._loads, self._prices
        return other

    @cached_property
    def parts(self) -> Parts:
        """The machine that candidates are priced on."""
        topology = self._placement.topology
        model = TimingModel.from_topology(topology)
        return Parts(Routes(topology, self._placement), model, self._placement.ranks)

    @cached_property
    def _folded_parts(self) -> FoldedParts | None:
        if self._seen is None:
            return None
        count = self._placement.ranks // self._seen
        return FoldedParts(self._seen, FirstParts.of(self.parts, count))

    def candidates(
        self, job: Job, groups: Sequence[Members], price_all: bool = False
    ) -> tuple[Candidate, ...]:
        """What could fill a placeholder, also what cannot run; only what is forced, if anything.

        Prices, and what is not forced, are there only if asked for. Of several there is the least
        that each can cost; `best` finds out more of those for which that comes to matter.
        """
        wanted = self._forced.get(job.placeholder.op.value)
        if wanted is not None and not price_all:
            return (
                self._made.sketched(job, wanted, ALGORITHMS[job.placeholder.op][wanted], groups),
            )
        found = self.unpriced(job, groups)
        if price_all:
            return tuple(self.with_price(job, one) for one in found)
        if sum(not one.reason for one in found) > 1:
            machine = self.machine(job)
            return tuple(one if one.reason else _bounded(machine, one) for one in found)
        return found

    def unpriced(self, job: Job, groups: Sequence[Members]) -> tuple[Candidate, ...]:
        """What could fill a placeholder, which is the same for any rates and times."""
        found: dict[str, Candidate] = {}
        algorithms, most = ALGORITHMS[job.placeholder.op], max(map(len, groups), default=0)
        late = [
            name
            for name, one in algorithms.items()
            if self._seen is not None and one.most_folded is not None and one.most_folded < most
        ]
        for name in sorted(algorithms, key=late.__contains__):
            if name in late and any(not one.reason for one in found.values()):
                reason = f"with {most} members it is not tried beside others, only if it is forced"
                found[name] = Candidate(name, None, reason)
            else:
                found[name] = self._made.sketched(job, name, algorithms[name], groups)
        return tuple(found[name] for name in algorithms)

    def best(self, job: Job, found: Sequence[Candidate]) -> Choice:
        """The cheapest candidate, of equal ones the first; what is forced if it can run.

        LoweringError if nothing can.
        """
        wanted = self._forced.get(job.placeholder.op.value)
        while True:
            able = [one for one in found if not one.reason and wanted in (None, one.name)]
            if not able:
                reasons = [one for one in found if wanted in (None, one.name)]
                raise LoweringError(_refusal(job, reasons))
            chosen = min(able, key=lambda one: one.time_ps)
            settled = self._made.sure(job, chosen)
            if settled.price is None and chosen.least_ps is not None:
                settled = self.with_price(job, settled)
            if settled is chosen:
                return Choice(chosen, wanted is not None, tuple(found))
            found = [settled if one is chosen else one for one in found]

    def with_price(self, job: Job, one: Candidate) -> Candidate:
        """The candidate with its price, where it can run."""
        one = self._made.sure(job, one)
        if one.reason or one.price is not None:
            return one
        if one not in self._prices:
            self._prices[one] = self.priced_on(self.machine(job), job, one)
        return self._prices[one]

    def machine(self, job: Job) -> Machine:
        """What a placeholder is priced on."""
        cores = self.parts.model.cc_cores_of(job.placeholder.stream, self._streams)
        return Machine(self.parts, cores, self._loads, self._folded_parts)

    @staticmethod
    def priced_on(machine: Machine, job: Job, one: Candidate) -> Candidate:
        """A candidate that can run, with its price."""
        teams = one.teams
        if job.placeholder.op.is_counted:
            teams = tuple((counted.assumed(job, plan), ranks) for plan, ranks in teams)
        return attrs.evolve(one, price=priced(machine, teams, job.buffers.element_bytes))


def _bounded(machine: Machine, one: Candidate) -> Candidate:
    """The candidate with the least that it can cost."""
    return attrs.evolve(one, least_ps=least_ps(machine, one.teams))


def _refusal(job: Job, candidates: Sequence[Candidate]) -> str:
    names: dict[str, list[str]] = {}
    for one in candidates:
        names.setdefault(one.reason, []).append(one.name)
    reasons = "; ".join(f"{', '.join(its)}: {reason}" for reason, its in names.items())
    return f"{job.placeholder.name}: {job.placeholder.op.value} cannot run by {reasons}"
