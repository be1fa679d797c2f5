"""Which algorithm fills which placeholder: the registry, and the choice.

What could fill a placeholder: the plans of algorithms for groups, whole or of one instance.

Where instances are alike, an algorithm is *sketched* at first: one instance is taken to stand for
all, which is enough to know the least that it costs. What may be chosen is made sure of: the plan
is folded where that holds, and of all members elsewhere.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import attrs
import numpy as np

from ncc_runtime.collectives.algorithms import (
    all_to_all,
    all_to_all_torus,
    direct,
    hierarchical,
    kangaring,
    mesh,
    rdh,
    ring,
    rooted,
    single_step,
    synthesised,
    torus,
    tree,
    variable_size,
)
from ncc_runtime.collectives.cost.machine import Groups, LoadsKey, Machine
from ncc_runtime.collectives.cost.price import Price, least_ps, priced
from ncc_runtime.collectives.cost.usage import Loads
from ncc_runtime.collectives.layout import Arrange, GroupLayout, Members, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan, Symmetry
from ncc_runtime.collectives.plan_memory import shortage
from ncc_runtime.collectives.symmetry import FoldedParts, fold_of, is_folded_truly
from ncc_runtime.errors import LoweringError
from ncc_runtime.machine_model.instances import FirstParts
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import Placement
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.routes import Routes

MANY = 8192
"""Members whose rounds, or whose columns if one instance does not stand for all, are too many to be
tried among others."""


@attrs.frozen
class Algorithm:
    """How a group is arranged, and the plan that follows; equal arrangements give equal plans."""

    arrange: Arrange
    build: Callable[[Job, Any], Plan]  # given what `arrange` returned
    is_published: bool = True  # or not in conflict with what is, where that is known
    most_folded: int | None = None  # members it is tried for where another suits; None: any number


@attrs.frozen(eq=False)
class Sketch:
    """How to make the plans that are sketched, one for each arrangement of groups."""

    algorithm: Algorithm
    arranged: tuple[Hashable, ...]
    folds: tuple[Symmetry | None, ...]

    def whole(self, job: Job, plans: Sequence[Plan]) -> list[Plan]:
        """Plans of all members in place of those that are sketched."""
        return [
            plan if plan.symmetry is None else self.algorithm.build(job, how)
            for plan, how in zip(plans, self.arranged, strict=True)
        ]

    def is_true(self, job: Job, plans: Sequence[Plan]) -> bool:
        """Whether in all of the sketched plans one instance does stand for all.

        They are priced together, so that none is folded beside one that cannot be.
        """
        for plan, how, fold in zip(plans, self.arranged, self.folds, strict=True):
            if (plan.symmetry is None) != (fold is None):
                return False
            if not is_folded_truly(partial(self._built, how), job, plan):
                return False
        return True

    def _built(self, arranged: Hashable, job: Job) -> Plan:
        return self.algorithm.build(job, arranged)


@attrs.frozen(eq=False)
class Candidate:
    """An algorithm for a placeholder: what it costs, or why it does not run."""

    name: str
    price: Price | None
    reason: str = ""  # why it cannot run; "" if it can
    teams: tuple[tuple[Plan, Groups], ...] = attrs.field(default=(), repr=False)
    least_ps: int | None = None  # a lower bound, where it is priced when that comes to matter
    sketch: Sketch | None = attrs.field(default=None, repr=False)  # None: the plans are sure

    @property
    def time_ps(self) -> int:
        """What it takes, or at least; 0 where nobody asks."""
        return (self.least_ps or 0) if self.price is None else self.price.time_ps


class Candidates:
    """Makes the candidates on one placement; remembers arrangements, and what it made sure of."""

    def __init__(
        self,
        placement: Placement,
        forced: Mapping[str, str],
        room_bytes: int | None = None,  # what is left for channel buffers; None: no limit
        seen: int | None = None,  # ranks of the first instance, if they may stand for all
    ) -> None:
        self._placement = placement
        self._forced = forced
        self._room_bytes = room_bytes
        self._seen = seen
        self._is_folded = True  # plans may be
        self._arranged: dict[tuple[Arrange, Hashable], Hashable | UnsuitedError] = {}
        self._layouts: dict[Members, GroupLayout] = {}
        self._keys: dict[Members, Hashable] = {}  # of groups, equal where they sit alike
        self._folds: dict[Members, Symmetry | None] = {}
        self._sure: dict[tuple[Sketch, bool], Candidate] = {}  # by whether plans may be folded

    def unfolded(self) -> "Candidates":
        """The same, but what is sure is of all members."""
        other = Candidates(self._placement, self._forced, self._room_bytes, self._seen)
        other._is_folded = False
        other._arranged, other._layouts, other._keys = self._arranged, self._layouts, self._keys
        other._folds, other._sure = self._folds, self._sure
        return other

    def sketched(
        self, job: Job, name: str, algorithm: Algorithm, groups: Sequence[Members]
    ) -> Candidate:
        """All groups by one algorithm; groups that are arranged alike share one plan."""
        is_free = self._is_free(job)
        if is_free and not algorithm.is_published and _is_known(self._placement.topology, groups):
            known = f"{self._placement.topology.instance} takes what is published of it"
            return Candidate(name, None, f"{known}; --algorithm takes this all the same")
        alike: dict[tuple[Hashable, Symmetry | None], list[Members]] = {}
        for group in groups:
            arranged = self._arrange(algorithm, group)
            if isinstance(arranged, UnsuitedError):
                return Candidate(name, None, f"group {_short(group)}: {arranged}")
            alike.setdefault((arranged, self._fold(group)), []).append(group)
        try:
            plans = tuple(
                algorithm.build(attrs.evolve(job, symmetry=fold), arranged)
                for arranged, fold in alike
            )
        except UnsuitedError as reason:
            return Candidate(name, None, str(reason))
        ranks = (np.array(its_groups, np.int32) for its_groups in alike.values())
        is_sure = all(plan.symmetry is None for plan in plans)
        sketch = None if is_sure else Sketch(algorithm, *zip(*alike, strict=True))
        teams = tuple(zip(plans, ranks, strict=True))
        return self._roomy(job, Candidate(name, None, teams=teams, sketch=sketch))

    def sure(self, job: Job, one: Candidate) -> Candidate:
        """The candidate with plans that are known to be those of its groups."""
        if one.sketch is None:
            return one
        key = one.sketch, self._is_folded
        if key not in self._sure:
            self._sure[key] = self._made_sure(job, one, one.sketch)
        return self._sure[key]

    def _made_sure(self, job: Job, one: Candidate, sketch: Sketch) -> Candidate:
        before = self._sure.get((sketch, True))
        if before is not None and all(plan.symmetry is None for plan, _ in before.teams):
            return before
        plans = [plan for plan, _ in one.teams]
        try:
            if not (self._is_folded and sketch.is_true(job, plans)):
                most = max(plan.members for plan in plans)
                if most > MANY and self._is_free(job):
                    return Candidate(one.name, None, _unplanned(most))
                ranks = self._placement.ranks
                short = shortage([(plan, its.size) for plan, its in one.teams], ranks, ranks)
                if short:
                    return Candidate(one.name, None, short)
                plans = sketch.whole(job, plans)
        except UnsuitedError as reason:
            return Candidate(one.name, None, str(reason))
        teams = tuple((plan, its[1]) for plan, its in zip(plans, one.teams, strict=True))
        return self._roomy(job, Candidate(one.name, None, teams=teams))

    def _is_free(self, job: Job) -> bool:
        return job.placeholder.op.value not in self._forced

    def _roomy(self, job: Job, one: Candidate) -> Candidate:
        """The candidate, or that there is no room for its channel buffer."""
        need = max((plan.scratch_bytes for plan, _ in one.teams), default=0)
        if not self._is_free(job) or self._room_bytes is None or need <= self._room_bytes:
            return one
        room = max(0, self._room_bytes)
        short = f"its channel buffer takes {need} bytes a rank and {room} are left"
        return Candidate(one.name, None, short)

    def _fold(self, group: Members) -> Symmetry | None:
        if self._seen is None:
            return None
        if group not in self._folds:
            self._folds[group] = fold_of(np.array(group), self._seen)
        return self._folds[group]

    def _key(self, group: Members) -> Hashable:
        """Groups of alike instances that sit alike in them are arranged alike."""
        if self._seen is None:
            return group
        if group not in self._keys:
            ranks = np.array(group)
            self._keys[group] = (ranks - ranks[0] // self._seen * self._seen).tobytes()
        return self._keys[group]

    def _arrange(self, algorithm: Algorithm, group: Members) -> Hashable | UnsuitedError:
        key = algorithm.arrange, self._key(group)
        if key not in self._arranged:
            if group not in self._layouts:
                self._layouts[group] = GroupLayout.of(self._placement, group)
            try:
                self._arranged[key] = algorithm.arrange(self._layouts[group])
            except UnsuitedError as reason:
                self._arranged[key] = reason
        return self._arranged[key]


def _is_known(topology: Topology, groups: Sequence[Members]) -> bool:
    """Whether AWS publishes which algorithms such groups take, and nothing is wrong with it.

    Groups that it documents are powers of two; of others a chip or more is missing.
    """
    is_single = topology.hosts_per_node == 1
    is_whole = all(len(group) & (len(group) - 1) == 0 for group in groups)
    return bool(topology.instance) and is_single and not topology.faults and is_whole


MOST_NAMED = 8
"""A reason names no more ranks of a group than this."""


def _short(group: Members) -> str:
    more = f",… ({len(group)} ranks)" if len(group) > MOST_NAMED else ""
    return f"{{{','.join(map(str, group[:MOST_NAMED]))}{more}}}"


def _unplanned(members: int) -> str:
    return (
        f"members of different instances move different amounts, and a plan of all {members} is "
        f"made only if it is forced: take a buffer that divides evenly, or at most {MANY} members"
    )


ALGORITHMS: Mapping[CollectiveOp, Mapping[str, Algorithm]] = {
    CollectiveOp.ALL_REDUCE: {
        "ring": Algorithm(ring.arrange, ring.all_reduce, most_folded=MANY),
        "kangaring": Algorithm(kangaring.arrange, kangaring.all_reduce),
        "tree": Algorithm(tree.arrange, tree.all_reduce, most_folded=MANY),
        "double-tree": Algorithm(tree.arrange, tree.double_all_reduce, most_folded=MANY),
        "mesh": Algorithm(mesh.arrange, mesh.all_reduce),
        "single-step-mesh": Algorithm(single_step.arrange, single_step.all_reduce),
        "direct": Algorithm(direct.arrange_on_one_chip, direct.all_reduce),
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
        "direct": Algorithm(all_to_all.arrange, direct.all_to_all),
        "pairwise": Algorithm(all_to_all.arrange, all_to_all.pairwise),
        "bruck": Algorithm(direct.arrange, all_to_all.bruck),
        "torus": Algorithm(
            all_to_all_torus.arrange, all_to_all_torus.all_to_all, is_published=False
        ),
    },
    CollectiveOp.PERMUTE: {"direct": Algorithm(direct.arrange, direct.permute)},
    CollectiveOp.BROADCAST: {"chain": Algorithm(rooted.arrange, rooted.broadcast)},
    CollectiveOp.REDUCE: {"chain": Algorithm(rooted.arrange, rooted.reduce)},
    CollectiveOp.GATHER: {"direct": Algorithm(rooted.arrange, rooted.gather)},
    CollectiveOp.SCATTER: {"direct": Algorithm(rooted.arrange, rooted.scatter)},
    CollectiveOp.RAGGED_ALL_TO_ALL: {
        "direct": Algorithm(all_to_all.arrange, variable_size.ragged_all_to_all)
    },
    CollectiveOp.ALL_GATHER_V: {"direct": Algorithm(all_to_all.arrange, variable_size.into_slots)},
    CollectiveOp.REDUCE_SCATTER_V: {
        "direct": Algorithm(all_to_all.arrange, variable_size.reduce_scatter)
    },
    CollectiveOp.ALL_TO_ALL_V: {"direct": Algorithm(all_to_all.arrange, variable_size.into_slots)},
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
            teams = tuple((variable_size.assumed(job, plan), ranks) for plan, ranks in teams)
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
