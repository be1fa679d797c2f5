"""Chooses for all placeholders of a program together: they share the semaphores of the ranks.

Each takes the cheapest candidate whose channels, with those that earlier ones opened, leave no rank
short of semaphores. If a later one then finds no room, all choose again, each leaving as many as
the most frugal candidates of those behind it need. What a user's plan fills has no choice.
"""

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ncc_runtime.collectives.candidates import Candidate
from ncc_runtime.collectives.choose import Choice, Chooser
from ncc_runtime.collectives.plan import Job
from ncc_runtime.collectives.semaphores import NO_SEMAPHORES, by_rank, semaphores_of
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.bind import (
    alike_as,
    chooser_of,
    groups_of,
    job_of,
    semaphore_limit,
    teams_of,
)
from ncc_runtime.lowering.moves import Team
from ncc_runtime.neff.program import Program
from ncc_runtime.parts import Parts
from ncc_runtime.placement import Placement

if TYPE_CHECKING:  # slow to import, and only users' plans need them
    from ncc_runtime.plans.files import Asked, PlanFile

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
