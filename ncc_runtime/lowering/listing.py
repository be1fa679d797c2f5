"""The listing of a placed program: one rank's queues, placeholders filled.

It reads like the listing of the program; addresses are of the rank's own memory, `@r` marks another
rank's. A semaphore of a channel is named stream.kind.peer.lane, as in `cc0.data.7.0`.
"""

from collections.abc import Iterator

from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
    Queue,
    descriptors,
    is_run_by,
)
from ncc_runtime.neff.listing import Cells, aligned, queue_cells
from ncc_runtime.neff.shared.reductions import Reduction


def list_executable(executable: Executable, rank: int, queue: str | None = None) -> str:
    """The queues of one rank as text, or one queue of it; idle rows are left out."""
    executable.check_all_ranks_have_columns()
    listing = _RankListing(executable, rank)
    blocks = [listing.header()]
    for each in executable.queues:
        if is_run_by(each, rank) and queue in (None, each.name):
            rows = aligned(listing.rows(each))
            blocks.append("\n".join([f"queue {each.name}  ; {_summary(each, len(rows))}", *rows]))
    return "\n\n".join(blocks)


def queue_names(executable: Executable) -> list[str]:
    """Names of all queues, in listing order."""
    return list(dict.fromkeys(queue.name for queue in executable.queues))


def _summary(queue: Queue, rows: int) -> str:
    if isinstance(queue, EngineQueue):
        return f"instructions: {rows}"
    if isinstance(queue, CcQueue):
        return f"CC-core of stream {queue.stream}, instructions: {rows}"
    return f"DMA ring of stream {queue.stream}, runs of descriptors: {rows}"


class _RankListing:
    """Rows of one rank's queues; semaphore names of each rank are made once."""

    def __init__(self, executable: Executable, rank: int) -> None:
        self._executable = executable
        self._program = executable.stage_of(rank).program
        self._rank = rank
        self._names: dict[int, dict[int, str]] = {}

    def header(self) -> str:
        executable, rank = self._executable, self._rank
        place = executable.placement
        return (
            f"program {self._program.name} on {place.where}\n"
            f"rank {rank} of {executable.ranks}: node {place.node[rank]}, "
            f"chip {place.chip[rank]}, core {place.core[rank]}"
        )

    def rows(self, queue: Queue) -> Iterator[Cells]:
        if isinstance(queue, EngineQueue):
            return self._engine_rows(queue)
        return self._cc_rows(queue) if isinstance(queue, CcQueue) else self._dma_rows(queue)

    def _engine_rows(self, queue: EngineQueue) -> Iterator[Cells]:
        """The program's own rows, its placeholders turned into the writes that trigger them."""
        cells = queue_cells(self._program, queue.engine)
        for row, number in zip(cells, queue.table.placeholder.tolist(), strict=True):
            if number == IDLE:
                yield row
                continue
            pc, _, _, wait, _, *rest, comment = row
            post = self._post(queue, int(pc))
            algorithms = self._executable.lowered[number].name
            yield [pc, "write", f"p{number}", wait, post, *rest, f"{comment}  {algorithms}"]

    def _cc_rows(self, queue: CcQueue) -> Iterator[Cells]:
        for row in range(len(queue.opcode)):
            wait, post = self._wait(queue, row), self._post(queue, row)
            if row in queue.jumps:
                yield self._control_row(queue, row, wait, post)
                continue
            if row in queue.loads:
                yield self._load_row(queue, row)
                continue
            if not (wait or post):
                continue
            opcode = CcOpcode(int(queue.opcode[row])) if post else CcOpcode.WAIT
            data = f"dma{queue.ring[row]}" if opcode is CcOpcode.ADVANCE else ""
            comment = self._comment(int(queue.placeholder[row]), int(queue.round[row]))
            yield [f"{row:>5}", opcode.name.lower(), data, wait, post, f"; {comment}"]

    def _load_row(self, queue: CcQueue, row: int) -> Cells:
        load = queue.loads[row]
        address = int(load.address[self._rank if len(load.address) > 1 else 0])
        into = f"n{load.first}..n{load.first + load.words - 1} = {address:#x}"
        comment = self._comment(int(queue.placeholder[row]), IDLE)
        return [f"{row:>5}", "load", into, "", "", f"; {comment}, {load.words} counts"]

    def _control_row(self, queue: CcQueue, row: int, wait: str, post: str) -> Cells:
        jump = queue.jumps[row]
        block = self._executable.program.blocks[jump.block]
        opcode = CcOpcode(int(queue.opcode[row])).name.lower()
        where = "to" if jump.decision is Decision.ALWAYS else "or to"
        comment = f"; {block.kind.value} {block.name}, {where} {jump.target}"
        return [f"{row:>5}", opcode, f"k{jump.block}", wait, post, comment]

    def _dma_rows(self, queue: DmaQueue) -> Iterator[Cells]:
        for row in range(len(queue.opcode)):
            peer = int(queue.peer[row, self._rank])
            if peer == IDLE:
                continue
            comment = self._comment(int(queue.placeholder[row]), int(queue.round[row]))
            yield [
                f"{row:>5}",
                self._operation(queue, row),
                self._move(queue, row, peer),
                self._size(queue, row),
                self._wait(queue, row),
                self._post(queue, row),
                f"; {self._route_text(queue, row, peer)}",
                comment if queue.size_bytes[row, self._rank] else f"{comment}, signals only",
            ]

    def _operation(self, queue: DmaQueue, row: int) -> str:
        opcode = DmaOpcode(int(queue.opcode[row]))
        reduction = self._executable.program.placeholders[int(queue.placeholder[row])].reduction
        if opcode is DmaOpcode.REDUCE and reduction is not None:
            divisor = int(queue.divisor[row])
            averages = reduction is Reduction.AVERAGE
            name = Reduction.ADD.value if averages else reduction.value
            return f"reduce.{name}" + (f"/{divisor}" if divisor != 1 else "")
        return opcode.name.lower()

    def _move(self, queue: DmaQueue, row: int, peer: int) -> str:
        sources = queue.sources[row, self._rank].tolist()
        owners = [self._rank] * len(sources)
        if queue.source_rank is not None:
            owners = queue.source_rank[row, self._rank].tolist()
        source_shift, target_shift = self._shifts(queue, row)
        read = [
            f"{at:#x}{source_shift}{self._at(owner)}"
            for at, owner in zip(sources, owners, strict=True)
            if at != IDLE
        ]
        target = f"{int(queue.target[row, self._rank]):#x}{target_shift}{self._at(peer)}"
        second = self._second_peer(queue, row)
        if second != IDLE and queue.second_target is not None:
            target += f", {int(queue.second_target[row, self._rank]):#x}{self._at(second)}"
        return f"{target} = {' + '.join(read) or '0'}"

    def _shifts(self, queue: DmaQueue, row: int) -> list[str]:
        """What registers add to the addresses of sources and target: `[n3]` rows."""
        if queue.registers is None:
            return ["", ""]
        _, *columns = queue.registers.columns
        named = [int(column[row, self._rank]) for column in columns]
        return ["" if register == IDLE else f"[n{register}]" for register in named]

    def _second_peer(self, queue: DmaQueue, row: int) -> int:
        """The second peer, IDLE if there is none."""
        return IDLE if queue.second_peer is None else int(queue.second_peer[row, self._rank])

    def _route_text(self, queue: DmaQueue, row: int, peer: int) -> str:
        route = self._executable.routes.describe(self._rank, peer)
        second = self._second_peer(queue, row)
        if second == IDLE:
            return route
        return f"{route}, also {self._executable.routes.describe(self._rank, second)}"

    def _size(self, queue: DmaQueue, row: int) -> str:
        size = int(queue.size_bytes[row, self._rank])
        registers = queue.registers
        if registers is not None and registers.rows[row, self._rank] != IDLE:
            row_bytes = self._program.row_bytes(self._program.placeholders[queue.placeholder[row]])
            return f"n{registers.rows[row, self._rank]} x {row_bytes} B of {size}"
        runs = int(descriptors(queue.size_bytes[row, self._rank]))
        return f"{size} B" + (f" in {runs}" if runs > 1 else "")

    def _comment(self, number: int, round_number: int) -> str:
        placeholder = self._program.placeholders[number]
        where = f" round {round_number}" if round_number != IDLE else ""
        return f"p{number} {placeholder.name or placeholder.op.value}{where}"

    def _wait(self, queue: Queue, row: int) -> str:
        column = self._rank if queue.sync.wait_sem.shape[1] > 1 else 0
        sem = int(queue.sync.wait_sem[row, column])
        value = int(queue.sync.wait_value[row, column])
        return "" if sem == IDLE else f"wait {self._name(self._rank, sem)}>={value}"

    def _post(self, queue: Queue, row: int) -> str:
        posts = (
            (int(post.rank[row, self._rank]), int(post.sem[row, self._rank]))
            for post in queue.sync.posts
        )
        words = [f"{self._name(to, sem)}{self._at(to)}" for to, sem in posts if to != IDLE]
        return f"post {', '.join(words)}" if words else ""

    def _at(self, rank: int) -> str:
        return "" if rank == self._rank else f"@{rank}"

    def _name(self, rank: int, sem: int) -> str:
        if rank not in self._names:
            self._names[rank] = self._executable.semaphore_names(rank)
        return self._names[rank][sem]
