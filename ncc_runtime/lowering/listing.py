"""The listing of a placed program: the queues of ranks, placeholders filled.

It reads like the listing of the program; addresses are of the rank's own memory, `@r` marks another
rank's. A semaphore of a channel is named stream.kind.peer.lane, as in `cc0.data.7.0`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

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
from ncc_runtime.neff.listing import (
    Cells,
    aligned,
    fused_cells,
    instruction_fields,
    queue_cells,
)
from ncc_runtime.neff.shared.reductions import Reduction


@attrs.frozen
class ListedRow:
    """One row of a queue on a rank: as words of a line, and as data.

    In the data a `rank` of null is the row's own; addresses and sizes are in bytes.
    """

    cells: Cells
    fields: dict[str, Any]
    below: tuple[Cells, ...] = ()  # lines of what it is made of: the rows of a fusion


@attrs.frozen
class ListedQueue:
    """One queue, and the ranks on which it has these rows."""

    queue: Queue
    ranks: tuple[int, ...]
    rows: tuple[ListedRow, ...]

    def as_text(self, *, of_ranks: bool) -> str:
        """A heading and a line for each row; `of_ranks` names the ranks."""
        where = f" of {ranks_text(self.ranks)}" if of_ranks else ""
        heading = f"queue {self.queue.name}{where}  ; {_summary(self.queue, len(self.rows))}"
        lines = (cells for row in self.rows for cells in (row.cells, *row.below))
        return "\n".join([heading, *aligned(lines)])

    def as_json(self) -> dict[str, Any]:
        queue = self.queue
        stream = None if isinstance(queue, EngineQueue) else queue.stream
        return {
            "name": queue.name,
            "kind": _kind(queue),
            "stream": stream,
            "ranks": list(self.ranks),
            "rows": [row.fields for row in self.rows],
        }


def list_executable(executable: Executable, rank: int, queue: str | None = None) -> str:
    """The queues of one rank as text, or one queue of it; idle rows are left out."""
    return as_text(executable, [rank], listed_queues(executable, [rank], queue))


def listed_queues(
    executable: Executable, ranks: Sequence[int], queue: str | None = None
) -> list[ListedQueue]:
    """The queues of some ranks, or the one of that name; ranks with equal rows share an entry."""
    executable.check_is_whole()
    listings = {rank: _RankListing(executable, rank) for rank in ranks}
    listed = []
    for each in executable.queues:
        if queue not in (None, each.name):
            continue
        alike: dict[tuple[Cells, ...], tuple[list[int], tuple[ListedRow, ...]]] = {}
        for rank, listing in listings.items():
            if is_run_by(each, rank):
                rows = tuple(listing.rows(each))
                key = tuple(tuple(row.cells) for row in rows)
                alike.setdefault(key, ([], rows))[0].append(rank)
        listed += [ListedQueue(each, tuple(same), rows) for same, rows in alike.values()]
    return listed


def as_text(executable: Executable, ranks: Sequence[int], listed: Sequence[ListedQueue]) -> str:
    """What `nccrt list` prints."""
    blocks = [_header(executable, ranks)]
    blocks += [each.as_text(of_ranks=len(ranks) > 1) for each in listed]
    return "\n\n".join(blocks)


def _header(executable: Executable, ranks: Sequence[int]) -> str:
    place = executable.placement
    names = dict.fromkeys(executable.stage_of(rank).program.name for rank in ranks)
    where = f"{place.where}; policy {executable.policy}"
    first = f"program {', '.join(names)} on {where}\n"
    if len(ranks) > 1:
        which = f"{ranks_text(ranks)} of {executable.ranks}"
        return f"{first}{which}; what is the same on several is listed once"
    (rank,) = ranks
    core = f"chip {place.chip[rank]}, core {place.core[rank]}"
    return f"{first}rank {rank} of {executable.ranks}: node {place.node[rank]}, {core}"


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-3,8`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' * (len(ranks) > 1)} {','.join(words)}"


def _kind(queue: Queue) -> str:
    if isinstance(queue, EngineQueue):
        return "engine"
    return "cc" if isinstance(queue, CcQueue) else "dma"


def queue_names(executable: Executable) -> list[str]:
    """Names of all queues, in listing order."""
    return list(dict.fromkeys(queue.name for queue in executable.queues))


def _summary(queue: Queue, rows: int) -> str:
    if isinstance(queue, EngineQueue):
        return f"instructions: {rows}"
    if isinstance(queue, CcQueue):
        return f"CC-core of stream {queue.stream}, instructions: {rows}"
    return f"DMA ring of stream {queue.stream}, runs of descriptors: {rows}"


def _wait_text(waited: dict[str, Any] | None) -> str:
    return "" if waited is None else f"wait {waited['semaphore']}>={waited['value']}"


def _post_text(posts: list[dict[str, Any]]) -> str:
    words = [f"{post['semaphore']}{_at(post['rank'])}" for post in posts]
    return f"post {', '.join(words)}" if words else ""


def _at(rank: int | None) -> str:
    return "" if rank is None else f"@{rank}"


class _RankListing:
    """Rows of one rank's queues; semaphore names of each rank are made once."""

    def __init__(self, executable: Executable, rank: int) -> None:
        self._executable = executable
        self._program = executable.stage_of(rank).program
        self._rank = rank
        self._names: dict[int, dict[int, str]] = {}
        self._routes: dict[int, str] = {}  # to each peer

    def rows(self, queue: Queue) -> Iterator[ListedRow]:
        if isinstance(queue, EngineQueue):
            return self._engine_rows(queue)
        return self._cc_rows(queue) if isinstance(queue, CcQueue) else self._dma_rows(queue)

    def _engine_rows(self, queue: EngineQueue) -> Iterator[ListedRow]:
        """The program's own rows, its placeholders turned into the writes that trigger them."""
        cells = queue_cells(self._program, queue.engine)
        fields = instruction_fields(self._program, queue.engine)
        for words, data, row in zip(cells, fields, queue.table, strict=True):
            number = row.placeholder
            if number == IDLE:
                yield ListedRow(words, data, tuple(fused_cells(self._program, row)))
                continue
            pc, _, _, wait, _, *rest, comment = words
            algorithms = self._executable.lowered[number].name
            posts = self._posts(queue, int(pc))
            comment = f"{comment}  {algorithms}"
            yield ListedRow(
                [pc, "write", f"p{number}", wait, _post_text(posts), *rest, comment],
                {**data, "op": "write", "post": posts, "algorithm": algorithms},
            )

    def _cc_rows(self, queue: CcQueue) -> Iterator[ListedRow]:
        for row in range(len(queue.opcode)):
            waited, posts = self._waited(queue, row), self._posts(queue, row)
            wait, post = _wait_text(waited), _post_text(posts)
            data = {"wait": waited, "post": posts}
            if row in queue.jumps:
                yield self._control_row(queue, row, [wait, post], data)
                continue
            if row in queue.loads:
                yield self._load_row(queue, row)
                continue
            if not (wait or post):
                continue
            opcode = CcOpcode(int(queue.opcode[row])) if post else CcOpcode.WAIT
            ring = int(queue.ring[row]) if opcode is CcOpcode.ADVANCE else None
            number, round_number = int(queue.placeholder[row]), int(queue.round[row])
            name = opcode.name.lower()
            advanced = "" if ring is None else f"dma{ring}"
            comment = f"; {self._comment(number, round_number)}"
            yield ListedRow(
                [f"{row:>5}", name, advanced, wait, post, comment],
                {"pc": row, "op": name, "ring": ring, **data, **self._of(number, round_number)},
            )

    def _load_row(self, queue: CcQueue, row: int) -> ListedRow:
        load = queue.loads[row]
        address = int(load.address[self._rank if len(load.address) > 1 else 0])
        last = load.first + load.words - 1
        number = int(queue.placeholder[row])
        comment = f"; {self._comment(number, IDLE)}, {load.words} counts"
        return ListedRow(
            [f"{row:>5}", "load", f"n{load.first}..n{last} = {address:#x}", "", "", comment],
            {
                "pc": row,
                "op": "load",
                "registers": [load.first, last],
                "address": address,
                **self._of(number, IDLE),
            },
        )

    def _control_row(
        self, queue: CcQueue, row: int, sync: Cells, data: dict[str, Any]
    ) -> ListedRow:
        jump = queue.jumps[row]
        block = self._executable.program.blocks[jump.block]
        opcode = CcOpcode(int(queue.opcode[row])).name.lower()
        is_certain = jump.decision is Decision.ALWAYS
        where = "to" if is_certain else "or to"
        comment = f"; {block.kind.value} {block.name}, {where} {jump.target}"
        fields = {"block": jump.block, "target": jump.target, "always": is_certain}
        return ListedRow(
            [f"{row:>5}", opcode, f"k{jump.block}", *sync, comment],
            {"pc": row, "op": opcode, **data, **fields},
        )

    def _dma_rows(self, queue: DmaQueue) -> Iterator[ListedRow]:
        for row in range(len(queue.opcode)):
            peer = int(queue.peer[row, self._rank])
            if peer == IDLE:
                continue
            number, round_number = int(queue.placeholder[row]), int(queue.round[row])
            comment, size = (
                self._comment(number, round_number),
                int(queue.size_bytes[row, self._rank]),
            )
            route, operation = self._route_text(queue, row, peer), self._operation(queue, row)
            sources, targets = self._places(queue, row, peer)
            waited, posts = self._waited(queue, row), self._posts(queue, row)
            read = " + ".join(map(self._place_text, sources)) or "0"
            cells = [
                f"{row:>5}",
                operation,
                f"{', '.join(map(self._place_text, targets))} = {read}",
                self._size(queue, row),
                _wait_text(waited),
                _post_text(posts),
                f"; {route}",
                comment if size else f"{comment}, signals only",
            ]
            fields = {
                "pc": row,
                "op": operation,
                "targets": targets,
                "sources": sources,
                "bytes": size,
                "rows_register": self._rows_register(queue, row),
                "descriptors": int(descriptors(queue.size_bytes[row, self._rank])),
                "wait": waited,
                "post": posts,
                "route": route,
                **self._of(number, round_number),
            }
            yield ListedRow(cells, fields)

    def _operation(self, queue: DmaQueue, row: int) -> str:
        opcode = DmaOpcode(int(queue.opcode[row]))
        reduction = self._executable.program.placeholders[int(queue.placeholder[row])].reduction
        if opcode is DmaOpcode.REDUCE and reduction is not None:
            divisor = int(queue.divisor[row])
            averages = reduction is Reduction.AVERAGE
            name = Reduction.ADD.value if averages else reduction.value
            return f"reduce.{name}" + (f"/{divisor}" if divisor != 1 else "")
        return opcode.name.lower()

    def _places(
        self, queue: DmaQueue, row: int, peer: int
    ) -> tuple[list[dict[str, int | None]], list[dict[str, int | None]]]:
        """Sources and targets: address, the rank in whose memory, the register added to it."""
        addresses = queue.sources[row, self._rank].tolist()
        owners = [self._rank] * len(addresses)
        if queue.source_rank is not None:
            owners = queue.source_rank[row, self._rank].tolist()
        source_register, target_register = self._shifts(queue, row)
        sources = [
            self._place(at, owner, source_register)
            for at, owner in zip(addresses, owners, strict=True)
            if at != IDLE
        ]
        targets = [self._place(int(queue.target[row, self._rank]), peer, target_register)]
        second = self._second_peer(queue, row)
        if second != IDLE and queue.second_target is not None:
            targets.append(self._place(int(queue.second_target[row, self._rank]), second, None))
        return sources, targets

    def _place(self, address: int, rank: int, register: int | None) -> dict[str, int | None]:
        return {"address": address, "rank": self._other(rank), "register": register}

    def _place_text(self, place: dict[str, int | None]) -> str:
        register = "" if place["register"] is None else f"[n{place['register']}]"
        return f"{place['address']:#x}{register}{_at(place['rank'])}"

    def _shifts(self, queue: DmaQueue, row: int) -> list[int | None]:
        """The registers that are added to the addresses of sources and target."""
        if queue.registers is None:
            return [None, None]
        _, *columns = queue.registers.columns
        named = [int(column[row, self._rank]) for column in columns]
        return [None if register == IDLE else register for register in named]

    def _rows_register(self, queue: DmaQueue, row: int) -> int | None:
        """The register that says how many rows are moved; None: all of the size."""
        if queue.registers is None:
            return None
        register = int(queue.registers.rows[row, self._rank])
        return None if register == IDLE else register

    def _second_peer(self, queue: DmaQueue, row: int) -> int:
        """The second peer, IDLE if there is none."""
        return IDLE if queue.second_peer is None else int(queue.second_peer[row, self._rank])

    def _route_text(self, queue: DmaQueue, row: int, peer: int) -> str:
        second = self._second_peer(queue, row)
        also = "" if second == IDLE else f", also {self._route_to(second)}"
        return f"{self._route_to(peer)}{also}"

    def _route_to(self, peer: int) -> str:
        if peer not in self._routes:
            self._routes[peer] = self._executable.routes.describe(self._rank, peer)
        return self._routes[peer]

    def _size(self, queue: DmaQueue, row: int) -> str:
        size = int(queue.size_bytes[row, self._rank])
        register = self._rows_register(queue, row)
        if register is not None:
            row_bytes = self._program.row_bytes(self._program.placeholders[queue.placeholder[row]])
            return f"n{register} x {row_bytes} B of {size}"
        runs = int(descriptors(queue.size_bytes[row, self._rank]))
        return f"{size} B" + (f" in {runs}" if runs > 1 else "")

    def _comment(self, number: int, round_number: int) -> str:
        placeholder = self._program.placeholders[number]
        where = f" round {round_number}" if round_number != IDLE else ""
        return f"p{number} {placeholder.name or placeholder.op.value}{where}"

    def _of(self, number: int, round_number: int) -> dict[str, Any]:
        """The placeholder and round that a row belongs to, as data."""
        placeholder = self._program.placeholders[number]
        return {
            "placeholder": number,
            "collective": placeholder.name or placeholder.op.value,
            "round": None if round_number == IDLE else round_number,
        }

    def _waited(self, queue: Queue, row: int) -> dict[str, Any] | None:
        """The semaphore of this rank that a row waits for, and its value."""
        column = self._rank if queue.sync.wait_sem.shape[1] > 1 else 0
        sem = int(queue.sync.wait_sem[row, column])
        value = int(queue.sync.wait_value[row, column])
        return None if sem == IDLE else {"semaphore": self._name(self._rank, sem), "value": value}

    def _posts(self, queue: Queue, row: int) -> list[dict[str, Any]]:
        """The semaphores that a row increments, and on which ranks."""
        posts = (
            (int(post.rank[row, self._rank]), int(post.sem[row, self._rank]))
            for post in queue.sync.posts
        )
        return [
            {"semaphore": self._name(to, sem), "rank": self._other(to)}
            for to, sem in posts
            if to != IDLE
        ]

    def _other(self, rank: int) -> int | None:
        """None for the rank itself, so that what ranks do alike is alike as data."""
        return None if rank == self._rank else rank

    def _name(self, rank: int, sem: int) -> str:
        if rank not in self._names:
            self._names[rank] = self._executable.semaphore_names(rank)
        return self._names[rank][sem]
