"""Chooses the plans of all placeholders of a program together: they share the semaphores of ranks.

Each takes the cheapest candidate (`collectives/choose.py`) whose channels, with those that earlier
placeholders opened, leave no rank short of semaphores. If a later one then finds no room, all
choose again, and each leaves as many as the most frugal candidates of later placeholders need. If
that fails, too, a placeholder that nothing can run which the policy takes may have any algorithm.
A placeholder that a user's plan runs has no choice.

Prices are near to times, but not equal. The clock therefore times candidates that are near the
cheapest, one after the other with nothing else running, and the fastest is taken.

Also what binds placeholders to ranks: sizes for the algorithms, ranks for the plans, addresses.
"""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import attrs
import numpy as np

from ncc_runtime.arrays import union
from ncc_runtime.collectives.algorithms import rooted
from ncc_runtime.collectives.choose import ALGORITHMS, MANY, Candidate, Choice, Chooser, shows_order
from ncc_runtime.collectives.plan import Buffers, Job
from ncc_runtime.collectives.semaphores import NO_SEMAPHORES, by_rank, semaphores_of
from ncc_runtime.collectives.symmetry import AsymmetryError, RankSymmetry
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.capacity import rank_capacity
from ncc_runtime.lowering.executable import RegisterLoad
from ncc_runtime.lowering.lower_plan import Addresses, ReplicaGroups
from ncc_runtime.machine_model.instances import are_equally_fast, are_placed_alike
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.neff.stages import is_permute, participants, stages_of
from ncc_runtime.options import Policy
from ncc_runtime.placement import Placement
from ncc_runtime.progress import steps
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.routes import Routes

if TYPE_CHECKING:  # slow to import, and only users' plans need them
    from ncc_runtime.plans.files import PlanFile, PlanRequest

SEMAPHORES_PER_CC_CORE = 256
"""Source: neuron-driver, v2 and v3 headers (256 semaphores per NeuronCore and per TOP_SP)."""

REMEDY = "use smaller groups"

NEAR_PERCENT: Mapping[Policy, int] = MappingProxyType({Policy.NEURON: 105, Policy.BEST: 150})
"""Of the least price: what is dearer is not timed."""

UNPUBLISHED_PERCENT = 300
"""The same of unpublished algorithms: prices of torus and synthesised plans were seen from 0.68 to
2.9 times the clock (`benchmarks/price_and_clock.py`), of others within a few percent of it."""

MOST_TIMED: Mapping[Policy, int] = MappingProxyType({Policy.NEURON: 100_000, Policy.BEST: 500_000})
"""Transfers of a candidate, of the members that get columns in the end, up to which it is timed:
seconds of the clock, and half a minute."""

TIE_PERCENT = 102
"""Of the fastest: up to which the cheapest by price stays, so that a tie is settled by one rule."""

PLANNED_AS_ONE = 1024
"""Ranks from which on it is quicker to plan candidates for one of alike instances, and to see that
it stands for all, than to plan them for all (`benchmarks/planned_as_one.py`)."""

NOTHING_FORCED: Mapping[str, str] = MappingProxyType({})


@attrs.frozen(eq=False)
class ChosenPlans:
    """What runs a placeholder; equal placeholders of a stream share it."""

    choice: Choice
    replica_groups: tuple[ReplicaGroups, ...]


@attrs.frozen(eq=False)
class _CandidateSet:
    """Equal placeholders, and what could run them."""

    job: Job
    groups: tuple[tuple[int, ...], ...]
    candidates: tuple[Candidate, ...]
    users: Candidate | None = None  # of a user's plan


_Key = tuple[int, Hashable, int | None, bool]
"""Stream, `collective_key`, the id of the user's plan file, if there is one, and whether it is held
to one order of reduction."""


PlansClock: TypeAlias = Callable[[Placeholder, Sequence[ReplicaGroups], RankSymmetry], int]
"""Picoseconds that plans of a placeholder take by the clock, with nothing else running."""


class ProgramChooser:
    """Chooses for one program on one placement.

    With `times_only` the ranks of one instance stand for all where instances are placed alike and
    cores are equally fast: `symmetry` says which ranks are to have columns. Of many ranks the
    candidates are planned for those of one instance in any case, and what is chosen gets columns of
    all. Not with users' plans, of which nothing is known. Where lowering finds that one does not
    stand for all, `drop_symmetry` and choose again; what is known of candidates is kept. With
    `price_all` every candidate gets its price, of all ranks. A `clock` decides between candidates
    that are near in price; without one, and where several programs run together, which cannot be
    timed alone, the price does.
    """

    def __init__(
        self,
        program: Program,
        placement: Placement,
        forced: Mapping[str, str] = NOTHING_FORCED,
        plans: Sequence["PlanFile"] = (),
        *,
        policy: Policy = Policy.NEURON,
        price_all: bool = False,
        times_only: bool = False,
        ignore_memory: bool = False,
        clock: PlansClock | None = None,
        deterministic: bool = False,
    ) -> None:
        self._deterministic = deterministic
        self._program, self._placement, self._forced = program, placement, forced
        self._policy, self._price_all, self._ignore_memory = policy, price_all, ignore_memory
        self._clock = clock if len(stages_of(program)) == 1 else None
        self._timed: dict[Candidate, Candidate] = {}  # with its time
        self._limit = semaphore_limit(program, placement.topology)
        self._semaphores: dict[tuple[int, Candidate], np.ndarray] = {}  # by stream
        self._requests: tuple[PlanRequest, ...] = ()
        self._files: Mapping[int, PlanFile] = {}  # by placeholder
        if plans:
            from ncc_runtime.plans.files import assigned

            self._requests = plan_requests(program)
            self._files = assigned(plans, self._requests)
        # the ranks that have columns: of plans that are compared, timed, and lowered in the end
        self._planned = self._timed_on = self.symmetry = RankSymmetry(program.ranks)
        are_many = PLANNED_AS_ONE <= program.ranks <= MANY
        instances = None
        if (times_only or are_many) and not (plans or price_all):
            instances = alike_instances(program, placement)
        stands_for_all = instances is not None and times_only and instances.are_equally_fast
        if instances is None or not (stands_for_all or are_many):
            self._find_candidates()
            return
        try:
            self._find_candidates(instances.ranks)
        except AsymmetryError:
            self._find_candidates()
            return
        self._planned = RankSymmetry(program.ranks, instances.ranks)
        if instances.are_equally_fast:
            self._timed_on = self._planned
        if stands_for_all:
            self.symmetry = self._planned

    def _find_candidates(self, representatives: int | None = None) -> None:
        """What could run each placeholder, in order of first appearance."""
        self.chooser: Chooser = chooser_of(
            self._program,
            self._placement,
            self._forced,
            representatives,
            policy=self._policy,
            ignore_memory=self._ignore_memory,
            deterministic=self._deterministic,
        )
        self._sets: dict[_Key, _CandidateSet] = {}
        known: dict[Hashable, _CandidateSet] = {}
        numbered = tuple(enumerate(self._program.placeholders))
        for number, placeholder in steps(numbered, "choosing algorithms", "collectives"):
            key = self.key(number)
            # prices depend on the stream only in that stream 0 has more CC-cores than the others
            priced_alike = placeholder.stream == 0, *key[1:]
            if priced_alike not in known:
                known[priced_alike] = self._candidate_set(number)
            self._sets.setdefault(key, known[priced_alike])

    def _candidate_set(self, number: int) -> _CandidateSet:
        placeholder = self._program.placeholders[number]
        job, groups = job_of(self._program, placeholder), groups_of(self._program, placeholder)
        if number not in self._files:
            return _CandidateSet(job, groups, self.chooser.candidates(job, groups, self._price_all))
        users = self._files[number].candidate(self._requests[number], self._placement.chip)
        if not self._price_all:
            return _CandidateSet(job, groups, (users,), users)
        users = self.chooser.with_price(job, users)
        others = self.chooser.candidates(job, groups, price_all=True)
        return _CandidateSet(job, groups, (*others, users), users)

    def key(self, number: int) -> _Key:
        """Placeholders with the same key run alike."""
        placeholder, file = self._program.placeholders[number], self._files.get(number)
        collective = collective_key(self._program, placeholder)
        in_order = self._deterministic and shows_order(placeholder)
        return placeholder.stream, collective, None if file is None else id(file), in_order

    def drop_symmetry(self) -> None:
        """Choose for an executable with columns of all ranks from now on."""
        self._planned = self._timed_on = self.symmetry = RankSymmetry(self._program.ranks)
        self.chooser.drop_symmetry()
        self._semaphores.clear()

    def choose(self) -> tuple[ChosenPlans, ...]:
        """What runs each placeholder, in order; LoweringError where nothing can.

        AsymmetryError where one instance does not stand for all.
        """
        program, chosen = self._program, {}
        for key, choice in self.choices().items():
            job = self._sets[key].job
            candidate = self._with_columns(self.symmetry, job, choice.chosen)
            choice = attrs.evolve(choice, chosen=candidate)
            chosen[key] = ChosenPlans(choice, tuple(replica_groups_of(program, job, candidate)))
        return tuple(chosen[self.key(number)] for number in range(len(program.placeholders)))

    def _with_columns(self, symmetry: RankSymmetry, job: Job, candidate: Candidate) -> Candidate:
        """A candidate with the columns of the ranks that are timed or lowered."""
        if symmetry == self._planned:
            return candidate
        return self.chooser.of_all_members(job, candidate)

    def choices(self) -> dict[_Key, Choice]:
        """By key. If a greedy choice fails, again with semaphores reserved for later ones.

        If that fails, too, both again, with any algorithm for what nothing of the policy can run.
        AsymmetryError where one instance does not stand for all.
        """
        sets = tuple(self._sets.values())
        attempts = [Policy.NEURON, Policy.BEST] if self._policy is Policy.NEURON else [Policy.BEST]
        for policy, is_greedy in itertools.product(attempts, (True, False)):
            try:
                reserved = [NO_SEMAPHORES] * len(sets) if is_greedy else self._reserved(sets)
                return dict(zip(self._sets, self._in_order(reserved, policy), strict=True))
            except AsymmetryError:
                raise
            except LoweringError as error:
                refusal = error
        raise refusal

    def _in_order(self, reserved: Sequence[np.ndarray], policy: Policy) -> list[Choice]:
        """One choice after the other, each with the semaphores that it has to leave."""
        taken, choices = NO_SEMAPHORES, []
        for candidate_set, to_leave in zip(self._sets.values(), reserved, strict=True):
            try:
                choice = self._choice(candidate_set, taken, to_leave)
            except LoweringError as error:
                if policy is self._policy or isinstance(error, AsymmetryError):
                    raise
                job, groups = candidate_set.job, candidate_set.groups
                every = self.chooser.candidates(job, groups, self._price_all, policy)
                beyond = attrs.evolve(candidate_set, candidates=every)
                choice = attrs.evolve(self._choice(beyond, taken, to_leave), is_beyond_policy=True)
            taken = union(taken, self._taken_by(candidate_set.job, choice.chosen))
            choices.append(choice)
        return choices

    def _reserved(self, sets: Sequence[_CandidateSet]) -> list[np.ndarray]:
        """For each, what the most frugal candidates of later sets take together."""
        later, reserved = NO_SEMAPHORES, []
        for each in reversed(sets):
            reserved.append(later)
            able = [candidate for candidate in each.candidates if not candidate.reason]
            forced = [candidate for candidate in able if self._is_forced(each.job, candidate)]
            forced = forced if each.users is None else [each.users]
            takes = [self._taken_by(each.job, candidate) for candidate in forced or able]
            least = min(takes, key=lambda taken: int(self._by_rank(taken).max()), default=later)
            later = union(later, least)
        return reserved[::-1]

    def _choice(
        self, candidate_set: _CandidateSet, taken: np.ndarray, to_leave: np.ndarray
    ) -> Choice:
        """The best candidate that has room; what is forced need not have it."""
        job, candidates = candidate_set.job, candidate_set.candidates
        if candidate_set.users is not None:
            return Choice(candidate_set.users, is_forced=True, candidates=candidates)
        if self._by_rank(taken).max() > self._limit:
            # by what was forced before: lowering refuses that, with a better message
            return self.chooser.best(job, candidates)
        others = union(taken, to_leave)
        if self._price_all:
            candidates = tuple(self._with_room(job, candidate, others) for candidate in candidates)
        # only the best one is checked: counting the semaphores of a candidate is costly
        while True:
            choice = self.chooser.best(job, candidates)
            checked = self._with_room(job, choice.chosen, others)
            if not checked.reason:
                return self._by_clock(job, choice, others)
            candidates = tuple(
                checked if candidate is choice.chosen else candidate
                for candidate in choice.candidates
            )

    def _by_clock(self, job: Job, choice: Choice, others: np.ndarray) -> Choice:
        """What the clock finds fastest among the candidates whose prices are near the least.

        Where it cannot time all of them, the price decides.
        """
        if self._clock is None or choice.is_forced:
            return choice
        algorithms = ALGORITHMS[job.placeholder.op]

        def is_near(candidate: Candidate) -> bool:
            algorithm = algorithms[candidate.name]
            has_good_price = algorithm.is_published or algorithm.is_for_order
            percent = NEAR_PERCENT[self._policy] if has_good_price else UNPUBLISHED_PERCENT
            most_ps = choice.chosen.time_ps * percent // 100
            return not candidate.reason and candidate.time_ps <= most_ps

        candidates = [
            self._with_room(job, self.chooser.with_price(job, each), others)
            if is_near(each)
            else each
            for each in choice.candidates
        ]
        near = [each for each in candidates if is_near(each)]
        if len(near) < 2:
            return choice
        timed = {each.name: self._with_time(job, each) for each in near}
        times_ps = {
            name: each.clock_ps for name, each in timed.items() if each.clock_ps is not None
        }
        if len(times_ps) < len(near):
            return choice
        name = choice.chosen.name
        if times_ps[name] * 100 > min(times_ps.values()) * TIE_PERCENT:
            name = min(times_ps, key=lambda near_name: times_ps[near_name])
        return attrs.evolve(
            choice,
            chosen=timed[name],
            candidates=tuple(timed.get(each.name, each) for each in candidates),
        )

    def _with_time(self, job: Job, candidate: Candidate) -> Candidate:
        """The candidate with its time by the clock, if that is known."""
        if candidate not in self._timed:
            clock_ps = self._clock_ps(job, candidate)
            self._timed[candidate] = attrs.evolve(candidate, clock_ps=clock_ps)
        return self._timed[candidate]

    def _clock_ps(self, job: Job, candidate: Candidate) -> int | None:
        """None where the clock would take long, or semaphores do not suffice.

        AsymmetryError where one instance does not stand for all.
        """
        is_whole = self.symmetry == RankSymmetry(self._program.ranks)
        transfers = sum(
            len(one_round.transfers) * (plan.members if is_whole else plan.columns) * len(groups)
            for plan, groups in candidate.replica_groups
            for one_round in plan.rounds
        )
        if self._clock is None or transfers > MOST_TIMED[self._policy]:
            return None
        # where one instance does not stand for all, by the ranks that get columns in the end
        for symmetry in dict.fromkeys((self._timed_on, self.symmetry)):
            try:
                with_columns = self._with_columns(symmetry, job, candidate)
                plans = tuple(replica_groups_of(self._program, job, with_columns))
                return self._clock(job.placeholder, plans, symmetry)
            except AsymmetryError:
                if symmetry == self.symmetry:
                    raise
            except LoweringError:
                break
        return None

    def _with_room(self, job: Job, candidate: Candidate, others: np.ndarray) -> Candidate:
        """The candidate, or why it has no room beside the semaphores of others."""
        if candidate.reason or self._is_forced(job, candidate):
            return candidate
        need = self._by_rank(union(others, self._taken_by(job, candidate)))
        rank = int(need.argmax())
        if need[rank] <= self._limit:
            return candidate
        reason = (
            f"with the program's other collectives rank {rank} would need {need[rank]} "
            f"semaphores, it has {self._limit}: {REMEDY}"
        )
        return Candidate(candidate.name, None, reason)

    def _is_forced(self, job: Job, candidate: Candidate) -> bool:
        return self._forced.get(job.placeholder.op.value) == candidate.name

    def _by_rank(self, semaphores: np.ndarray) -> np.ndarray:
        return by_rank(semaphores, self._program.ranks) + len(self._program.semaphores)

    def _taken_by(self, job: Job, candidate: Candidate) -> np.ndarray:
        """The semaphores of a candidate, and of the ranks outside of its groups."""
        key = job.placeholder.stream, candidate
        if key not in self._semaphores:
            every = replica_groups_of(self._program, job, candidate)
            self._semaphores[key] = semaphores_of(
                job.placeholder.stream,
                self._program.ranks,
                [(groups.plan, groups.ranks) for groups in every],
                self._planned.representatives,
            )
        return self._semaphores[key]


def priced_choices(
    program: Program,
    placement: Placement,
    forced: Mapping[str, str],
    plans: Sequence["PlanFile"] = (),
    *,
    policy: Policy = Policy.NEURON,
    ignore_memory: bool = False,
    clock: PlansClock | None = None,
    deterministic: bool = False,
) -> tuple[Parts, tuple[Choice, ...]]:
    """The machine, and each placeholder's choice with every candidate priced."""
    chooser = ProgramChooser(
        program,
        placement,
        forced,
        plans,
        policy=policy,
        price_all=True,
        ignore_memory=ignore_memory,
        clock=clock,
        deterministic=deterministic,
    )
    choices = chooser.choices()
    numbers = range(len(program.placeholders))
    return chooser.chooser.parts, tuple(choices[chooser.key(number)] for number in numbers)


def chooser_of(
    program: Program,
    placement: Placement,
    forced: Mapping[str, str],
    representatives: int | None = None,
    *,
    policy: Policy = Policy.NEURON,
    ignore_memory: bool = False,
    deterministic: bool = False,
) -> Chooser:
    """The chooser for a program's placeholders; its streams share the memory that is left."""
    streams = len({placeholder.stream for placeholder in program.placeholders})
    left = rank_capacity(placement.topology) - program.hbm_bytes
    room = None if ignore_memory else left // max(1, streams)
    return Chooser(placement, forced, room, streams, representatives, policy, deterministic)


def semaphore_limit(program: Program, topology: Topology) -> int:
    """Semaphores that a rank has: what the program's engines use, and those of its CC-cores."""
    return len(program.semaphores) + SEMAPHORES_PER_CC_CORE * topology.rank_cc_cores


@attrs.frozen
class AlikeInstances:
    """Several instances that are placed alike and run one program."""

    ranks: int  # of each
    are_equally_fast: bool


def alike_instances(program: Program, placement: Placement) -> AlikeInstances | None:
    """The instances, if they are placed alike; None elsewhere."""
    topology = placement.topology
    if topology.nodes == 1 or len(stages_of(program)) > 1:
        return None
    model = TimingModel.from_topology(topology)
    parts = Parts(Routes(topology, placement), model, placement.ranks)
    if not are_placed_alike(parts):
        return None
    return AlikeInstances(placement.ranks // topology.nodes, are_equally_fast(parts))


def job_of(program: Program, placeholder: Placeholder) -> Job:
    """The placeholder with the sizes of its buffers; pairs name places in its group, not ranks."""
    tensors = program.tensors
    ranks = participants(placeholder)
    if ranks is not None and placeholder.pairs:
        place_of = {rank: place for place, rank in enumerate(ranks)}
        pairs = tuple((place_of[source], place_of[target]) for source, target in placeholder.pairs)
        placeholder = attrs.evolve(placeholder, pairs=pairs)
    return Job(
        placeholder,
        Buffers(
            element_bytes=placeholder.dtype.size_bytes,
            operand_elements=tuple(tensors[tensor].elements for tensor in placeholder.operands),
            result_elements=tuple(tensors[tensor].elements for tensor in placeholder.results),
            in_place=placeholder.in_place,
            row_bytes=program.row_bytes(placeholder) if placeholder.counts else 0,
            entries=tensors[placeholder.counts[0]].elements if placeholder.counts else 0,
        ),
    )


def groups_of(program: Program, placeholder: Placeholder) -> tuple[tuple[int, ...], ...]:
    """The groups of a placeholder; a permute has one, of all ranks that take part."""
    if placeholder.groups:
        return placeholder.groups
    ranks = participants(placeholder)
    if ranks is None:
        return (tuple(range(program.ranks)),)
    return (ranks,) if is_permute(placeholder) else ()


def collective_key(program: Program, placeholder: Placeholder) -> Hashable:
    """Placeholders that are equal in this have equal candidates and plans."""
    return (
        placeholder.op,
        placeholder.groups,
        placeholder.pairs,
        placeholder.root,
        participants(placeholder),
        placeholder.reduction is Reduction.AVERAGE,
        job_of(program, placeholder).buffers,
    )


def replica_groups_of(program: Program, job: Job, candidate: Candidate) -> list[ReplicaGroups]:
    """A candidate's plans: one for all groups with one arrangement, in the order they appear.

    The pairs of a permute are one group. Ranks that are in no group of a broadcast have groups of
    their own, whose results are zeros.
    """
    groups = groups_of(program, job.placeholder)
    replica_groups = [ReplicaGroups(plan, ranks) for plan, ranks in candidate.replica_groups]
    ranks = participants(job.placeholder)
    outside = sorted(set(range(program.ranks) if ranks is None else ranks).difference(*groups))
    if outside:
        zeros = ReplicaGroups(rooted.zeros(job), np.array(outside, np.int32)[:, None])
        replica_groups.append(zeros)
    return replica_groups


def addresses_of(program: Program, number: int, scratch: int) -> Addresses:
    """Where the operands, the results and the stream's channel buffer lie."""
    ranks = participants(program.placeholders[number])
    placeholders = [  # of every stage that takes part, which has its own addresses
        (stage, stage.program.placeholders[number])
        for stage in stages_of(program)
        if ranks is None or int(stage.ranks[0]) in ranks
    ]

    def addresses(tensors: Sequence[tuple[int, ...]]) -> tuple[int | np.ndarray, ...]:
        """The address of each tensor; (ranks,) where stages have different ones."""
        result: list[int | np.ndarray] = []
        for same in zip(*tensors, strict=True):
            by_stage = [program.address(tensor) for tensor in same]
            if len(set(by_stage)) == 1:
                result.append(by_stage[0])
                continue
            column: np.ndarray = np.zeros(program.ranks, np.int64)
            for (stage, _), address in zip(placeholders, by_stage, strict=True):
                column[stage.ranks] = address
            result.append(column)
        return tuple(result)

    # Tables of counts are loaded into registers one behind the other. Transfers use the first
    # three; the fourth, how much is received, is only checked.
    tables = [program.tensors[tensor] for tensor in placeholders[0][1].counts]
    firsts = itertools.accumulate((table.elements for table in tables), initial=0)
    table_addresses = addresses([placeholder.counts for _, placeholder in placeholders])
    loads = [
        RegisterLoad(np.atleast_1d(np.asarray(at, np.int64)), table.elements, table.dtype, first)
        for at, table, first in zip(table_addresses, tables, firsts, strict=False)
    ]
    return Addresses(
        operands=addresses([placeholder.operands for _, placeholder in placeholders]),
        results=addresses([placeholder.results for _, placeholder in placeholders]),
        scratch=scratch,
        ranks=None if ranks is None else np.array(ranks, np.int32),
        tables=tuple(loads[:3]),
    )


def plan_requests(program: Program) -> "tuple[PlanRequest, ...]":
    """The placeholders, as requests to users' plan files."""
    from ncc_runtime.plans.files import PlanRequest

    return tuple(
        PlanRequest(number, each, job_of(program, each), groups_of(program, each))
        for number, each in enumerate(program.placeholders)
    )
