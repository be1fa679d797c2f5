"""Chooses for all placeholders of a program together: they share the semaphores of the ranks.

Each takes the cheapest candidate whose channels, with those that earlier ones opened, leave no rank
short of semaphores. If a later one then finds no room, all choose again, each leaving as many as
the most frugal candidates of those behind it need. What a user's plan fills has no choice.

Binds placeholders to ranks: sizes for the algorithms, teams of ranks for the plans.
"""

import copy
import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ncc_runtime.collectives.algorithms import rooted
from ncc_runtime.collectives.choose import Candidate, Choice, Chooser
from ncc_runtime.collectives.plan import Buffers, Job
from ncc_runtime.collectives.semaphores import NO_SEMAPHORES, by_rank, semaphores_of
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.capacity import rank_capacity
from ncc_runtime.lowering.executable import Load
from ncc_runtime.lowering.moves import Team
from ncc_runtime.lowering.team import Addresses
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.neff.stages import Stage, is_permute, participants, stages_of
from ncc_runtime.placement import Placement
from ncc_runtime.topology.graph import Topology

if TYPE_CHECKING:  # slow to import, and only users' plans need them
    from ncc_runtime.plans.files import Asked, PlanFile


def job_of(program: Program, placeholder: Placeholder) -> Job:
    """The placeholder with the sizes of its buffers; pairs are places in its group."""
    tensors = program.tensors
    ranks = participants(placeholder)
    if ranks is not None and placeholder.pairs:
        at = {rank: place for place, rank in enumerate(ranks)}
        pairs = tuple((at[source], at[target]) for source, target in placeholder.pairs)
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


SEMAPHORES_PER_CC_CORE = 256
"""Source: neuron-driver, v2 and v3 headers (256 semaphores per NeuronCore and per TOP_SP)."""


def semaphore_limit(program: Program, topology: Topology) -> int:
    """Semaphores that a rank has: what the program's engines use, and those of its CC-cores."""
    return len(program.semaphores) + SEMAPHORES_PER_CC_CORE * topology.rank_cc_cores


def chooser_of(
    program: Program,
    placement: Placement,
    forced: Mapping[str, str],
    seen: int | None = None,
    *,
    ignore_memory: bool = False,
) -> Chooser:
    """The chooser for the placeholders of a program, whose streams share what memory is left."""
    streams = len({placeholder.stream for placeholder in program.placeholders})
    left = rank_capacity(placement.topology) - program.hbm_bytes
    room = None if ignore_memory else left // max(1, streams)
    return Chooser(placement, forced, room, streams, seen)


def groups_of(program: Program, placeholder: Placeholder) -> tuple[tuple[int, ...], ...]:
    """The groups of a placeholder; the pairs of a permute are among all who take part."""
    if placeholder.groups:
        return placeholder.groups
    ranks = participants(placeholder)
    if ranks is None:
        return (tuple(range(program.ranks)),)
    return (ranks,) if is_permute(placeholder) else ()


def alike_as(program: Program, placeholder: Placeholder) -> Hashable:
    """Placeholders that are equal in this have equal candidates and plans."""
    said = (placeholder.op, placeholder.groups, placeholder.pairs, placeholder.root)
    is_average = placeholder.reduction is Reduction.AVERAGE
    takes_part = participants(placeholder)
    return (*said, takes_part, is_average, job_of(program, placeholder).buffers)


def teams_of(program: Program, job: Job, one: Candidate) -> list[Team]:
    """A candidate's teams: one for all groups with one arrangement, in the order they appear.

    A permute has no groups: all ranks are members of one team, numbered as they are. Ranks that
    are in no group of a broadcast are a team of their own.
    """
    groups = groups_of(program, job.placeholder)
    teams = [Team(plan, ranks) for plan, ranks in one.teams]
    ranks = participants(job.placeholder)
    outside = sorted(set(range(program.ranks) if ranks is None else ranks).difference(*groups))
    if outside:
        teams.append(Team(rooted.zeros(job), np.array(outside, np.int32)[:, None]))
    return teams


def addresses_of(program: Program, number: int, scratch: int) -> Addresses:
    """Where the operands, the results and the stream's channel buffer lie."""
    sides = [(stage, stage.program.placeholders[number]) for stage in stages_of(program)]
    ranks = participants(program.placeholders[number])
    inside = [(stage, one) for stage, one in sides if ranks is None or int(stage.ranks[0]) in ranks]
    return Addresses(
        operands=_lying(program, [(stage, one.operands) for stage, one in inside]),
        results=_lying(program, [(stage, one.results) for stage, one in inside]),
        scratch=scratch,
        ranks=None if ranks is None else np.array(ranks, np.int32),
        tables=_tables(program, [(stage, one.counts) for stage, one in inside]),
    )


def _tables(program: Program, sides: Sequence[tuple[Stage, tuple[int, ...]]]) -> tuple[Load, ...]:
    """The tables of counts that transfers use; what is received is only checked."""
    tensors = [program.tensors[tensor] for tensor in sides[0][1]]
    addresses = [np.atleast_1d(np.asarray(one, np.int64)) for one in _lying(program, sides)]
    firsts = itertools.accumulate((one.elements for one in tensors), initial=0)
    found = [
        Load(address, one.elements, one.dtype, first)
        for address, one, first in zip(addresses, tensors, firsts, strict=False)
    ]
    return tuple(found[:3])


def _lying(
    program: Program, sides: Sequence[tuple[Stage, tuple[int, ...]]]
) -> tuple[int | np.ndarray, ...]:
    """The address of each tensor: one, or one for each rank where stages differ."""
    found: list[int | np.ndarray] = []
    for tensors in zip(*(one for _, one in sides), strict=True):
        addresses = [program.address(tensor) for tensor in tensors]
        if len(set(addresses)) == 1:
            found.append(addresses[0])
            continue
        column: np.ndarray = np.zeros(program.ranks, np.int64)
        for (stage, _), address in zip(sides, addresses, strict=True):
            column[stage.ranks] = address
        found.append(column)
    return tuple(found)


REMEDY = "use smaller groups"


@attrs.frozen(eq=False)
class Chosen:
    """What fills a placeholder, and its teams; alike placeholders of a stream share them."""

    choice: Choice
    teams: tuple[Team, ...]


@attrs.frozen(eq=False)
class _Wanted:
    """Alike placeholders of one stream, and what could fill them."""

    job: Job
    candidates: tuple[Candidate, ...]
    given: Candidate | None = None  # of a user's plan


AskedFor = tuple[Mapping[str, str], Sequence["PlanFile"]]
"""Algorithms by operator, and users' plans."""


def parts_and_choices(
    program: Program,
    placement: Placement,
    forced: Mapping[str, str],
    plans: Sequence["PlanFile"] = (),
    *,
    ignore_memory: bool = False,
) -> tuple[Parts, tuple[Choice, ...]]:
    """The machine, and each placeholder's choice with every candidate priced."""
    choosing = Choosing(
        program, placement, (forced, plans), price_all=True, ignore_memory=ignore_memory
    )
    found = choosing.choices()
    choices = (found[choosing.key(number)] for number in range(len(program.placeholders)))
    return choosing.chooser.parts, tuple(choices)


def asked_of(program: Program) -> "tuple[Asked, ...]":
    """The placeholders as users' plans are asked for them."""
    from ncc_runtime.plans.files import Asked

    return tuple(
        Asked(number, one, job_of(program, one), groups_of(program, one))
        for number, one in enumerate(program.placeholders)
    )


def _assigned(plans: "Sequence[PlanFile]", asked: "Sequence[Asked]") -> "Mapping[int, PlanFile]":
    """By placeholder, the plan that fills it."""
    from ncc_runtime.plans.files import assigned

    return assigned(plans, asked)


_Key = tuple[int, Hashable, int | None]
"""Stream, what alike placeholders are equal in, the user's plan."""


class Choosing:
    """One program on one placement.

    `seen` are the ranks of the first instance, if they are to stand for all; UnfoldedError where a
    group does not bear it.
    """

    def __init__(
        self,
        program: Program,
        placement: Placement,
        asked: AskedFor,
        *,
        price_all: bool = False,
        seen: int | None = None,
        ignore_memory: bool = False,
    ) -> None:
        forced, plans = asked
        self.chooser: Chooser = chooser_of(
            program, placement, forced, seen, ignore_memory=ignore_memory
        )
        self._seen = seen
        self._chips = placement.chip
        self.wanted: dict[_Key, _Wanted] = {}  # in order of first appearance
        self._program, self._forced, self._price_all = program, forced, price_all
        self._limit = semaphore_limit(program, placement.topology)
        self._semaphores: dict[tuple[int, Candidate], np.ndarray] = {}  # by stream
        self._asked = asked_of(program) if plans else ()
        self._files = _assigned(plans, self._asked) if plans else {}
        found: dict[Hashable, _Wanted] = {}
        for number, placeholder in enumerate(program.placeholders):
            key = self.key(number)
            alike = placeholder.stream == 0, *key[1:]  # stream 0 has more CC-cores than the others
            if alike not in found:
                found[alike] = self._wanted_by(number)
            self.wanted.setdefault(key, found[alike])

    def unfolded(self) -> "Choosing":
        """The same for an executable of all ranks; what is known of candidates is not lost."""
        other = copy.copy(self)
        other.chooser, other._seen, other._semaphores = self.chooser.unfolded(), None, {}
        return other

    def chosen(self) -> tuple[Chosen, ...]:
        """What fills each placeholder, in order; LoweringError where nothing can."""
        filled = {
            key: Chosen(choice, tuple(teams_of(self._program, self.wanted[key].job, choice.chosen)))
            for key, choice in self.choices().items()
        }
        return tuple(filled[self.key(number)] for number in range(len(self._program.placeholders)))

    def key(self, number: int) -> _Key:
        """Placeholders with the same key are filled alike."""
        placeholder, file = self._program.placeholders[number], self._files.get(number)
        alike = alike_as(self._program, placeholder)
        return placeholder.stream, alike, None if file is None else id(file)

    def _wanted_by(self, number: int) -> _Wanted:
        placeholder = self._program.placeholders[number]
        job, groups = job_of(self._program, placeholder), groups_of(self._program, placeholder)
        if number not in self._files:
            return _Wanted(job, self.chooser.candidates(job, groups, self._price_all))
        given = self._files[number].candidate(self._asked[number], self._chips)
        if not self._price_all:
            return _Wanted(job, (given,), given)
        given = self.chooser.with_price(job, given)
        return _Wanted(job, (*self.chooser.candidates(job, groups, price_all=True), given), given)

    def choices(self) -> dict[_Key, Choice]:
        """By key; the second time nobody takes what another cannot do without."""
        wanted = tuple(self.wanted.values())
        try:
            choices = self._in_order([NO_SEMAPHORES] * len(wanted))
        except LoweringError:
            choices = self._in_order(self._needed_behind(wanted))
        return dict(zip(self.wanted, choices, strict=True))

    def _in_order(self, reserved: Sequence[np.ndarray]) -> list[Choice]:
        """One choice after the other, each with what it has to leave."""
        taken, choices = NO_SEMAPHORES, []
        for wanted, left in zip(self.wanted.values(), reserved, strict=True):
            choice = self._choice(wanted, taken, left)
            taken = np.union1d(taken, self._taken_by(wanted.job, choice.chosen))
            choices.append(choice)
        return choices

    def _needed_behind(self, wanted: Sequence[_Wanted]) -> list[np.ndarray]:
        """For each, what the most frugal candidates of those behind it take together."""
        behind, found = NO_SEMAPHORES, []
        for one in reversed(wanted):
            found.append(behind)
            able = [candidate for candidate in one.candidates if not candidate.reason]
            forced = [candidate for candidate in able if self._is_forced(one.job, candidate)]
            forced = forced if one.given is None else [one.given]
            needs = [self._taken_by(one.job, candidate) for candidate in forced or able]
            least = min(needs, key=lambda need: int(self._by_rank(need).max()), default=behind)
            behind = np.union1d(behind, least)
        return found[::-1]

    def _choice(self, wanted: _Wanted, taken: np.ndarray, left: np.ndarray) -> Choice:
        """The best candidate that has room; what is forced need not have it."""
        job, found = wanted.job, wanted.candidates
        if wanted.given is not None:
            return Choice(wanted.given, is_forced=True, candidates=found)
        if self._by_rank(taken).max() > self._limit:
            return self.chooser.best(job, found)  # by what was forced before: filling refuses that
        others = np.union1d(taken, left)
        if self._price_all:
            found = tuple(self._checked(job, one, others) for one in found)
        while True:
            choice = self.chooser.best(job, found)
            checked = self._checked(job, choice.chosen, others)
            if not checked.reason:
                return choice
            found = tuple(checked if one is choice.chosen else one for one in choice.candidates)

    def _checked(self, job: Job, one: Candidate, others: np.ndarray) -> Candidate:
        """The candidate, or why it has no room."""
        if one.reason or self._is_forced(job, one):
            return one
        need = self._by_rank(np.union1d(others, self._taken_by(job, one)))
        rank = int(need.argmax())
        if need[rank] <= self._limit:
            return one
        reason = (
            f"with the program's other collectives rank {rank} would need {need[rank]} "
            f"semaphores, it has {self._limit}: {REMEDY}"
        )
        return Candidate(one.name, None, reason)

    def _is_forced(self, job: Job, one: Candidate) -> bool:
        return self._forced.get(job.placeholder.op.value) == one.name

    def _by_rank(self, semaphores: np.ndarray) -> np.ndarray:
        return by_rank(semaphores, self._program.ranks) + len(self._program.semaphores)

    def _taken_by(self, job: Job, one: Candidate) -> np.ndarray:
        """The semaphores of a candidate, and of the ranks outside of its groups."""
        stream = job.placeholder.stream
        key = stream, one
        if key not in self._semaphores:
            teams = [(team.plan, team.ranks) for team in teams_of(self._program, job, one)]
            self._semaphores[key] = semaphores_of(stream, self._program.ranks, teams, self._seen)
        return self._semaphores[key]
