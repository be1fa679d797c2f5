"""Orders of shared collectives in which programs would wait for each other.

One greedy run of all stages at once, a rank of each standing for all: an engine waits for its
semaphores, a stream completes what is triggered in the order of its program, and a collective that
stages share is complete when it is the next on its stream everywhere. Every block runs once.
Counters only grow, so if this run comes to its end every run does (docs/isa.md).
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from ncc_runtime.neff.isa import ENGINES
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import Stage
from ncc_runtime.neff.structure import Structure, acknowledgements, structure_of
from ncc_runtime.neff.table import NONE
from ncc_runtime.verify.agreement.meetings import Call, Meeting

Item = tuple[int, bool, int]
"""Of a stream: the stretch it stands in, whether it is an acknowledgement, else the placeholder."""


def inversion(stages: Sequence[Stage], meetings: Sequence[Meeting]) -> list[str]:
    """Stages that wait for each other in a circle, as text; nothing if all come to their ends."""
    partners = {(stage, call.number): one for one in meetings for stage, call in one.items()}
    runs = [
        _StageRun(stage.program, {number for where, number in partners if where == position})
        for position, stage in enumerate(stages)
    ]
    while any([*(run.advance() for run in runs), _meet(runs, partners)]):
        pass
    circle = _circle(runs, partners)
    if not circle:
        return []
    lines = ["shared collectives stand in orders in which their programs wait for each other"]
    for awaited, waiting in circle:
        stage = stages[waiting.stage]
        where = f"rank {stage.ranks[0]} ({stage.label})"
        lines.append(f"{where}: {waiting.text} comes before {awaited.text}")
    return ["\n    ".join(lines)]


def _meet(runs: Sequence["_StageRun"], partners: Mapping[tuple[int, int], Meeting]) -> bool:
    """Complete what all of its stages have come to; whether there was anything."""
    moved = False
    for stage, run in enumerate(runs):
        for number in tuple(run.waiting()):
            meeting = partners[stage, number]
            if all(call.number in runs[other].waiting() for other, call in meeting.items()):
                _complete(runs, meeting)
                moved = True
    return moved


def _complete(runs: Sequence["_StageRun"], meeting: Meeting) -> None:
    for stage, call in meeting.items():
        runs[stage].complete(call.number)


def _circle(
    runs: Sequence["_StageRun"], partners: Mapping[tuple[int, int], Meeting]
) -> list[tuple[Call, Call]]:
    """(what another awaits of a stage, what the stage itself waits at), all around."""
    way: list[tuple[Call | None, Call]] = []
    stage = next((stage for stage, run in enumerate(runs) if [*run.waiting()]), None)
    awaited: Call | None = None
    while stage is not None:
        number = next(iter(runs[stage].waiting()), None)
        if number is None:
            return []  # it waits for itself, which is for the proof of deadlock to say
        meeting = partners[stage, number]
        way.append((awaited, meeting[stage]))
        start = next(place for place, (_, call) in enumerate(way) if call.stage == stage)
        if start < len(way) - 1:
            around = [(awaited, meeting[stage]), *way[start + 1 : -1]]
            return [(one, other) for one, other in around if one is not None]
        stage = next(
            other for other, call in meeting.items() if call.number not in runs[other].waiting()
        )
        awaited = meeting[stage]
    return []


class _StageRun:
    """One rank of a stage."""

    def __init__(self, program: Program, shared: set[int]) -> None:
        structure = structure_of(program)
        assert structure is not None, "rules of control flow hold for what is loaded"
        self._shared = shared
        self._rows = [list(program.queues[engine]) for engine in ENGINES]
        self._pc = [0] * len(ENGINES)
        self._held = [0] * len(program.semaphores)
        self._triggered: set[int] = set()
        self._decides = [structure.pcs[engine] for engine in ENGINES]
        self._trigger_of, self._items = _streams(program, structure)
        owners = {one.owner: number for number, one in enumerate(program.semaphores)}
        self._sems = {stream: owners.get(f"stream {stream}", NONE) for stream in self._items}

    def waiting(self) -> Iterator[int]:
        """Shared collectives that are triggered and next on their streams."""
        for items in self._items.values():
            if items and not items[0][1] and items[0][2] in self._triggered & self._shared:
                yield items[0][2]

    def complete(self, number: int) -> None:
        """The next of a stream is done."""
        for stream, items in self._items.items():
            if items and items[0][1:] == (False, number):
                self._pop(stream)

    def advance(self) -> bool:
        """Go on as far as the stage can alone; whether it moved."""
        moved = False
        while any([*map(self._step, range(len(ENGINES))), *map(self._run_stream, self._items)]):
            moved = True
        return moved

    def _step(self, queue: int) -> bool:
        rows = self._rows[queue]
        start = self._pc[queue]
        while self._pc[queue] < len(rows):
            row = rows[self._pc[queue]]
            if row.wait_sem != NONE and self._held[row.wait_sem] < row.wait_value:
                break
            self._pc[queue] += 1
            if row.post_sem != NONE:
                self._held[row.post_sem] += 1
            if row.placeholder != NONE:
                self._triggered.add(row.placeholder)
        return self._pc[queue] > start

    def _run_stream(self, stream: int) -> bool:
        """Complete what is triggered and shared with nobody, and acknowledge what is decided."""
        items, moved = self._items[stream], False
        while items:
            stretch, is_acknowledgement, number = items[0]
            queue = self._trigger_of[stream]
            if is_acknowledgement:
                ready = self._pc[queue] > self._decides[queue][stretch]
            else:
                ready = number in self._triggered and number not in self._shared
            if not ready:
                break
            self._pop(stream)
            moved = True
        return moved

    def _pop(self, stream: int) -> None:
        self._items[stream].popleft()
        if self._sems[stream] != NONE:
            self._held[self._sems[stream]] += 1


def _streams(
    program: Program, structure: Structure
) -> tuple[Mapping[int, int], Mapping[int, deque[Item]]]:
    """Which queue triggers each stream, and what the stream does, in order."""
    queue_of: dict[int, int] = {}
    items: dict[int, list[Item]] = {}
    for queue, engine in enumerate(ENGINES):
        for pc, number in enumerate(program.queues[engine].placeholder.tolist()):
            if number != NONE:
                stream = program.placeholders[number].stream
                (stretch,) = structure.phases(engine, [pc]).tolist()
                queue_of[stream] = queue
                items.setdefault(stream, []).append((stretch, False, number))
    for stretch, stream in acknowledgements(program, structure):
        items[stream].append((stretch, True, NONE))
    return queue_of, {stream: deque(sorted(its)) for stream, its in items.items()}
