"""What a rank has room for: memory, streams and operands, checked before anything is chosen."""

from collections.abc import Iterator

from ncc_runtime.errors import LoweringError
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import BufferKind, Program
from ncc_runtime.neff.stages import participants, stages_of
from ncc_runtime.topology.graph import Topology

MOST_OPERANDS = 1 << 14
"""Operands of one collective that is lowered: each has transfers of its own in every round."""

_MOST_NAMED = 5  # buffers that a message names

IGNORE_IT = "--no-values --ignore-memory times it all the same"


def rank_capacity(topology: Topology) -> int:
    """A rank has its cores' share of their HBM stack, in bytes."""
    return topology.hbm.stack_bytes * topology.lnc // topology.cores_per_stack


def check_capacity(program: Program, topology: Topology, *, ignore_memory: bool) -> None:
    """LoweringError where the program asks for more than a rank has."""
    if not ignore_memory:
        _check_memory(program, topology)
    _check_streams(program, topology)
    for placeholder in program.placeholders:
        count = len(placeholder.operands)
        if count > MOST_OPERANDS:
            raise LoweringError(
                f"{placeholder.name}: {placeholder.op.value} has {count} operands, at most "
                f"{MOST_OPERANDS} are filled: divide it into several"
            )


def _check_streams(program: Program, topology: Topology) -> None:
    """Each stream of a rank runs on a CC-core of its own."""
    used: dict[int, Placeholder] = {}  # by stream, its first collective; of the stage with most
    for stage in stages_of(program):
        by_stage: dict[int, Placeholder] = {}
        for placeholder in program.placeholders:
            ranks = participants(placeholder)
            if ranks is None or int(stage.ranks[0]) in ranks:
                by_stage.setdefault(placeholder.stream, placeholder)
        used = max(used, by_stage, key=len)
    cores, streams_used = topology.rank_cc_cores, len(used)
    if streams_used <= cores:
        return
    streams = ", ".join(f"{stream} ({first.name})" for stream, first in sorted(used.items()))
    remedies = [f"let stream_id have at most {cores} values in the model"]
    allowed = topology.figures["lnc.allowed"].value
    for lnc in allowed if isinstance(allowed, tuple) else ():
        if not isinstance(lnc, int) or lnc <= topology.lnc:
            continue
        if topology.cc_cores_per_core * lnc >= streams_used:
            remedies.insert(0, f"place it at lnc {lnc}")
    raise LoweringError(
        f"the program's collectives use {streams_used} streams, {streams}; a rank of "
        f"{topology.name} at lnc {topology.lnc} has {cores} CC-cores, one for each stream at most: "
        f"{', or '.join(remedies)}"
    )


def _check_memory(program: Program, topology: Topology) -> None:
    capacity = rank_capacity(topology)
    if program.hbm_bytes <= capacity:
        return
    largest = max((stage.program for stage in stages_of(program)), key=lambda each: each.hbm_bytes)
    bytes_of = {
        kind: sum(buffer.size_bytes for buffer in largest.buffers if buffer.kind is kind)
        for kind in BufferKind
    }
    constants = bytes_of[BufferKind.CONSTANT] + bytes_of[BufferKind.ELIDED]
    inputs, outputs = bytes_of[BufferKind.INPUT], bytes_of[BufferKind.OUTPUT]
    between = largest.hbm_bytes - inputs - outputs - constants
    raise LoweringError(
        f"the program takes {size_text(largest.hbm_bytes)} a rank, a rank of {topology.name} at "
        f"lnc {topology.lnc} has {size_text(capacity)}: inputs take {size_text(inputs)}, outputs "
        f"{size_text(outputs)}, constants {size_text(constants)}, values in between "
        f"{size_text(between)}; the largest are {', '.join(_largest_buffers(largest))}; shard it "
        f"over more ranks, or {IGNORE_IT}"
    )


def check_channels(topology: Topology, program_bytes: int, hbm_bytes: int) -> None:
    """LoweringError where the channel buffers do not fit beside the program."""
    capacity = rank_capacity(topology)
    if hbm_bytes > capacity:
        raise LoweringError(
            f"the program takes {size_text(program_bytes)} a rank and its channel buffers "
            f"{size_text(hbm_bytes - program_bytes)}, {size_text(hbm_bytes - capacity)} more than "
            f"the {size_text(capacity)} of a rank of {topology.name} at lnc {topology.lnc}: "
            f"shard it over more ranks, or {IGNORE_IT}"
        )


def _largest_buffers(program: Program) -> Iterator[str]:
    """The largest buffers, each with the line of the user's code that made it, if it is known."""
    order = sorted(range(len(program.buffers)), key=lambda n: -program.buffers[n].size_bytes)
    named = order[:_MOST_NAMED]
    places: dict[int, str] = {}
    for table in program.queues.values():
        for row in range(len(table)):
            results = table.tensors[table.start[row] :][: table.result_count[row]]
            for tensor in results.tolist():
                buffer = program.tensors[tensor].buffer
                origin = int(table.origin[row])
                if buffer in named and origin >= 0:
                    places.setdefault(buffer, program.origins[origin].place)
    for number in named:
        buffer, place = program.buffers[number], places.get(number)
        where = f" ({place})" if place else ""
        yield f"{buffer.kind.value} {buffer.name}{where} {size_text(buffer.size_bytes)}"


def size_text(size_bytes: int) -> str:
    """A size of memory for people: `417.3 GiB`."""
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {unit}"
    return f"{size_bytes} B"
