"""Which algorithm fills which placeholder: the registry, and the choice."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from ncc_runtime.collectives import (
    all_to_all,
    counted,
    direct,
    hierarchical,
    kangaring,
    mesh,
    one_chip,
    rdh,
    ring,
    rooted,
    single_step,
    synthesised,
    torus,
    tree,
)
from ncc_runtime.collectives.layout import Arrange, Layout, Members, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan
from ncc_runtime.collectives.price import Groups, Machine, Price, priced
from ncc_runtime.errors import LoweringError
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.parts import Parts
from ncc_runtime.placement import Placement
from ncc_runtime.timing import TimingModel
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.routes import Routes


@attrs.frozen
class Algorithm:
    """How a group is arranged, and the plan that follows; equal arrangements give equal plans."""

    arrange: Arrange
    build: Callable[[Job, Any], Plan]  # given what `arrange` returned
    is_published: bool = True  # or not in conflict with what is, where that is known


ALGORITHMS: Mapping[CollectiveOp, Mapping[str, Algorithm]] = {
    CollectiveOp.ALL_REDUCE: {
        "ring": Algorithm(ring.arrange, ring.all_reduce),
        "kangaring": Algorithm(kangaring.arrange, kangaring.all_reduce),
        "tree": Algorithm(tree.arrange, tree.all_reduce),
        "double-tree": Algorithm(tree.arrange, tree.double_all_reduce),
        "mesh": Algorithm(mesh.arrange, mesh.all_reduce),
        "single-step-mesh": Algorithm(single_step.arrange, single_step.all_reduce),
        "direct": Algorithm(one_chip.arrange, one_chip.all_reduce),
        "rdh": Algorithm(rdh.arrange, rdh.all_reduce),
        **{pair.name: Algorithm(pair.arrange, pair.all_reduce) for pair in hierarchical.PAIRS},
        **{
            kind.name: Algorithm(kind.arrange, kind.all_reduce, is_published=False)
            for kind in torus.KINDS
        },
        "synthesised": Algorithm(synthesised.arrange, synthesised.all_reduce),
    },
    CollectiveOp.REDUCE_SCATTER: {
        "ring": Algorithm(ring.arrange, ring.reduce_scatter),
        "kangaring": Algorithm(kangaring.arrange, kangaring.reduce_scatter),
        "mesh": Algorithm(mesh.arrange, mesh.reduce_scatter),
        "rdh": Algorithm(rdh.arrange, rdh.reduce_scatter),
        **{pair.name: Algorithm(pair.arrange, pair.reduce_scatter) for pair in hierarchical.PAIRS},
        **{
            kind.name: Algorithm(kind.arrange, kind.reduce_scatter, is_published=False)
            for kind in torus.KINDS
        },
        "synthesised": Algorithm(synthesised.arrange, synthesised.reduce_scatter),
    },
    CollectiveOp.ALL_GATHER: {
        "ring": Algorithm(ring.arrange, ring.all_gather),
        "kangaring": Algorithm(kangaring.arrange, kangaring.all_gather),
        "mesh": Algorithm(mesh.arrange, mesh.all_gather),
        "rdh": Algorithm(rdh.arrange, rdh.all_gather),
        **{pair.name: Algorithm(pair.arrange, pair.all_gather) for pair in hierarchical.PAIRS},
        **{
            kind.name: Algorithm(kind.arrange, kind.all_gather, is_published=False)
            for kind in torus.KINDS
        },
        "synthesised": Algorithm(synthesised.arrange, synthesised.all_gather),
    },
    CollectiveOp.ALL_TO_ALL: {
        "direct": Algorithm(direct.arrange, direct.all_to_all),
        "pairwise": Algorithm(direct.arrange, all_to_all.pairwise),
        "bruck": Algorithm(direct.arrange, all_to_all.bruck),
    },
    CollectiveOp.PERMUTE: {"direct": Algorithm(direct.arrange, direct.permute)},
    CollectiveOp.BROADCAST: {"chain": Algorithm(rooted.arrange, rooted.broadcast)},
    CollectiveOp.REDUCE: {"chain": Algorithm(rooted.arrange, rooted.reduce)},
    CollectiveOp.GATHER: {"direct": Algorithm(rooted.arrange, rooted.gather)},
    CollectiveOp.SCATTER: {"direct": Algorithm(rooted.arrange, rooted.scatter)},
    CollectiveOp.RAGGED_ALL_TO_ALL: {
        "direct": Algorithm(direct.arrange, counted.ragged_all_to_all)
    },
    CollectiveOp.ALL_GATHER_V: {"direct": Algorithm(direct.arrange, counted.into_slots)},
    CollectiveOp.REDUCE_SCATTER_V: {"direct": Algorithm(direct.arrange, counted.reduce_scatter)},
    CollectiveOp.ALL_TO_ALL_V: {"direct": Algorithm(direct.arrange, counted.into_slots)},
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


@attrs.frozen(eq=False)
class Choice:
    """What fills a placeholder, among what could."""

    chosen: Candidate
    is_forced: bool
    candidates: tuple[Candidate, ...]  # in the order of the registry


class Chooser:
    """Chooses for all placeholders on one placement; remembers arrangements."""

    def __init__(
        self,
        placement: Placement,
        forced: Mapping[str, str],
        room_bytes: int | None = None,
        streams: int = 1,
    ) -> None:
        self._placement = placement
        self._forced = forced
        self._room_bytes = room_bytes  # what is left for channel buffers; None: no limit
        self._streams = streams  # of the program: those without a CC-core of their own share
        self._arranged: dict[tuple[Arrange, Members], Hashable | UnsuitedError] = {}
        self._layouts: dict[Members, Layout] = {}

    @cached_property
    def parts(self) -> Parts:
        """The machine that candidates are priced on."""
        topology = self._placement.topology
        model = TimingModel.from_topology(topology)
        return Parts(Routes(topology, self._placement), model, self._placement.ranks)

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
        if len(able) > 1 or price_all:
            found = [self.with_price(job, one) for one in found]
        return tuple(found)

    def unpriced(self, job: Job, groups: Sequence[Members]) -> tuple[Candidate, ...]:
        """What could fill a placeholder, which is the same for any rates and times."""
        return tuple(self._candidate(job, name, groups) for name in ALGORITHMS[job.placeholder.op])

    def best(self, job: Job, found: Sequence[Candidate]) -> Choice:
        """The cheapest candidate, of equal ones the first; what is forced if it can run.

        LoweringError if nothing can.
        """
        wanted = self._forced.get(job.placeholder.op.value)
        able = [one for one in found if not one.reason and wanted in (None, one.name)]
        if not able:
            reasons = [one for one in found if wanted in (None, one.name)]
            raise LoweringError(_refusal(job, reasons))
        chosen = min(able, key=lambda one: 0 if one.price is None else one.price.time_ps)
        return Choice(chosen, wanted is not None, tuple(found))

    def with_price(self, job: Job, one: Candidate) -> Candidate:
        """The candidate with its price, where it can run."""
        return one if one.reason else self.priced_on(self.machine(job), job, one)

    def machine(self, job: Job) -> Machine:
        """What a placeholder is priced on."""
        cores = self.parts.model.cc_cores_of(job.placeholder.stream, self._streams)
        return Machine(self.parts, cores)

    @staticmethod
    def priced_on(machine: Machine, job: Job, one: Candidate) -> Candidate:
        """A candidate that can run, with its price."""
        teams = one.teams
        if job.placeholder.op.is_counted:
            teams = tuple((counted.assumed(job, plan), ranks) for plan, ranks in teams)
        return attrs.evolve(one, price=priced(machine, teams, job.buffers.element_bytes))

    def _candidate(self, job: Job, name: str, groups: Sequence[Members]) -> Candidate:
        """All groups by one algorithm; groups that are arranged alike share one plan."""
        algorithm = ALGORITHMS[job.placeholder.op][name]
        is_free = job.placeholder.op.value not in self._forced
        if is_free and not algorithm.is_published and _is_known(self._placement.topology):
            known = f"{self._placement.topology.instance} takes what is published of it"
            return Candidate(name, None, f"{known}; --algorithm takes this all the same")
        alike: dict[Hashable, list[Members]] = {}
        for group in groups:
            arranged = self._arrange(algorithm, group)
            if isinstance(arranged, UnsuitedError):
                return Candidate(name, None, f"group {_short(group)}: {arranged}")
            alike.setdefault(arranged, []).append(group)
        try:
            plans = [algorithm.build(job, arrangement) for arrangement in alike]
        except UnsuitedError as reason:
            return Candidate(name, None, str(reason))
        need = max((plan.scratch_bytes for plan in plans), default=0)
        if is_free and self._room_bytes is not None and need > self._room_bytes:
            room = max(0, self._room_bytes)
            short = f"its channel buffer takes {need} bytes a rank and {room} are left"
            return Candidate(name, None, short)
        ranks = (np.array(its_groups, np.int32) for its_groups in alike.values())
        return Candidate(name, None, teams=tuple(zip(plans, ranks, strict=True)))

    def _arrange(self, algorithm: Algorithm, group: Members) -> Hashable | UnsuitedError:
        key = algorithm.arrange, group
        if key not in self._arranged:
            if group not in self._layouts:
                self._layouts[group] = Layout.of(self._placement, group)
            try:
                self._arranged[key] = algorithm.arrange(self._layouts[group])
            except UnsuitedError as reason:
                self._arranged[key] = reason
        return self._arranged[key]


def _refusal(job: Job, candidates: Sequence[Candidate]) -> str:
    reasons = "; ".join(f"{one.name}: {one.reason}" for one in candidates)
    return f"{job.placeholder.name}: {job.placeholder.op.value} cannot run by {reasons}"


def _is_known(topology: Topology) -> bool:
    """Whether AWS publishes which algorithms an instance takes, and nothing is wrong with it."""
    is_single = topology.hosts_per_node == 1
    return bool(topology.instance) and is_single and not topology.faults


MOST_NAMED = 8
"""A reason names no more ranks of a group than this."""


def _short(group: Members) -> str:
    more = f",… ({len(group)} ranks)" if len(group) > MOST_NAMED else ""
    return f"{{{','.join(map(str, group[:MOST_NAMED]))}{more}}}"
