"""Places of an executable in the words of reports: rank, queue, pc, collective, source line."""

from ncc_runtime.lowering.executable import IDLE, EngineQueue, Executable, Queue
from ncc_runtime.neff.program import Origin
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.verify.proof import Breach, Cell


def place_of(executable: Executable, queue: int, row: int, rank: int) -> str:
    """A cell of a queue: `rank 3, queue cc0.dma1, pc 41 (p2 all-reduce.2, models.py:56)`."""
    one = executable.queues[queue]
    text = f"rank {rank}, queue {one.name}, pc {row}"
    if not 0 <= row < len(one.sync.wait_sem):
        return text
    if isinstance(one, EngineQueue):
        instr = one.table[row]
        number, about = instr.placeholder, [instr.opcode]
        if number == IDLE:
            origin = _origin(executable, instr.origin)
            about += [word for word in (origin.node, origin.place) if word]
            return f"{text} ({', '.join(about)})"
    else:
        number = int(one.placeholder[row])
    return f"{text} ({collective(executable, number, rank)})" if number != IDLE else text


def breach_at(
    executable: Executable,
    rule: str,
    text: str,
    *cells: tuple[int, int, int],
    semaphore: int | None = None,
    value: int | None = None,
) -> Breach:
    """The record of a breach in these rows, (queue, row, rank) each, and their placeholders."""
    numbers = set()
    for queue, row, _ in cells:
        one = executable.queues[queue]
        column = one.table.placeholder if isinstance(one, EngineQueue) else one.placeholder
        if 0 <= row < len(column):
            numbers.add(int(column[row]))
    places = tuple(Cell(*cell) for cell in cells)
    return Breach(rule, text, places, frozenset(numbers - {IDLE}), semaphore, value)


def queue_text(queue: Queue) -> str:
    """A queue on all ranks that run it: `queue cc0`, of a stage `queue cc0 on ranks 0-3`."""
    return f"queue {queue.name}{runners_text(queue)}"


def runners_text(queue: Queue) -> str:
    """Who runs a queue: ` on ranks 0-3`; nothing where everybody does."""
    return "" if queue.ranks is None else f" on ranks {ranks_text(queue.ranks.tolist())}"


def collective(executable: Executable, number: int, rank: int | None = None) -> str:
    """A placeholder with the line that it comes from: `p2 all-reduce.2, models.py:56`.

    Of one that stages share, the line of each, or that of the rank's own.
    """
    stages = executable.stages if rank is None else (executable.stage_of(rank),)
    program = executable.program if rank is None else stages[0].program
    if not 0 <= number < len(program.placeholders):
        return f"p{number}"
    placeholder = program.placeholders[number]
    words = [f"p{number} {placeholder.name or placeholder.op.value}"]
    for table in (table for stage in stages for table in stage.program.queues.values()):
        rows = (table.placeholder == number).nonzero()[0][:1]
        words += [_origin(executable, int(table.origin[row])).place for row in rows]
    return ", ".join(word for word in words if word)


def _origin(executable: Executable, number: int) -> Origin:
    origins = executable.program.origins
    return origins[number] if 0 <= number < len(origins) else Origin("")
