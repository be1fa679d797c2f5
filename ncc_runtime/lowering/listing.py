"""The listing of a placed program: one rank's queues, placeholders filled."""

from collections.abc import Callable, Iterator

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    EngineQueue,
    Executable,
    Queue,
)
from ncc_runtime.neff.program import Program, TensorId
from ncc_runtime.neff.table import NONE, Instr


def list_executable(executable: Executable, rank: int, queue: str | None = None) -> str:
    """The queues of one rank as text, or one queue of it; idle rows are left out."""
    lines = [_header(executable, rank)]
    names = executable.semaphore_names(rank)
    for one in executable.queues:
        if queue is None or one.name == queue:
            rows = list(_rows(executable, one, rank, names))
            lines += ["", f"queue {one.name}  ; {_about(executable, one, len(rows))}", *rows]
    return "\n".join(lines)


def _header(executable: Executable, rank: int) -> str:
    place = executable.placement
    topology = executable.topology
    return (
        f"program {executable.program.name} on {topology.nodes} x {topology.name}, "
        f"lnc {topology.lnc}, {place.strategy}\n"
        f"rank {rank} of {executable.ranks}: node {place.node[rank]}, "
        f"chip {place.chip[rank]}, core {place.core[rank]}"
    )


def _about(executable: Executable, queue: Queue, rows: int) -> str:
    if isinstance(queue, EngineQueue):
        return f"{rows} instructions"
    if isinstance(queue, CcQueue):
        return f"CC-core of stream {queue.stream}, {rows} instructions"
    return f"DMA ring of stream {queue.stream}, {rows} runs of descriptors"


def _rows(executable: Executable, queue: Queue, rank: int, names: dict[int, str]) -> Iterator[str]:
    describe: Callable[[int], tuple[str, str]]
    if isinstance(queue, EngineQueue):
        table = queue.table
        describe = lambda row: _engine_row(executable, table[row])  # noqa: E731
    elif isinstance(queue, CcQueue):
        cc_queue = queue
        describe = lambda row: _cc_row(executable, cc_queue, row, rank)  # noqa: E731
    else:
        ring = queue
        describe = lambda row: _dma_row(executable, ring, row, rank)  # noqa: E731
    for row in range(len(queue.sync.wait_sem)):
        wait = _wait(queue, row, rank, names)
        posts = _posts(executable, queue, row, rank)
        text, comment = describe(row)
        if text or wait or posts:
            yield f"{row:>6}  {text:<44} {wait:<26} {posts:<30} ; {comment}".rstrip(" ;")


def _wait(queue: Queue, row: int, rank: int, names: dict[int, str]) -> str:
    column = rank if queue.sync.wait_sem.shape[1] > 1 else 0
    sem = int(queue.sync.wait_sem[row, column])
    if sem == IDLE:
        return ""
    return f"wait {names[sem]} >= {int(queue.sync.wait_value[row, column])}"


def _posts(executable: Executable, queue: Queue, row: int, rank: int) -> str:
    posts = []
    for post in queue.sync.posts:
        to, sem = int(post.rank[row, rank]), int(post.sem[row, rank])
        if to != IDLE:
            where = "" if to == rank else f" @{to}"
            posts.append(f"{executable.semaphore_names(to)[sem]}{where}")
    return f"post {', '.join(posts)}" if posts else ""


def _engine_row(executable: Executable, instr: Instr) -> tuple[str, str]:
    program = executable.program
    if instr.placeholder != NONE:
        placeholder = program.placeholders[instr.placeholder]
        filled = executable.filled[instr.placeholder]
        how = "+".join(dict.fromkeys(filled.algorithms))
        text = f"write          trigger{placeholder.stream}"
        return text, f"placeholder {instr.placeholder}: {placeholder.op.value} {how}"
    attribute = ""
    if instr.attribute != NONE:
        pairs = sorted(program.attributes[instr.attribute].items())
        attribute = " {" + ", ".join(f"{key}={_plain(value)}" for key, value in pairs) + "}"
    results = ", ".join(f"t{tensor}" for tensor in instr.results)
    operands = ", ".join(f"t{tensor}" for tensor in instr.operands)
    arrow = f"{results} = {operands}" if results else operands
    return f"{instr.opcode:<14} {arrow}{attribute}", _origin(program, instr)


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _origin(program: Program, instr: Instr) -> str:
    shape = ""
    if instr.results:
        tensor = program.tensors[TensorId(instr.results[0])]
        shape = f"{tensor.dtype.value}[{','.join(map(str, tensor.shape))}] "
    if instr.origin == NONE:
        return shape.strip()
    origin = program.origins[instr.origin]
    return f"{shape}{origin.node}  {origin.place}".rstrip()


def _cc_row(executable: Executable, queue: CcQueue, row: int, rank: int) -> tuple[str, str]:
    active = any(int(post.rank[row, rank]) != IDLE for post in queue.sync.posts)
    opcode = CcOpcode(int(queue.opcode[row]))
    number = int(queue.placeholder[row])
    placeholder = executable.program.placeholders[number]
    column = rank if queue.sync.wait_sem.shape[1] > 1 else 0
    if not active and int(queue.sync.wait_sem[row, column]) == IDLE:
        return "", ""
    text = opcode.name.lower() if active else "wait"
    if opcode is CcOpcode.ADVANCE and active:
        text = f"{text:<14} cc{queue.stream}.dma{int(queue.ring[row])}"
    round_number = int(queue.round[row])
    where = f" round {round_number}" if round_number != IDLE else ""
    return text, f"{placeholder.op.value} {placeholder.name}{where}"


def _dma_row(executable: Executable, queue: DmaQueue, row: int, rank: int) -> tuple[str, str]:
    peer = int(queue.peer[row, rank])
    if peer == IDLE:
        return "", ""
    placeholder = executable.program.placeholders[int(queue.placeholder[row])]
    opcode = DmaOpcode(int(queue.opcode[row]))
    name = opcode.name.lower()
    if opcode is DmaOpcode.REDUCE and placeholder.reduction is not None:
        name = f"{name}.{placeholder.reduction.value}"
    sources = [f"{address:#x}" for address in queue.sources[row, rank].tolist() if address != IDLE]
    target = f"{int(queue.target[row, rank]):#x}" + ("" if peer == rank else f" @{peer}")
    size, runs = int(queue.size_bytes[row, rank]), int(queue.descriptors[row, rank])
    count = f" x{runs}" if runs > 1 else ""
    text = f"{name:<14} {' + '.join(sources) or '0'} -> {target}, {size} B{count}"
    way = executable.routes.describe(rank, peer)
    return text, f"{way}; {placeholder.name} round {int(queue.round[row])}"


def queue_names(executable: Executable) -> list[str]:
    """Names of all queues, in listing order."""
    return [queue.name for queue in executable.queues]


def instruction_counts(executable: Executable) -> dict[str, int]:
    """Rows that some rank performs, per kind of queue, over all ranks."""
    counts = {"engine": 0, "cc": 0, "descriptor_runs": 0}
    for queue in executable.queues:
        if isinstance(queue, EngineQueue):
            counts["engine"] += len(queue.table) * executable.ranks
        elif isinstance(queue, CcQueue):
            active = queue.sync.wait_sem != IDLE
            for post in queue.sync.posts:
                active = active | (post.rank != IDLE)
            counts["cc"] += int(np.count_nonzero(active))
        else:
            counts["descriptor_runs"] += int(np.count_nonzero(queue.peer != IDLE))
    return counts
