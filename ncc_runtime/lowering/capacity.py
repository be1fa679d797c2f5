"""What a rank has room for: memory, streams and operands, checked before anything is chosen."""

import itertools
from collections.abc import Iterator

from ncc_runtime.errors import LoweringError, PlacementError, TopologyError
from ncc_runtime.neff.memory import MemoryUse, memory_of, memory_text, size_text
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import participants, stages_of
from ncc_runtime.placement import nodes_needed
from ncc_runtime.topology.format.spec import preset_names
from ncc_runtime.topology.graph import Topology, build

MOST_OPERANDS = 1 << 14
"""Operands of one collective that is lowered: each has transfers of its own in every round."""

_MOST_NAMED = 5  # buffers that a message names
_MOST_PLACES = 3  # other places that it names


def rank_capacity(topology: Topology) -> int:
    """A rank has its cores' share of their HBM stack, in bytes."""
    return topology.hbm.stack_bytes * topology.lnc // topology.cores_per_stack


def check_capacity(program: Program, topology: Topology, *, ignore_memory: bool) -> None:
    """LoweringError where the program asks for more than a rank has."""
    if not ignore_memory and program.hbm_bytes > rank_capacity(topology):
        raise LoweringError(_refusal(program, topology, program.hbm_bytes))
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


def check_channels(program: Program, topology: Topology, hbm_bytes: int) -> None:
    """LoweringError where the channel buffers do not fit beside the program."""
    if hbm_bytes > rank_capacity(topology):
        raise LoweringError(_refusal(program, topology, hbm_bytes))


def _refusal(program: Program, topology: Topology, hbm_bytes: int) -> str:
    """What takes the memory, which buffers are the largest, and what would help."""
    placed = hbm_bytes if hbm_bytes > program.hbm_bytes else None
    memory = memory_of(program, placed, rank_capacity(topology))
    largest = "; ".join(row.text for row in memory.largest()[:_MOST_NAMED])
    where = f"{topology.name} at lnc {topology.lnc}"
    remedies = _remedies(program, topology, memory)
    return "\n  ".join(
        [
            f"{memory_text(memory)} ({where})",
            f"largest: {largest}",
            *(f"would help: {remedy}" for remedy in remedies),
            "--ignore-memory times it all the same (nccrt run: with --no-values)",
        ]
    )


def _remedies(program: Program, topology: Topology, memory: MemoryUse) -> Iterator[str]:
    """What is sure to help, with what it takes."""
    assert memory.capacity is not None
    if memory.size_bytes - (memory.channel_buffers or 0) <= memory.capacity:
        is_joined = any(len(placeholder.operands) > 1 for placeholder in program.placeholders)
        smaller = ", or a smaller bucket.limit_bytes (nccc compile --pass-option)" * is_joined
        yield (
            f"channel buffers of {size_text(memory.capacity - program.hbm_bytes)} or less: "
            f"another --algorithm{smaller}"
        )
    infos = [memory.program.parameter(number) for number in range(len(memory.program.inputs))]
    is_known = any(info.shape is not None or info.sharding is not None for info in infos)
    whole = [  # parameters of which every rank has all
        memory.program.tensors[tensor].size_bytes
        for tensor, info in zip(memory.program.inputs, infos, strict=True)
        if is_known and info.sharding is None
    ]
    room = memory.capacity - sum(whole)
    if memory.program.hbm_bytes > memory.capacity and room > 0:
        ranks = next(len(s.ranks) for s in stages_of(program) if s.program is memory.program)
        times = -(-(memory.program.hbm_bytes - sum(whole)) // room)
        yield f"{times * ranks} ranks instead of {ranks}, where what is sharded is divided further"
    if sum(whole) * 20 > memory.capacity:
        yield (
            f"to shard parameters: {len(whole)} of {len(infos)} have no sharding, "
            f"{size_text(sum(whole))} on every rank"
        )
    if memory.temporaries >= memory.size_bytes - memory.capacity:
        yield "perhaps another -O level: nccc compile says what temporaries take"
    yield from itertools.islice(_roomier(program, topology, memory), _MOST_PLACES)


def _roomier(program: Program, topology: Topology, memory: MemoryUse) -> Iterator[str]:
    """Places whose ranks have room for the program, and for as much of channel buffers as here.

    The same instance type first, then those of the least memory that is enough.
    """
    found: dict[tuple[bool, int, int], list[str]] = {}
    for name in dict.fromkeys((topology.name, *preset_names())):
        try:
            allowed = build(name).figures["lnc.allowed"].value
        except TopologyError:  # a user's file: what it says of other lnc stands in `topology`
            continue
        for lnc in allowed if isinstance(allowed, tuple) else ():
            assert isinstance(lnc, int)
            other = build(name, lnc=lnc)
            room = rank_capacity(other)
            if room < memory.size_bytes:
                continue
            try:
                nodes = nodes_needed(name, program.ranks, lnc)
                _check_streams(program, other)
            except (PlacementError, LoweringError):
                continue
            if program.ranks % nodes == 0:
                found.setdefault((name != topology.name, room, lnc), []).append(
                    f"{name}" if nodes == 1 else f"{nodes} x {name}"
                )
    for (_, room, lnc), names in sorted(found.items()):
        yield f"{', '.join(names)} at lnc {lnc}: a rank has {size_text(room).replace('.0 ', ' ')}"
