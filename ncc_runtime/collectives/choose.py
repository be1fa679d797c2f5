"""Which algorithm fills which placeholder: the registry, and the choice."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

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
from ncc_runtime.collectives.folds import FoldedParts, UnfoldedError, checked, fold_of
from ncc_runtime.collectives.layout import Arrange, Layout, Members, UnsuitedError
from ncc_runtime.collectives.loads import Loads
from ncc_runtime.collectives.machine import Groups, LoadsKey, Machine
from ncc_runtime.collectives.plan import Fold, Job, Plan
from ncc_runtime.collectives.price import Price, least_ps, priced
from ncc_runtime.errors import LoweringError
from ncc_runtime.instances import FirstParts
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.parts import Parts
from ncc_runtime.placement import Placement
from ncc_runtime.timing import TimingModel
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
class Candidate:
    """An algorithm for a placeholder: what it costs, or why it does not run."""

    name: str
    price: Price | None
    reason: str = ""  # why it cannot run; "" if it can
    teams: tuple[tuple[Plan, Groups], ...] = attrs.field(default=(), repr=False)
    least_ps: int | None = None  # a lower bound, where it is priced when that comes to matter

    @property
    def time_ps(self) -> int:
        """What it takes, or at least; 0 where nobody asks."""
        return (self.least_ps or 0) if self.price is None else self.price.time_ps


@attrs.frozen(eq=False)
class Choice:
    """What fills a placeholder, among what could."""

    chosen: Candidate
    is_forced: bool
    candidates: tuple[Candidate, ...]  # in the order of the registry


class Chooser:
    """Chooses for all placeholders on one placement; remembers arrangements and loads."""

    def __init__(
        self,
        placement: Placement,
        forced: Mapping[str, str],
        room_bytes: int | None = None,
        streams: int = 1,
        seen: int | None = None,
    ) -> None:
        self._placement = placement
        self._forced = forced
        self._room_bytes = room_bytes  # what is left for channel buffers; None: no limit
        self._streams = streams  # of the program: those without a CC-core of their own share
        self._seen = seen  # ranks of the first instance, if they stand for all
        self._arranged: dict[tuple[Arrange, Hashable], Hashable | UnsuitedError] = {}
        self._layouts: dict[Members, Layout] = {}
        self._loads: dict[LoadsKey, Loads] = {}
        self._priced: dict[int, tuple[Candidate, Candidate]] = {}  # by their teams
        self._groups: dict[int, Sequence[Members]] = {}  # the same
        self._keys: dict[Members, Hashable] = {}  # of groups, equal where they sit alike
        self._folds: dict[Members, Fold | None] = {}

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

        What needs no comparison is priced, and what is not forced is there, only if asked for.
        """
        wanted = self._forced.get(job.placeholder.op.value)
        if wanted is not None and not price_all:
            found: Sequence[Candidate] = (self._candidate(job, wanted, groups),)
        else:
            found = self.unpriced(job, groups)
        able = [one for one in found if not one.reason]
        if len(able) == 1 and self._seen is not None:
            found = [
                self._candidate(job, one.name, groups) if one in able else one for one in found
            ]
        if len(able) > 1 and self._seen is not None and not price_all:
            found = [one if one.reason else self._bounded(job, one, groups) for one in found]
        elif len(able) > 1 or price_all:
            found = [self.with_price(job, one) for one in found]
        return tuple(found)

    def _bounded(self, job: Job, one: Candidate, groups: Sequence[Members]) -> Candidate:
        """The candidate with the least that it can cost."""
        self._groups[id(one.teams)] = groups
        return attrs.evolve(one, least_ps=least_ps(self.machine(job), one.teams))

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
                found[name] = self._candidate(job, name, groups, is_sure=self._seen is None)
        return tuple(found[name] for name in algorithms)

    def best(self, job: Job, found: Sequence[Candidate]) -> Choice:
        """The cheapest candidate, of equal ones the first; what is forced if it can run.

        LoweringError if nothing can.
        """
        wanted = self._forced.get(job.placeholder.op.value)
        able = [one for one in found if not one.reason and wanted in (None, one.name)]
        if not able:
            reasons = [one for one in found if wanted in (None, one.name)]
            raise LoweringError(_refusal(job, reasons))
        chosen = min(able, key=lambda one: one.time_ps)
        while chosen.least_ps is not None and chosen.price is None:
            priced = self._priced_once(job, chosen)
            able, found = (
                [priced if one is chosen else one for one in some] for some in (able, found)
            )
            chosen = min(able, key=lambda one: one.time_ps)
        return Choice(chosen, wanted is not None, tuple(found))

    def _priced_once(self, job: Job, one: Candidate) -> Candidate:
        """The candidate with its price, with a plan for all where one instance is not enough."""
        key = id(one.teams)
        if key not in self._priced:
            sure = self._candidate(job, one.name, self._groups[key])
            self._priced[key] = one, self.with_price(job, sure)  # keeps the teams alive
        return self._priced[key][1]

    def with_price(self, job: Job, one: Candidate) -> Candidate:
        """The candidate with its price, where it can run."""
        return one if one.reason else self.priced_on(self.machine(job), job, one)

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

    def _candidate(
        self, job: Job, name: str, groups: Sequence[Members], *, is_sure: bool = True
    ) -> Candidate:
        """All groups by one algorithm; groups that are arranged alike share one plan.

        Where it is not to be sure, one instance is taken to stand for all.
        """
        algorithm = ALGORITHMS[job.placeholder.op][name]
        is_free = job.placeholder.op.value not in self._forced
        if is_free and not algorithm.is_published and _is_known(self._placement.topology, groups):
            known = f"{self._placement.topology.instance} takes what is published of it"
            return Candidate(name, None, f"{known}; --algorithm takes this all the same")
        alike: dict[tuple[Hashable, Fold | None], list[Members]] = {}
        for group in groups:
            arranged = self._arrange(algorithm, group)
            if isinstance(arranged, UnsuitedError):
                return Candidate(name, None, f"group {_short(group)}: {arranged}")
            alike.setdefault((arranged, self._fold(group)), []).append(group)
        try:
            plans = _plans(algorithm, job, tuple(alike), is_sure)
        except UnsuitedError as reason:
            return Candidate(name, None, str(reason))
        need = max((plan.scratch_bytes for plan in plans), default=0)
        if is_free and self._room_bytes is not None and need > self._room_bytes:
            room = max(0, self._room_bytes)
            short = f"its channel buffer takes {need} bytes a rank and {room} are left"
            return Candidate(name, None, short)
        ranks = (np.array(its_groups, np.int32) for its_groups in alike.values())
        return Candidate(name, None, teams=tuple(zip(plans, ranks, strict=True)))

    def _fold(self, group: Members) -> Fold | None:
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
                self._layouts[group] = Layout.of(self._placement, group)
            try:
                self._arranged[key] = algorithm.arrange(self._layouts[group])
            except UnsuitedError as reason:
                self._arranged[key] = reason
        return self._arranged[key]


def _plans(
    algorithm: Algorithm, job: Job, alike: Sequence[tuple[Hashable, Fold | None]], is_sure: bool
) -> list[Plan]:
    """One for each; they are priced together, so that none is folded beside one that cannot be."""
    plans = [_plan(algorithm, job, *how, is_sure) for how in alike]
    if all(
        (plan.fold is None) == (fold is None) for plan, (_, fold) in zip(plans, alike, strict=True)
    ):
        return plans
    return [
        plan if plan.fold is None else algorithm.build(job, arranged)
        for plan, (arranged, _) in zip(plans, alike, strict=True)
    ]


def _plan(
    algorithm: Algorithm, job: Job, arranged: Hashable, fold: Fold | None, is_sure: bool
) -> Plan:
    """For the members of one instance if the others are alike, else for all."""

    def build(one: Job) -> Plan:
        return algorithm.build(one, arranged)

    if fold is None:
        return build(job)
    folded = attrs.evolve(job, fold=fold)
    if not is_sure:
        return build(folded)
    try:
        return checked(build, folded)
    except UnfoldedError:
        return build(job)


def _refusal(job: Job, candidates: Sequence[Candidate]) -> str:
    reasons = "; ".join(f"{one.name}: {one.reason}" for one in candidates)
    return f"{job.placeholder.name}: {job.placeholder.op.value} cannot run by {reasons}"


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
