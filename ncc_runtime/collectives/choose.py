"""Which algorithm runs a collective: the registry of algorithms, and the choice by price.

Every algorithm of an operator that the policy takes is a candidate: its plans for the groups, or
the reason why it does not run. The cheapest is chosen, by the price of its plans (`cost/price.py`).
What a policy takes depends on the algorithm, on sizes and on where ranks are alone, never on the
state of the fabric: so its choices on a damaged machine compare with those on a whole one.

Plans and prices of large groups are costly, so a candidate is an *estimate* at first: plans that
assume instances to be alike, and a lower bound of the price. `Chooser.best` is a best-first search
over these bounds, as in A*: it takes the least one, makes it exact, and is done when the least one
is exact already; the others can only be dearer than their bounds. Exact plans are symmetry-reduced
where one instance does stand for all (`symmetry.py`), and of all members elsewhere.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
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
    rank_order,
    rdh,
    ring,
    rooted,
    single_step,
    synthesised,
    torus,
    tree,
    variable_size,
)
from ncc_runtime.collectives.bounds import payload_bytes
from ncc_runtime.collectives.cost.model import Groups, LoadsKey, PricingModel, TransferLoads
from ncc_runtime.collectives.cost.price import Price, least_ps, priced
from ncc_runtime.collectives.layout import Arrange, GroupLayout, Members, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan, Symmetry
from ncc_runtime.collectives.plan_memory import check_room, shortage
from ncc_runtime.collectives.symmetry import (
    AsymmetryError,
    RepresentativeParts,
    check_groups,
    group_symmetry,
    is_symmetric,
)
from ncc_runtime.errors import LoweringError
from ncc_runtime.machine_model.instances import FirstParts
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.shared.reductions import is_exact
from ncc_runtime.options import Policy
from ncc_runtime.placement import Placement
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.routes import Routes

MANY = 8192
"""Members from which on a plan is not tried beside others: one with a round for each member, or one
with columns of all members. Both take seconds and more."""

OTHER_ORDER = "another order of reduction on another place; --deterministic holds one"
"""Why an algorithm is no candidate where one order of reduction is requested."""

OTHER_POLICY = f"--policy {Policy.BEST} takes it too"
"""Ends the reason why an algorithm is no candidate under `Policy.NEURON`."""

MOST_NAMED = 8
"""A reason names no more ranks of a group than this."""


@attrs.frozen
class Algorithm:
    """How a group is arranged, and the plan that follows; equal arrangements give equal plans."""

    arrange: Arrange
    build: Callable[[Job, Any], Plan]  # given what `arrange` returned
    is_published: bool = True  # as one that Neuron's runtime takes
    most_reduced: int | None = None  # members it is tried for, symmetry-reduced, beside others
    # of the larger side, from which AWS publishes it, for each rank of a group
    published_bytes_per_rank: Callable[[Topology], int] = lambda _: 0
    most_bytes: int | None = None  # of the larger side, up to which the runtime takes it
    repeats_on_links: bool = False  # members of one chip send the same bytes to another
    is_in_order: bool = False  # reduces in the order of the group, as `stages.reduced_in_blocks`
    is_for_order: bool = False  # taken only where that order is requested, or if it is forced

    def why_not_neuron(self, placement: Placement, job: Job, groups: Sequence[Members]) -> str:
        """Why `Policy.NEURON` does not take it; "" if it does.

        Meshes combine what members of a chip send elsewhere, so that nothing crosses a link twice
        (AWS Neuron SDK, nec.h).
        """
        if not self.is_published:
            return f"unpublished; {OTHER_POLICY}"
        if self.repeats_on_links and any(_share_chips(placement, group) for group in groups):
            return f"the members of a chip send the same bytes to other chips; {OTHER_POLICY}"
        per_rank = self.published_bytes_per_rank(placement.topology)
        size = payload_bytes(job)
        members = max(map(len, groups), default=0)
        if size < per_rank * members:
            return f"published from {per_rank * members} B on for {members} ranks; {OTHER_POLICY}"
        if self.most_bytes is not None and size > self.most_bytes:
            return f"taken up to {self.most_bytes} B, as measured; {OTHER_POLICY}"
        return ""


def _share_chips(placement: Placement, group: Members) -> bool:
    """Whether members share chips of a group on several."""
    return 1 < len(np.unique(placement.chip[list(group)])) < len(group)


def _kangaring_bytes(topology: Topology) -> int:
    return topology.cc.kangaring_bytes_per_rank


ALGORITHMS: Mapping[CollectiveOp, Mapping[str, Algorithm]] = {
    CollectiveOp.ALL_REDUCE: {
        "ring": Algorithm(ring.arrange, ring.all_reduce, most_reduced=MANY),
        "kangaring": Algorithm(
            kangaring.arrange, kangaring.all_reduce, published_bytes_per_rank=_kangaring_bytes
        ),
        "tree": Algorithm(tree.arrange, tree.all_reduce, is_published=False, most_reduced=MANY),
        "double-tree": Algorithm(
            tree.arrange, tree.double_all_reduce, is_published=False, most_reduced=MANY
        ),
        "mesh": Algorithm(mesh.arrange, mesh.all_reduce),
        "single-step-mesh": Algorithm(
            single_step.arrange, single_step.all_reduce, repeats_on_links=True, is_in_order=True
        ),
        "direct": Algorithm(
            direct.arrange_on_one_chip,
            direct.all_reduce,
            most_bytes=direct.MOST_BYTES,
            is_in_order=True,
        ),
        "rdh": Algorithm(rdh.arrange, rdh.all_reduce),
        **{pair.name: Algorithm(pair.arrange, pair.all_reduce) for pair in hierarchical.PAIRS},
        **{
            kind.name: Algorithm(kind.arrange, kind.all_reduce, is_published=False)
            for kind in torus.KINDS
        },
        "synthesised": Algorithm(synthesised.arrange, synthesised.all_reduce, is_published=False),
        **{
            kind.name: Algorithm(
                kind.arrange,
                kind.all_reduce,
                is_published=False,
                is_in_order=True,
                is_for_order=True,
            )
            for kind in rank_order.ALL_REDUCES
        },
    },
    CollectiveOp.REDUCE_SCATTER: {
        "ring": Algorithm(ring.arrange, ring.reduce_scatter, most_reduced=MANY),
        "kangaring": Algorithm(
            kangaring.arrange, kangaring.reduce_scatter, published_bytes_per_rank=_kangaring_bytes
        ),
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
        "rank-order": Algorithm(
            rank_order.arrange,
            rank_order.reduce_scatter,
            is_published=False,
            is_in_order=True,
            is_for_order=True,
        ),
    },
    CollectiveOp.ALL_GATHER: {
        "ring": Algorithm(ring.arrange, ring.all_gather, most_reduced=MANY),
        "kangaring": Algorithm(
            kangaring.arrange, kangaring.all_gather, published_bytes_per_rank=_kangaring_bytes
        ),
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
    CollectiveOp.REDUCE: {
        "chain": Algorithm(rooted.arrange, rooted.reduce),
        "rank-order": Algorithm(
            rank_order.arrange,
            rank_order.reduce,
            is_published=False,
            is_in_order=True,
            is_for_order=True,
        ),
    },
    CollectiveOp.GATHER: {"direct": Algorithm(rooted.arrange, rooted.gather)},
    CollectiveOp.SCATTER: {"direct": Algorithm(rooted.arrange, rooted.scatter)},
    CollectiveOp.RAGGED_ALL_TO_ALL: {
        "direct": Algorithm(all_to_all.arrange, variable_size.ragged_all_to_all)
    },
    CollectiveOp.ALL_GATHER_V: {"direct": Algorithm(all_to_all.arrange, variable_size.into_slots)},
    CollectiveOp.REDUCE_SCATTER_V: {
        "direct": Algorithm(all_to_all.arrange, variable_size.reduce_scatter, is_in_order=True)
    },
    CollectiveOp.ALL_TO_ALL_V: {"direct": Algorithm(all_to_all.arrange, variable_size.into_slots)},
    CollectiveOp.BARRIER: {"dissemination": Algorithm(rooted.arrange, rooted.barrier)},
}
"""Every algorithm of every operator; the first of each works for every group."""


def check_forced(forced: Mapping[str, str]) -> None:
    """Refuse `OP=NAME` that names no operator or no algorithm of it."""
    for op_name, name in forced.items():
        names_of = {op.value: list(algorithms) for op, algorithms in ALGORITHMS.items()}
        if op_name not in names_of:
            raise LoweringError(f"no collective {op_name!r}; there are {', '.join(names_of)}")
        if name not in names_of[op_name]:
            names = ", ".join(names_of[op_name])
            raise LoweringError(f"{op_name} has no algorithm {name!r}; it has {names}")


def shows_order(placeholder: Placeholder) -> bool:
    """Whether the bits of its results depend on the order in which it reduces.

    Nothing is rounded of integers, bits and extremes, and of two numbers either may come first.
    """
    if placeholder.reduction is None or max(map(len, placeholder.groups), default=0) <= 2:
        return False
    return not is_exact(placeholder.reduction, placeholder.dtype)


def check_in_order(placeholder: Placeholder, name: str) -> None:
    """Refuse a forced algorithm that does not reduce in the order of the group."""
    algorithms = ALGORITHMS[placeholder.op]
    if not algorithms[name].is_in_order:
        known = ", ".join(each for each, algorithm in algorithms.items() if algorithm.is_in_order)
        raise LoweringError(
            f"{placeholder.name}: {placeholder.op.value} by {name} reduces in an order that "
            f"depends on the place, --deterministic takes {known}"
        )


@attrs.frozen(eq=False)
class AssumedSymmetry:
    """The assumption of estimated plans that instances are alike; one entry for each plan."""

    algorithm: Algorithm
    arrangements: tuple[Hashable, ...]
    symmetries: tuple[Symmetry | None, ...]

    def holds(self, job: Job, plans: Sequence[Plan]) -> bool:
        """Whether one instance stands for all in every plan.

        Plans are priced together, so either all are symmetry-reduced or none.
        """
        for plan, arranged, symmetry in zip(plans, self.arrangements, self.symmetries, strict=True):
            if (plan.symmetry is None) != (symmetry is None):
                return False

            def build(job: Job, arranged: Hashable = arranged) -> Plan:
                return self.algorithm.build(job, arranged)

            if not is_symmetric(build, job, plan):
                return False
        return True

    def dropped(self, job: Job, plans: Sequence[Plan]) -> list[Plan]:
        """Plans of all members in place of those that are reduced."""
        return [
            plan if plan.symmetry is None else self.algorithm.build(job, arranged)
            for plan, arranged in zip(plans, self.arrangements, strict=True)
        ]


@attrs.frozen(eq=False)
class Candidate:
    """An algorithm for a placeholder: its plans and what it costs, or why it does not run."""

    name: str
    price: Price | None  #: exact; None: it is not known
    reason: str = ""  #: why it cannot run or is left out; "" if it can
    is_left_out: bool = False  #: by the policy, whether or not it could run
    replica_groups: tuple[tuple[Plan, Groups], ...] = attrs.field(default=(), repr=False)
    least_ps: int | None = None  #: a lower bound of the price, where candidates are compared
    clock_ps: int | None = None  #: its time by the clock, where that decides
    reduction: AssumedSymmetry | None = attrs.field(default=None, repr=False)  # None: all members'
    is_exact: bool = attrs.field(default=True, repr=False)  # False: the reduction may not hold

    @property
    def time_ps(self) -> int:
        """The price or its lower bound; 0 where candidates are not compared."""
        return (self.least_ps or 0) if self.price is None else self.price.time_ps


@attrs.frozen(eq=False)
class Choice:
    """What runs a placeholder, among what could."""

    chosen: Candidate
    is_forced: bool
    candidates: tuple[Candidate, ...]  #: in the order of the registry
    is_beyond_policy: bool = False  #: as nothing that the policy takes can run


class CandidateBuilder:
    """Makes the plans of candidates on one placement: first estimated, exact on request.

    Remembers arrangements, and the candidates that it made exact.
    """

    def __init__(
        self,
        placement: Placement,
        forced: Mapping[str, str],
        room_bytes: int | None,
        representatives: int | None,
    ) -> None:
        self._placement = placement
        self._forced = forced
        self._room_bytes = room_bytes
        self._representatives = representatives
        self._is_reducing = representatives is not None  # whether exact plans may be reduced
        self._arrangements: dict[tuple[Arrange, Hashable], Hashable | UnsuitedError] = {}
        self._layouts: dict[Members, GroupLayout] = {}
        self._keys: dict[Members, Hashable] = {}  # of groups, equal where they sit alike
        self._symmetries: dict[Members, Symmetry | None] = {}
        self._exact: dict[tuple[AssumedSymmetry, bool], Candidate] = {}  # by whether it may reduce

    def drop_symmetry(self) -> None:
        """From now on exact plans are of all members."""
        self._is_reducing = False

    def estimated(
        self, job: Job, name: str, algorithm: Algorithm, groups: Sequence[Members]
    ) -> Candidate:
        """All groups by one algorithm; groups that are arranged alike share one plan."""
        # groups that share a plan
        sharing: dict[tuple[Hashable, Symmetry | None], list[Members]] = {}
        for group in groups:
            arranged = self._arrange(algorithm, group)
            if isinstance(arranged, UnsuitedError):
                more = f",… ({len(group)} ranks)" if len(group) > MOST_NAMED else ""
                ranks_text = f"{{{','.join(map(str, group[:MOST_NAMED]))}{more}}}"
                return Candidate(name, None, f"group {ranks_text}: {arranged}")
            sharing.setdefault((arranged, self._symmetry(group)), []).append(group)
        try:
            plans = [
                algorithm.build(attrs.evolve(job, symmetry=symmetry), arranged)
                for arranged, symmetry in sharing
            ]
        except UnsuitedError as reason:
            return Candidate(name, None, str(reason))
        reduction = None
        if any(plan.symmetry is not None for plan in plans):
            reduction = AssumedSymmetry(algorithm, *zip(*sharing, strict=True))
        ranks = (np.array(members, np.int32) for members in sharing.values())
        replica_groups = tuple(zip(plans, ranks, strict=True))
        return self._with_room(
            job,
            Candidate(
                name,
                None,
                replica_groups=replica_groups,
                reduction=reduction,
                is_exact=reduction is None,
            ),
        )

    def exact(self, job: Job, candidate: Candidate) -> Candidate:
        """The candidate with plans that are as assumed, or of all members; exact ones unchanged."""
        reduction = candidate.reduction
        if reduction is None or candidate.is_exact:
            return candidate
        key = reduction, self._is_reducing
        if key not in self._exact:
            reduced = self._exact.get((reduction, True))
            if reduced and all(plan.symmetry is None for plan, _ in reduced.replica_groups):
                self._exact[key] = reduced  # there was nothing to reduce then
            else:
                self._exact[key] = self._made_exact(job, candidate, reduction)
        return self._exact[key]

    def of_all_members(self, job: Job, candidate: Candidate) -> Candidate:
        """An exact candidate with columns of every member; its price and time stay.

        LoweringError if the host has no memory for them, AsymmetryError if they cannot be made.
        """
        reduction, replica_groups = candidate.reduction, candidate.replica_groups
        if reduction is None:
            return candidate
        ranks = self._placement.ranks
        check_room([(plan, groups.size) for plan, groups in replica_groups], ranks, ranks)
        try:
            plans = reduction.dropped(job, [plan for plan, _ in replica_groups])
        except UnsuitedError as reason:
            raise AsymmetryError(str(reason)) from None
        groups = (groups for _, groups in replica_groups)
        return attrs.evolve(
            candidate, replica_groups=tuple(zip(plans, groups, strict=True)), reduction=None
        )

    def _made_exact(self, job: Job, estimate: Candidate, reduction: AssumedSymmetry) -> Candidate:
        name, plans = estimate.name, [plan for plan, _ in estimate.replica_groups]
        holds = False
        try:
            holds = self._is_reducing and reduction.holds(job, plans)
            if not holds:
                most = max(plan.members for plan in plans)
                if most > MANY and self._is_free(job):
                    return Candidate(
                        name,
                        None,
                        "members of different instances move different amounts, and a plan of all "
                        f"{most} is made only if it is forced: take a buffer that divides evenly, "
                        f"or at most {MANY} members",
                    )
                ranks = self._placement.ranks
                sizes = [(plan, groups.size) for plan, groups in estimate.replica_groups]
                short = shortage(sizes, ranks, ranks)
                if short:
                    return Candidate(name, None, short)
                plans = reduction.dropped(job, plans)
        except UnsuitedError as reason:
            return Candidate(name, None, str(reason))
        groups = (groups for _, groups in estimate.replica_groups)
        replica_groups = tuple(zip(plans, groups, strict=True))
        exact = Candidate(
            name, None, replica_groups=replica_groups, reduction=reduction if holds else None
        )
        return self._with_room(job, exact)

    def _is_free(self, job: Job) -> bool:
        """Whether the user forces no algorithm."""
        return job.placeholder.op.value not in self._forced

    def _with_room(self, job: Job, candidate: Candidate) -> Candidate:
        """The candidate, or that there is no room for its channel buffer."""
        need = max((plan.scratch_bytes for plan, _ in candidate.replica_groups), default=0)
        if not self._is_free(job) or self._room_bytes is None or need <= self._room_bytes:
            return candidate
        room = max(0, self._room_bytes)
        short = f"its channel buffer takes {need} bytes a rank and {room} are left"
        return Candidate(candidate.name, None, short)

    def _symmetry(self, group: Members) -> Symmetry | None:
        if self._representatives is None:
            return None
        if group not in self._symmetries:
            self._symmetries[group] = group_symmetry(np.array(group), self._representatives)
        return self._symmetries[group]

    def _arrange(self, algorithm: Algorithm, group: Members) -> Hashable | UnsuitedError:
        """The arrangement of a group; groups at the same seats of alike instances share it."""
        seats: Hashable = group
        if self._representatives is not None:
            if group not in self._keys:
                ranks = np.array(group)
                first = ranks[0] // self._representatives * self._representatives
                self._keys[group] = (ranks - first).tobytes()
            seats = self._keys[group]
        key = algorithm.arrange, seats
        if key not in self._arrangements:
            if group not in self._layouts:
                self._layouts[group] = GroupLayout.of(self._placement, group)
            try:
                self._arrangements[key] = algorithm.arrange(self._layouts[group])
            except UnsuitedError as reason:
                self._arrangements[key] = reason
        return self._arrangements[key]


class Chooser:
    """Takes the cheapest candidate of placeholders on one placement; remembers what it priced."""

    def __init__(
        self,
        placement: Placement,
        forced: Mapping[str, str],
        room_bytes: int | None = None,  # what is left for channel buffers; None: no limit
        streams: int = 1,  # of the program: those without a CC-core of their own share
        representatives: int | None = None,  # ranks of an instance, if one may stand for all
        policy: Policy = Policy.NEURON,
        deterministic: bool = False,  # only what reduces in the order of the group
    ) -> None:
        self._placement = placement
        self._forced = forced
        self._deterministic = deterministic
        self._streams = streams
        self._representatives = representatives
        self._policy = policy
        self._builder = CandidateBuilder(placement, forced, room_bytes, representatives)
        self._loads: dict[LoadsKey, TransferLoads] = {}
        self._prices: dict[Candidate, Candidate] = {}  # with its price

    def drop_symmetry(self) -> None:
        """From now on every rank has columns of its own; estimates and prices are kept."""
        self._representatives = None
        self._builder.drop_symmetry()

    def candidates(
        self,
        job: Job,
        groups: Sequence[Members],
        price_all: bool = False,
        policy: Policy | None = None,
    ) -> tuple[Candidate, ...]:
        """All algorithms of a placeholder's operator as candidates; a forced one alone.

        They are estimates, with lower bounds of the price if several can run; `best` makes exact
        what matters. With `price_all` all are exact and priced, also beside a forced one. The
        policy is the chooser's if none is given. AsymmetryError if one instance is to stand for
        all and does not.
        """
        if self._representatives is not None:
            check_groups(groups, self._representatives, self._placement.ranks)
        algorithms = ALGORITHMS[job.placeholder.op]
        forced = self._forced.get(job.placeholder.op.value)
        if forced is not None and self._deterministic and shows_order(job.placeholder):
            check_in_order(job.placeholder, forced)
        if forced is not None and not price_all:
            return (self._builder.estimated(job, forced, algorithms[forced], groups),)
        estimates = self.unpriced(job, groups, policy)
        if price_all:
            return tuple(self.with_price(job, candidate) for candidate in estimates)
        if sum(not candidate.reason for candidate in estimates) < 2:
            return estimates
        machine = self.machine(job)
        return tuple(
            candidate
            if candidate.reason
            else attrs.evolve(candidate, least_ps=least_ps(machine, candidate.replica_groups))
            for candidate in estimates
        )

    def unpriced(
        self, job: Job, groups: Sequence[Members], policy: Policy | None = None
    ) -> tuple[Candidate, ...]:
        """Estimates that are the same for any rates and times."""
        algorithms = ALGORITHMS[job.placeholder.op]
        candidates: dict[str, Candidate] = {}
        forced = self._forced.get(job.placeholder.op.value)
        in_order = self._deterministic and shows_order(job.placeholder)
        algorithms = {
            name: algorithm
            for name, algorithm in algorithms.items()
            if in_order or not algorithm.is_for_order or name == forced
        }
        for name, algorithm in algorithms.items():
            reason = OTHER_ORDER if in_order and not algorithm.is_in_order else ""
            # what is for one order is taken by either policy: Neuron's runtime has no such mode
            is_free = name == forced or algorithm.is_for_order
            if not reason and not is_free and (policy or self._policy) is Policy.NEURON:
                reason = algorithm.why_not_neuron(self._placement, job, groups)
            if reason:
                candidates[name] = Candidate(name, None, reason, is_left_out=True)
        largest = max(map(len, groups), default=0)
        # in groups that are too large for them, some are tried only if nothing else runs
        last_resorts = [
            name
            for name, algorithm in algorithms.items()
            if self._representatives is not None
            and algorithm.most_reduced is not None
            and algorithm.most_reduced < largest
        ]
        considered = [name for name in algorithms if name not in candidates]
        for name in sorted(considered, key=last_resorts.__contains__):
            if name in last_resorts and any(not other.reason for other in candidates.values()):
                reason = (
                    f"with {largest} members it is not tried beside others, only if it is forced"
                )
                candidates[name] = Candidate(name, None, reason)
            else:
                candidates[name] = self._builder.estimated(job, name, algorithms[name], groups)
        return tuple(candidates[name] for name in algorithms)

    def best(self, job: Job, candidates: Sequence[Candidate]) -> Choice:
        """The cheapest candidate, of equal ones the first; what is forced if it can run.

        LoweringError if nothing can.
        """
        forced = self._forced.get(job.placeholder.op.value)
        while True:
            considered = [each for each in candidates if forced in (None, each.name)]
            able = [each for each in considered if not each.reason]
            if not able:
                raise LoweringError(_refusal(job, considered))
            chosen = min(able, key=lambda each: each.time_ps)
            exact = self._builder.exact(job, chosen)
            if exact.price is None and chosen.least_ps is not None:
                exact = self.with_price(job, exact)
            if exact is chosen:
                return Choice(chosen, forced is not None, tuple(candidates))
            # the exact price is no less than the bound was: another candidate may be cheaper now
            candidates = [exact if each is chosen else each for each in candidates]

    def of_all_members(self, job: Job, candidate: Candidate) -> Candidate:
        """As CandidateBuilder.of_all_members, for any candidate that can run."""
        return self._builder.of_all_members(job, self._builder.exact(job, candidate))

    def with_price(self, job: Job, candidate: Candidate) -> Candidate:
        """The candidate, exact and with its price, if it can run."""
        exact = self._builder.exact(job, candidate)
        if exact.reason or exact.price is not None:
            return exact
        if exact not in self._prices:
            self._prices[exact] = self.priced_on(self.machine(job), job, exact)
        return self._prices[exact]

    @staticmethod
    def priced_on(machine: PricingModel, job: Job, candidate: Candidate) -> Candidate:
        """A candidate that can run, with its price on this machine."""
        replica_groups = candidate.replica_groups
        if job.placeholder.op.is_counted:
            replica_groups = tuple(
                (variable_size.assumed(job, plan), ranks) for plan, ranks in replica_groups
            )
        price = priced(machine, replica_groups, job.buffers.element_bytes)
        return attrs.evolve(candidate, price=price)

    @cached_property
    def parts(self) -> Parts:
        """The machine that candidates are priced on."""
        topology = self._placement.topology
        model = TimingModel.from_topology(topology)
        return Parts(Routes(topology, self._placement), model, self._placement.ranks)

    @cached_property
    def _first_parts(self) -> FirstParts:
        assert self._representatives is not None, "every rank stands for itself"
        return FirstParts.of(self.parts, self._placement.ranks // self._representatives)

    def machine(self, job: Job) -> PricingModel:
        """What a placeholder is priced on."""
        cores = self.parts.model.cc_cores_of(job.placeholder.stream, self._streams)
        symmetry = None
        if self._representatives is not None:
            symmetry = RepresentativeParts(self._representatives, self._first_parts)
        return PricingModel(self.parts, cores, self._loads, symmetry)


def _refusal(job: Job, candidates: Sequence[Candidate]) -> str:
    names: dict[str, list[str]] = {}
    for candidate in candidates:
        names.setdefault(candidate.reason, []).append(candidate.name)
    reasons = "; ".join(f"{', '.join(same)}: {reason}" for reason, same in names.items())
    return f"{job.placeholder.name}: {job.placeholder.op.value} cannot run by {reasons}"
