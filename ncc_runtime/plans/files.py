"""Files of plans: reading them, and which placeholders each fills.

`FILE` is for every placeholder that it fits; `OP=FILE` for those of an operator; `pN=FILE` and
`NAME=FILE` for one placeholder, and these have precedence. Every file must fill a placeholder.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

from ncc_runtime.collectives.choose import Candidate
from ncc_runtime.collectives.layout import Members
from ncc_runtime.collectives.plan import Job, Plan
from ncc_runtime.errors import Notice, PlanError, reason_of
from ncc_runtime.input_files import FileRole, read_file, recognised
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.plans import document, msccl_file
from ncc_runtime.plans.chunk_places import TAKEN, op_of
from ncc_runtime.plans.document import CollectiveText, TeamText, check_reads, check_sound
from ncc_runtime.plans.msccl_file import Algo
from ncc_runtime.plans.msccl_plan import MscclPlan

MOST_REASONS = 3
"""Placeholders whose reason a message gives why a file does not fit."""

Teams = tuple[tuple[Plan, np.ndarray], ...]


@attrs.frozen
class PlanRequest:
    """A placeholder that a plan is sought for."""

    number: int
    placeholder: Placeholder  # of the program
    job: Job
    groups: tuple[Members, ...]

    @property
    def op(self) -> CollectiveOp:
        return self.placeholder.op

    def __str__(self) -> str:
        return f"p{self.number} {self.placeholder.name or self.op.value}"


@attrs.frozen(eq=False)
class PlanFile:
    """A file, and the placeholders that it is meant for."""

    path: str
    target: str | None  # operator, pN or name
    content: "_Msccl | _Document"

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"plan:{Path(self.path).name}"

    @property
    def is_proved_late(self) -> bool:
        """Whether only the proofs of the lowered program show if it is right."""
        return isinstance(self.content, _Document)

    @property
    def warnings(self) -> tuple[Notice, ...]:
        """One for each thing that a GPU would do otherwise with what was filled."""
        return tuple(
            Notice("plan", f"plan {self.path}: {line}", "docs/plans.md#msccl-xml")
            for line in self.content.warnings()
        )

    @property
    def is_for_one(self) -> bool:
        """Whether it names a placeholder."""
        return self.target is not None and self.target not in _OPERATORS

    def is_meant_for(self, request: PlanRequest) -> bool:
        """Whether it is meant for a placeholder, if it fits."""
        names = (None, request.op.value, f"p{request.number}", request.placeholder.name)
        return self.target in names

    def misfit(self, request: PlanRequest) -> str:
        """Why it cannot fill a placeholder, "" if it can."""
        return self.content.misfit(request, named=self.target is not None)

    def candidate(self, request: PlanRequest, chips: np.ndarray) -> Candidate:
        """The candidate for a placeholder; PlanError if its plan is not sound.

        `chips` has the chip of each rank.
        """
        try:
            teams = self.content.teams(request)
            for plan, groups in teams:
                check_reads(plan, groups, chips)
        except PlanError as reason:
            raise PlanError(f"plan {self.path}: {reason}") from None
        return Candidate(self.name, None, replica_groups=teams)


_OPERATORS = frozenset(op.value for op in CollectiveOp)


class _Msccl:
    """An MSCCL file."""

    def __init__(self, algo: Algo) -> None:
        self._algo = algo
        self._plans: dict[CollectiveOp, MscclPlan] = {}
        op = op_of(algo)
        if op is not None:
            self._plan(op)

    def misfit(self, request: PlanRequest, *, named: bool) -> str:
        file_op = op_of(self._algo)
        if file_op is None and not named:
            word = self._algo.collective[:40]
            says = f"it is for {word!r}" if word else "it has no coll"
            return f"{says}: say what it fills, as {request.op.value}=FILE"
        if request.op not in TAKEN:
            return f"{request.op.value} moves no chunks"
        if file_op not in (None, request.op):
            return f"it is for {file_op.value if file_op else ''}"
        members = self._algo.gpus
        other = next((group for group in request.groups if len(group) != members), None)
        if other is not None:
            return f"it is for {members} ranks, a group has {len(other)}"
        return "" if request.groups else "it has no groups"

    def teams(self, request: PlanRequest) -> Teams:
        plan = self._plan(request.op).build(request.job)
        return ((plan, np.array(request.groups, np.int32)),)

    def warnings(self) -> Iterator[str]:
        for plan in self._plans.values():
            yield from plan.warnings

    def _plan(self, op: CollectiveOp) -> MscclPlan:
        if op not in self._plans:
            self._plans[op] = MscclPlan(self._algo, op)
        return self._plans[op]


class _Document:
    """A JSON file (document.py)."""

    def __init__(self, collectives: Sequence[CollectiveText]) -> None:
        self._collectives = collectives

    def misfit(self, request: PlanRequest, *, named: bool) -> str:
        del named
        same_op = [text for text in self._collectives if text.op == request.op.value]
        if not same_op:
            ops = sorted({text.op for text in self._collectives})
            return f"it has {', '.join(ops) or 'nothing'}"
        same = [text for text in same_op if not document.difference(text, request.job)]
        if not same:
            return document.difference(same_op[0], request.job)
        teams = [team for text in same for team in text.teams]
        for group in request.groups:
            if not any(_is_for(team, group) for team in teams):
                return f"it has no plan for a group of {len(group)} ranks, the first {group[0]}"
        return ""

    def teams(self, request: PlanRequest) -> Teams:
        texts = [text for text in self._collectives if not document.difference(text, request.job)]
        if len(texts) > 1:
            raise PlanError(f"{request}: {len(texts)} collectives of the file are like it")
        groups: dict[int, list[Members]] = {}
        for group in request.groups:
            fitting = [number for number, team in enumerate(texts[0].teams) if _is_for(team, group)]
            named = [number for number in fitting if texts[0].teams[number].groups is not None]
            groups.setdefault((named or fitting)[0], []).append(group)
        teams = []
        for number, same in sorted(groups.items()):
            team = texts[0].teams[number]
            try:
                plan = document.plan_of(team)
                check_sound(plan, request.job)
            except PlanError as reason:
                raise PlanError(f"{team.algorithm}: {reason}") from None
            teams.append((plan, np.array(same, np.int32)))
        return tuple(teams)

    def warnings(self) -> Iterator[str]:
        yield from ()


def _is_for(team: TeamText, group: Members) -> bool:
    if team.groups is None:
        return team.members == len(group)
    return team.members == len(group) and list(group) in team.groups


def read_plans(words: Sequence[str]) -> tuple[PlanFile, ...]:
    """The files of a command line; PlanError, with the file, where one is none."""
    return tuple(
        plan_file(path, target, plan_data(path)) for target, path in map(split_word, words)
    )


def plan_data(path: str) -> bytes:
    """The bytes of a file; PlanError where it cannot be read."""
    try:
        return read_file(path, document.MOST_BYTES)
    except OSError as error:
        raise PlanError(f"plan {path}: {reason_of(error)}") from None


def plan_file(path: str, target: str | None, data: bytes) -> PlanFile:
    """A plan from its bytes; PlanError, with the name of the file, where it is none."""
    if other := recognised(data, FileRole.PLAN):
        raise PlanError(f"plan {path}: {other}")
    try:
        if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
            return PlanFile(path, target, _Document(document.decoded(data).collectives))
        return PlanFile(path, target, _Msccl(msccl_file.read(data)))
    except PlanError as reason:
        raise PlanError(f"plan {path}: {reason}") from None


def split_word(word: str) -> tuple[str | None, str]:
    """`OP=FILE`, `pN=FILE`, `NAME=FILE` or `FILE`; a file that is there is always a FILE."""
    target, equals, path = word.partition("=")
    if not equals or Path(word).is_file():
        return None, word
    return target, path


def assigned(files: Sequence[PlanFile], requests: Sequence[PlanRequest]) -> Mapping[int, PlanFile]:
    """Which file fills which placeholder; PlanError where two do, or one fits nothing."""
    file_of: dict[int, PlanFile] = {}
    for request in requests:
        fitting = [
            file for file in files if file.is_meant_for(request) and not file.misfit(request)
        ]
        fitting = [file for file in fitting if file.is_for_one] or fitting
        if len(fitting) > 1:
            names = " and ".join(file.path for file in fitting[:2])
            raise PlanError(
                f"{request}: plans {names} both fit; say p{request.number}=FILE which is for it"
            )
        if fitting:
            file_of[request.number] = fitting[0]
    for file in files:
        if file not in file_of.values():
            raise PlanError(f"plan {file.path}: fits no collective{_reasons(file, requests)}")
    return file_of


def _reasons(file: PlanFile, requests: Sequence[PlanRequest]) -> str:
    """Why a file fits none of the placeholders that it is meant for."""
    meant = [request for request in requests if file.is_meant_for(request)]
    if not meant:
        return f": none is called {file.target}" if file.target else ": there are none"
    shown = [
        f"{request}: {file.misfit(request) or 'another plan is for it'}"
        for request in meant[:MOST_REASONS]
    ]
    more = f" and {len(meant) - len(shown)} more" if len(meant) > len(shown) else ""
    return f" ({'; '.join(shown)}{more})"
