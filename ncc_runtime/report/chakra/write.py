"""Writes a run as Chakra execution traces: `trace.<rank>.et` for each rank, and process groups.

Ranks that did the same have the same nodes, but for the groups and peers of their collectives. So
nodes are made and encoded once for them, and those of collectives once for each group or peer.

What ASTRA-sim makes of the attributes is told in docs/chakra.md.
"""

import enum
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.costs import engine_costs
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import EngineQueue, Executable
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.isa import WORK, Engine
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.products import products_of
from ncc_runtime.neff.shared.chakra import (
    COLLECTIVE,
    DTYPE,
    DURATION_PS,
    ELEMENTS,
    ENGINE,
    MOST_NODES,
    RANKS,
    REDUCTION,
    ROOT,
    SUFFIX,
    VERSION,
    WRITTEN,
    CommType,
    NodeType,
    attribute,
    message_class,
    with_length,
)
from ncc_runtime.neff.table import NONE, Instr
from ncc_runtime.neff.whole_file import whole_folder
from ncc_runtime.neff.work.instructions import works_of
from ncc_runtime.neff.work.work import Work
from ncc_runtime.progress import phase
from ncc_runtime.report.chakra.dependencies import PerformedStep, PerformedSteps

NAME = "trace"
"""ASTRA-sim's --workload-configuration is DIR/trace."""

GROUPS_FILE = f"{NAME}.comm_groups.json"
"""ASTRA-sim's --comm-group-configuration is DIR/trace.comm_groups.json."""

COMM_TYPES: Mapping[CollectiveOp, CommType] = {
    CollectiveOp.ALL_REDUCE: CommType.ALL_REDUCE,
    CollectiveOp.ALL_GATHER: CommType.ALL_GATHER,
    CollectiveOp.REDUCE_SCATTER: CommType.REDUCE_SCATTER,
    CollectiveOp.ALL_TO_ALL: CommType.ALL_TO_ALL,
    CollectiveOp.BROADCAST: CommType.BROADCAST,
    CollectiveOp.REDUCE: CommType.REDUCE,
    CollectiveOp.GATHER: CommType.GATHER,
    CollectiveOp.SCATTER: CommType.SCATTER,
    CollectiveOp.BARRIER: CommType.BARRIER,
}
"""What Chakra has; permutes become sends and receives, the rest is refused."""

_PS_PER_US = 1_000_000


class TraceTimes(enum.Enum):
    """Which times nodes have; the value is the word for it on the command line."""

    ALONE = "alone"  # instructions take what they take if nobody else moves bytes
    RUN = "run"  # when everything began in the run, and how long it took there
    NONE = "none"


def write_chakra(path: str | os.PathLike[str], trace: Trace, times: TraceTimes) -> int:
    """Write a run into a new folder, and return the number of nodes.

    InputError for a collective of variable size, for more than MOST_NODES / 2 instructions
    of a rank, and for a folder that is not empty; OSError where it cannot be written.
    """
    check_collectives(trace.executable)
    nodes = _Nodes(trace, times)
    with whole_folder(path) as folder, phase("execution traces", "ranks") as now:
        for rank, data in nodes.files():
            (folder / f"{NAME}.{rank}{SUFFIX}").write_bytes(data)
            now.done += 1
        text = json.dumps({name: list(group) for group, name in nodes.names.items()}, indent=1)
        (folder / GROUPS_FILE).write_text(text + "\n")
    return nodes.count


def check_collectives(executable: Executable) -> None:
    """InputError for a program with a collective that Chakra has no form for."""
    for number, placeholder in enumerate(executable.program.placeholders):
        if placeholder.op.is_counted:
            raise InputError(
                f"p{number} {placeholder.name} is {placeholder.op.value}, and data decide how much "
                "each rank sends: Chakra has collectives of one size only; exchange slots of a "
                "fixed size instead, by an all-to-all or all-gather"
            )


@attrs.frozen(eq=False)
class _Likeness:
    """Ranks whose nodes are the same but for groups and peers."""

    steps: Sequence[PerformedStep]
    roles: Mapping[int, "_Role"]  # by placeholder that they perform
    percent: int  # of the speed of their engines


@attrs.frozen
class _Role:
    """What a rank does in a collective; equal ones have equal nodes, but for names and peers."""

    members: int = 0  # of its group
    sends: bool = False
    receives: bool = False
    copies: bool = False  # to itself


class _Nodes:
    """The nodes of all ranks, encoded."""

    def __init__(self, trace: Trace, times: TraceTimes) -> None:
        self.count = 0
        self.names: dict[tuple[int, ...], str] = {}  # of process groups
        self._trace, self._times = trace, times
        self._executable = executable = trace.executable
        self._performed = PerformedSteps(trace)
        self._members = [_members(one) for one in executable.program.placeholders]
        self._instructions = _Instructions(executable)
        self._ran = _spans_of_collectives(trace) if times is TraceTimes.RUN else {}
        for placeholder in executable.program.placeholders:
            for group in placeholder.groups:
                if len(group) > 1 and group != tuple(range(executable.ranks)):
                    # ASTRA-sim takes numbers above 0 for the names of groups
                    self.names.setdefault(group, str(len(self.names) + 1))

    def files(self) -> Iterator[tuple[int, bytes]]:
        """The bytes of the file of each rank."""
        executable = self._executable
        place = executable.placement
        percents = executable.topology.engines_percent(place.chip, place.core).tolist()
        steps_of: dict[object, list[PerformedStep]] = {}
        bytes_of: dict[object, _Encoded] = {}
        head = message_class("GlobalMetadata")(
            version=VERSION, attr=[attribute(RANKS, "int64", executable.ranks)]
        )
        for rank in range(executable.ranks):
            column = rank % executable.representatives
            if (count := self._performed.count(column)) > MOST_NODES // 2:
                # a permute is two nodes
                raise InputError(
                    f"rank {rank} performs {count:,} instructions and collectives, in an execution "
                    f"trace there may be {MOST_NODES // 2:,}: its loops are unrolled, run fewer "
                    "trips (--trip-count NAME=N)"
                )
            path = self._performed.path(column)
            if path not in steps_of:
                steps_of[path] = self._performed.of(column)
            steps = steps_of[path]
            used = dict.fromkeys(step.placeholder for step in steps if step.placeholder != NONE)
            roles = {number: self._role(number, rank) for number in used}
            if self._times is TraceTimes.RUN:
                encoded = self._encoded(_Likeness(steps, roles, percents[rank]), rank)
            else:
                key = path, tuple(roles.values()), percents[rank]
                if key not in bytes_of:
                    likeness = _Likeness(steps, roles, percents[rank])
                    bytes_of[key] = self._encoded(likeness, rank)
                encoded = bytes_of[key]
            self.count += encoded.nodes
            yield rank, with_length(head.SerializeToString()) + encoded.of(rank)

    def _role(self, number: int, rank: int) -> _Role:
        placeholder, members = self._executable.program.placeholders[number], self._members[number]
        if placeholder.op is not CollectiveOp.PERMUTE:
            return _Role(len(members.group_of.get(rank, ())))
        target, source = members.target_of.get(rank), members.source_of.get(rank)
        return _Role(
            sends=target not in (None, rank),
            receives=source not in (None, rank),
            copies=target == rank,
        )

    def _encoded(self, likeness: _Likeness, rank: int) -> "_Encoded":
        """The nodes of alike ranks; one of them says when, if times are those of the run."""
        numbers = _Numbers(likeness, self._instructions)
        spans = self._spans(likeness, rank)
        parts: list[bytes | Callable[[int], bytes]] = []
        fixed: list[bytes] = []
        occurrences: dict[int, int] = {}
        for number, step in enumerate(likeness.steps):
            deps = numbers.deps(number)
            if step.placeholder == NONE:
                for identity in numbers.ids[number]:
                    node = self._instructions.node(step)
                    node.id = identity
                    _depend(node, *deps)
                    self._set_times(node, spans[number])
                    fixed.append(with_length(node.SerializeToString()))
                continue
            occurrence = occurrences.get(step.placeholder, 0)
            occurrences[step.placeholder] = occurrence + 1
            made = self._collective(step, likeness.roles[step.placeholder], occurrence)
            for identity, node in zip(numbers.ids[number], made, strict=True):
                node.id = identity
                _depend(node, *deps)
                self._set_times(node, spans[number])
                parts += [b"".join(fixed), self._of_ranks(step.placeholder, node)]
                fixed = []
        return _Encoded((*parts, b"".join(fixed)), numbers.count)

    def _spans(self, likeness: _Likeness, rank: int) -> list[tuple[int, int] | None]:
        """By step, from when to when in ps, as far as nodes say so."""
        if self._times is TraceTimes.NONE:
            return [None] * len(likeness.steps)
        if self._times is TraceTimes.RUN:
            column = rank % self._executable.representatives
            events = self._performed.events_of(column, likeness.steps)
            start_ps, end_ps = self._trace.start_ps, self._trace.end_ps
            return [
                self._ran.get(event, (int(start_ps[event]), int(end_ps[event]))) for event in events
            ]
        spans: list[tuple[int, int] | None] = []
        passed: dict[int, int] = {}  # by queue: one after the other, so that rounding adds up
        for step in likeness.steps:
            if step.placeholder != NONE:
                spans.append(None)
                continue
            start = passed.get(step.queue, 0)
            passed[step.queue] = start - (-self._instructions.ps(step) * 100 // likeness.percent)
            spans.append((start, passed[step.queue]))
        return spans

    def _set_times(self, node: Any, span: tuple[int, int] | None) -> None:
        if span is None:
            return
        start_ps, end_ps = span
        if self._times is TraceTimes.RUN:
            node.start_time_micros = start_ps // _PS_PER_US
        node.duration_micros = end_ps // _PS_PER_US - start_ps // _PS_PER_US
        node.attr.append(attribute(DURATION_PS, "int64", end_ps - start_ps))

    def _collective(self, step: PerformedStep, role: _Role, occurrence: int) -> list[Any]:
        """The nodes of a collective on a rank, without groups and peers: one, or up to three."""
        placeholder = self._executable.program.placeholders[step.placeholder]
        tensors = self._executable.program.tensors
        size = sum(tensors[tensor].size_bytes for tensor in placeholder.operands)
        name = placeholder.name or f"p{step.placeholder}"
        if placeholder.op is not CollectiveOp.PERMUTE:
            if role.members < 2:
                return [_copy(name, size)] if role.members else []
            node = _node(name, NodeType.COMM_COLL)
            node.attr.extend(_of_collective(placeholder, size))
            return [node]
        nodes = []
        if role.sends:
            nodes.append(_node(name, NodeType.COMM_SEND))
        if role.receives:
            nodes.append(_node(name, NodeType.COMM_RECV))
        if role.copies:
            nodes.append(_copy(name, size))
        for node in nodes:
            node.attr.extend(_of_transfer(placeholder, size))
            node.attr.append(attribute("comm_tag", "int32", step.placeholder))
            label = f"p{step.placeholder}.{occurrence}"
            node.attr.append(attribute(COLLECTIVE, "string", label))
        return nodes

    def _of_ranks(self, number: int, node: Any) -> Callable[[int], bytes]:
        """The bytes of a node of a collective, by rank; those of one group or peer once."""
        members, known = self._members[number], dict[object, bytes]()

        def of(rank: int) -> bytes:
            key: object = None
            if node.type == NodeType.COMM_COLL:
                key = self.names.get(members.group_of[rank])
            elif node.type != NodeType.COMP:
                is_send = node.type == NodeType.COMM_SEND
                key = (
                    (rank, members.target_of[rank]) if is_send else (members.source_of[rank], rank)
                )
            if key not in known:
                whole = message_class("Node")()
                whole.CopyFrom(node)
                if isinstance(key, str):
                    whole.attr.append(attribute("pg_name", "string", key))
                elif isinstance(key, tuple):
                    whole.attr.append(attribute("comm_src", "int32", key[0]))
                    whole.attr.append(attribute("comm_dst", "int32", key[1]))
                known[key] = with_length(whole.SerializeToString())
            return known[key]

        return of


@attrs.frozen(eq=False)
class _Encoded:
    """The nodes of alike ranks: bytes, and functions from ranks to bytes."""

    parts: Sequence[bytes | Callable[[int], bytes]]
    nodes: int

    def of(self, rank: int) -> bytes:
        """The bytes of all nodes of a rank."""
        return b"".join(part if isinstance(part, bytes) else part(rank) for part in self.parts)


class _Numbers:
    """Ids of nodes, from 1, in the order of steps; and what each depends on."""

    def __init__(self, likeness: _Likeness, instructions: "_Instructions") -> None:
        self._steps = likeness.steps
        self.ids: list[tuple[int, ...]] = []
        # by step, the nodes that stand for it: where it has none, those that it waited for
        self._stands_for: list[tuple[int, ...]] = []
        self.count = 0
        for number, step in enumerate(likeness.steps):
            nodes = 0 if instructions.is_nothing(step) else 1
            if step.placeholder != NONE:
                role = likeness.roles[step.placeholder]
                nodes = role.sends + role.receives + role.copies or int(role.members > 0)
            self.ids.append(tuple(range(self.count + 1, self.count + nodes + 1)))
            self.count += nodes
            before = (node for deps in self.deps(number) for node in deps)
            self._stands_for.append(self.ids[number] or tuple(dict.fromkeys(before)))

    def deps(self, number: int) -> tuple[list[int], list[int]]:
        """The nodes whose results a step reads, and others that it waited for, ascending."""
        step = self._steps[number]
        data = {node for other in step.data for node in self._stands_for[other]}
        control = {node for other in step.control for node in self._stands_for[other]}
        return sorted(data), sorted(control - data)


@attrs.frozen(eq=False)
class _Members:
    """Who takes part in a collective with whom."""

    group_of: Mapping[int, tuple[int, ...]]
    target_of: Mapping[int, int]
    source_of: Mapping[int, int]


def _members(placeholder: Placeholder) -> _Members:
    return _Members(
        {rank: group for group in placeholder.groups for rank in group},
        dict(placeholder.pairs),
        {target: source for source, target in placeholder.pairs},
    )


class _Instructions:
    """Nodes of instructions, without ids, dependencies and times."""

    def __init__(self, executable: Executable) -> None:
        model = TimingModel.from_topology(executable.topology)
        self._program = executable.program
        self._queues: dict[int, tuple[EngineQueue, list[Instr]]] = {}
        self._works: dict[int, list[Work]] = {}  # by row
        self._durations: dict[int, list[int]] = {}
        for number, queue in enumerate(executable.queues):
            if isinstance(queue, EngineQueue):
                self._queues[number] = queue, list(queue.table)
                works, index = works_of(executable.program, queue.engine, queue.table)
                self._works[number] = [works[at] for at in index.tolist()]
                costs = engine_costs(executable.program, model, queue)
                self._durations[number] = costs.ps.tolist()

    def ps(self, step: PerformedStep) -> int:
        """What an instruction takes if nobody else moves bytes."""
        return self._durations[step.queue][step.row]

    def is_nothing(self, step: PerformedStep) -> bool:
        """Whether an instruction is there to be waited for only, as traces that were read have."""
        _, table = self._queues[step.queue]
        instr = table[step.row]
        amounts = self._program.attributes[instr.attribute] if instr.opcode == WORK else {"": 1}
        return not any(amount for amount in amounts.values() if isinstance(amount, int))

    def node(self, step: PerformedStep) -> Any:
        """A node of an instruction: operations, bytes to and from HBM, its engine."""
        queue, table = self._queues[step.queue]
        instr = table[step.row]
        name = instr.opcode
        if instr.origin != NONE:
            name = self._program.origins[instr.origin].node or name
        node = _node(name, NodeType.COMP)
        work = self._works[step.queue][step.row]
        operations = max(1, instr.flops + instr.elements)  # ASTRA-sim's roofline divides by it
        node.attr.append(attribute("num_ops", "int64", operations))
        if work.starts:  # registers of a sequencer are not moved by DMA
            node.attr.append(attribute("tensor_size", "uint64", work.traffic))
        node.attr.append(attribute(ENGINE, "string", queue.engine.value))
        if elements := operations - instr.flops:
            node.attr.append(attribute(ELEMENTS, "int64", elements))
        if work.starts and work.bytes_written:
            node.attr.append(attribute(WRITTEN, "int64", work.bytes_written))
        dtype: object = None  # of what is multiplied
        if instr.opcode == WORK:
            dtype = self._program.attributes[instr.attribute].get("dtype")
        elif (product := next(products_of(self._program, instr), None)) is not None:
            dtype = product.dtype.value
        if isinstance(dtype, str) and instr.flops:
            node.attr.append(attribute(DTYPE, "string", dtype))
        return node


def _node(name: str, kind: NodeType) -> Any:
    node = message_class("Node")(name=name, type=int(kind))
    node.attr.append(attribute("is_cpu_op", "bool", False))
    return node


def _depend(node: Any, data: Sequence[int], control: Sequence[int]) -> None:
    node.data_deps.extend(data)
    node.ctrl_deps.extend(control)


def _copy(name: str, size: int) -> Any:
    """What a collective of a rank with itself comes to."""
    node = _node(name, NodeType.COMP)
    node.attr.append(attribute("num_ops", "int64", 1))
    node.attr.append(attribute(ELEMENTS, "int64", 1))
    node.attr.append(attribute("tensor_size", "uint64", max(1, 2 * size)))
    node.attr.append(attribute(WRITTEN, "int64", size))
    node.attr.append(attribute(ENGINE, "string", Engine.SYNC.value))
    return node


def _of_transfer(placeholder: Placeholder, size: int) -> list[Any]:
    return [
        attribute("comm_size", "int64", size),
        attribute("comm_priority", "int32", 0),
        attribute("stream", "int64", placeholder.stream),
        attribute(DTYPE, "string", placeholder.dtype.value),
    ]


def _of_collective(placeholder: Placeholder, size: int) -> list[Any]:
    """Attributes that the nodes of all groups have; a size is that of a rank's operands."""
    found = [
        attribute("comm_type", "int64", int(COMM_TYPES[placeholder.op])),
        *_of_transfer(placeholder, size),
    ]
    if placeholder.reduction is not None:
        found.append(attribute(REDUCTION, "string", placeholder.reduction.value))
    if placeholder.root is not None:
        found.append(attribute(ROOT, "int32", placeholder.root))
    return found


def _spans_of_collectives(trace: Trace) -> dict[int, tuple[int, int]]:
    """By the event of its trigger, from when to when in ps a collective ran on its rank."""
    from ncc_runtime.report.timeline.arrows import triggers

    ends = trace.start_ps[trace.runs.first].tolist(), trace.end_ps[trace.runs.last].tolist()
    return dict(zip(triggers(trace).tolist(), zip(*ends, strict=True), strict=True))
