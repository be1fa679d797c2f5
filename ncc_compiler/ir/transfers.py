"""Matches sends with recvs: the module in which every recv has its data as an operand.

The two sides of a transfer have the same envelope (MPI's word): the same pairs and type of data. Of
several sides with one envelope the first send belongs to the first recv, the second to the second,
as NCCL matches the messages between two ranks: in order, whatever their channels. Sides of one
channel_id are matched among themselves where that leaves no side unmatched.

A software pipeline starts a side before a loop and matches it inside: each iteration completes what
the one before has started, and the last one is completed after the loop. Such a loop is rewritten
to what `collective-permute` can say:

- a send before its recv: the data waits in the loop-carried state, in an element ("register") that
  each iteration reads and writes;
- a recv before its send: its data is not known where it starts, so it starts where it is done.

The walk visits callers before callees. It makes a specialised copy (`_Specialization`) of a loop's
computations for each list of transfers that are in flight when they begin.
"""

import itertools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_compiler.ir.collectives import PAIRS_OF_TRANSFERS, TRANSFERS, pairs_attribute
from ncc_compiler.ir.graph import (
    Attribute,
    Callee,
    Computation,
    Literal,
    Module,
    Node,
    NodeId,
    Raw,
)
from ncc_compiler.ir.op_tables.control import (
    INDEPENDENT,
    OF_A_RECV,
    OF_A_SEND,
    PARTNERED,
    SENT_BEFORE,
)
from ncc_compiler.ir.ops import BARRIERS
from ncc_compiler.ir.order import branch_names, use_order
from ncc_compiler.ir.rules import Complaint, rule_of
from ncc_compiler.ir.type_rules.control import data_of, is_started
from ncc_compiler.ir.types import ArrayType, TupleType, Type

Path: TypeAlias = tuple[int, ...]
"""Indices into nested tuples, the outermost first."""

Unmatched: TypeAlias = tuple[Computation, Node, Complaint]

_DONE = frozenset({"send-done", "recv-done"})
_FORWARDING = BARRIERS | {"copy", "async-update"}
"""Ops whose value is that of their operand."""

_PIPELINE = re.compile(r'\b_xla_send_recv_pipeline\s*=\s*"?(\d+)')


@attrs.frozen
class Envelope:
    """What both sides of a transfer have in common (MPI's word)."""

    has_channel: bool
    pairs: tuple[tuple[int, int], ...]
    data: Type
    channel: Attribute | None  # only if matching is by channel and it has sends and recvs
    pipeline: str  # XLA gives each pipeline a communicator, so order holds within one only


@attrs.frozen
class _PendingSend:
    """A send that is not matched yet; `after` is the node that started it or carries its data."""

    data: NodeId
    after: NodeId
    send: Node | None = attrs.field(default=None, eq=False)  # None: of another computation


@attrs.frozen
class _PendingRecv:
    """A recv that is not matched yet: the recv itself, or the element of a node that carries it."""

    after: NodeId
    path: Path
    recv: Node | None = attrs.field(default=None, eq=False)  # None: of another computation


_Side: TypeAlias = _PendingSend | _PendingRecv


@attrs.frozen
class _Specialization:
    """The transfers in flight when a loop's computation begins; each gets a copy of it."""

    # a recv with its path in the loop-carried state; a send with None
    entering: tuple[tuple[Envelope, Path | None], ...] = ()
    registers: tuple[Type, ...] = ()  # elements appended to the state for data of sends


def has_transfers(module: Module) -> bool:
    """Whether the module has a send, a recv or a done of either."""
    ops = TRANSFERS | _DONE
    return any(node.op in ops for body in module.computations.values() for node in body.nodes)


def match_transfers(module: Module) -> Module:
    """The module where every recv has the sent data as a second operand."""
    if not has_transfers(module):
        return module
    matched, unmatched = _matched(module)
    assert not unmatched, unmatched[0]
    return matched


def unmatched_transfers(module: Module) -> Iterator[Unmatched]:
    """Complaints about sends, recvs and dones, in a module whose nodes are valid otherwise."""
    if has_transfers(module):
        yield from _matched(module)[1]


def _matched(module: Module) -> tuple[Module, list[Unmatched]]:
    """Matched by channel and order; by order alone if only that leaves no side unmatched."""
    matched, unmatched = _Matching(module, by_channel=True).run()
    if unmatched:
        by_order, others = _Matching(module, by_channel=False).run()
        if not others:
            return by_order, others
    return matched, unmatched


def _side_envelopes(module: Module, *, by_channel: bool) -> dict[tuple[str, int], Envelope]:
    """The envelope of every send and recv, by computation and position."""
    pipelines: dict[tuple[str, int], str] = {}
    envelopes: dict[tuple[str, int], Envelope] = {}
    ops: dict[Envelope, set[str]] = defaultdict(set)
    for name, computation in module.computations.items():
        for position, node in enumerate(computation.nodes):
            if node.op not in TRANSFERS:
                continue
            pairs = pairs_attribute(node)
            assert pairs is not None, node.name
            channel = node.attributes.get("channel_id")
            written = node.attributes.get("frontend_attributes")
            match = _PIPELINE.search(written.text) if isinstance(written, Raw) else None
            pipelines[name, position] = match[1] if match else ""
            sorted_pairs = tuple(sorted(pairs.pairs))
            envelope = Envelope(channel is not None, sorted_pairs, data_of(node.type), channel, "")
            envelopes[name, position] = envelope
            ops[envelope].add(node.op)
    # a channel that has only sends or only recvs cannot match anything: drop it
    return {
        key: envelope
        if by_channel and ops[envelope] == TRANSFERS
        else attrs.evolve(envelope, channel=None, pipeline=pipelines[key])
        for key, envelope in envelopes.items()
    }


class _Matching:
    """Matches over all computations, callers first, and in each in program order."""

    def __init__(self, module: Module, *, by_channel: bool) -> None:
        self._module = module
        self.complaints: list[Unmatched] = []
        self._reported: set[tuple[str, str, str]] = set()
        self.envelopes = _side_envelopes(module, by_channel=by_channel)
        self.recvs: dict[Envelope, Node] = {}  # an example of each
        # sends and recvs by op and channel, each with its computation
        self._by_channel: dict[tuple[str, Attribute | None], list[tuple[str, Node]]]
        self._by_channel = defaultdict(list)
        for (name, position), envelope in self.envelopes.items():
            node = module.computations[name].nodes[position]
            if node.op == "recv":
                self.recvs[envelope] = node
            self._by_channel[node.op, node.attributes.get("channel_id")].append((name, node))
        self.postponed: set[tuple[str, int]] = set()  # recvs that start where they are done
        self.ordinary_dones: list[tuple[str, int]] = []  # recv-dones whose recv stays where it is
        self.envelopes_inside: dict[str, frozenset[Envelope]] = {}  # in a computation or its loops
        self._specializations: dict[str, dict[_Specialization, str]] = {
            name: {} for name in module.computations
        }
        self._taken = set(module.computations)

    def run(self) -> tuple[Module, list[Unmatched]]:
        computations = self._module.computations
        direct: dict[str, set[Envelope]] = defaultdict(set)
        for (name, _), envelope in self.envelopes.items():
            direct[name].add(envelope)
        for name, computation in computations.items():  # callees first
            bodies = [node.callee("body") for node in computation.nodes if node.op == "while"]
            inner = [self.envelopes_inside.get(body, frozenset()) for body in bodies]
            self.envelopes_inside[name] = frozenset(direct[name]).union(*inner)
        for name in computations.keys() - _called_by_loops_only(computations.values()):
            self._specializations[name][_Specialization()] = name
        results: list[Computation] = []
        for name in reversed(list(computations)):
            for special, new_name in self._specializations[name].items():
                scope = _ComputationMatching(self, computations[name], special)
                results.append(attrs.evolve(scope.run(), name=new_name))
        self._check_dones()
        matched = {computation.name: computation for computation in reversed(results)}
        return attrs.evolve(self._module, computations=matched), self.complaints

    def specialize(self, name: str, special: _Specialization) -> str:
        """The name of the specialised copy of a computation."""
        known = self._specializations[name]
        if special not in known:
            fresh = name
            if special.entering or special.registers:
                numbered = (f"{name}.{number}" for number in itertools.count(1))
                fresh = next(candidate for candidate in numbered if candidate not in self._taken)
                self._taken.add(fresh)
            known[special] = fresh
        return known[special]

    def complain(self, computation: Computation, node: Node, complaint: Complaint) -> None:
        key = (computation.name, node.name, complaint.rule)  # once for all specialisations
        if key not in self._reported:
            self._reported.add(key)
            self.complaints.append((computation, node, complaint))

    def unmatched(self, computation: Computation, node: Node) -> None:
        """Complains of a send without recv or the reverse; a hint says how close ones differ."""
        other = "recv" if node.op == "send" else "send"
        fact = f"no {other} of %{computation.name} goes with %{node.name}"
        hint = (
            f"both sides take the same {PAIRS_OF_TRANSFERS} and type of data, and both a "
            "channel_id or neither; they stand in one computation, or before, in and behind a loop"
        )
        channel = node.attributes.get("channel_id")
        for name, candidate in itertools.islice(self._by_channel[other, channel], 8):
            if channel is None and name != computation.name:
                continue
            pairs, others = pairs_attribute(node), pairs_attribute(candidate)
            if pairs and others and sorted(pairs.pairs) != sorted(others.pairs):
                hint = f"%{candidate.name} has other {PAIRS_OF_TRANSFERS}; both sides take the same"
                break
            data, other_data = data_of(node.type), data_of(candidate.type)
            if other_data != data:
                hint = f"%{candidate.name} has data of type {other_data}, not {data}"
                break
        rule = rule_of(node.op, PARTNERED.format(other))
        self.complain(computation, node, Complaint(rule, fact, help=hint))

    def _check_dones(self) -> None:
        """Dones wait for a start of their kind and channel, and no postponed recv escapes."""
        callers = _callers(self._module)
        for computation in self._module.computations.values():
            for node in computation.nodes:
                if node.op in _DONE:
                    self._check_done(computation, node, callers)
        # A postponed recv holds zeros; only a recv-done that starts it anew may read it.
        for name, position in self.ordinary_dones if self.postponed else ():
            computation = self._module.computations[name]
            node = computation.nodes[position]
            leaves = _origins(self._module, callers, name, node.operands[0])
            for where, leaf in sorted(leaves & self.postponed):
                recv = self._module.computations[where].nodes[leaf]
                fact = f"%{node.name} waits for %{recv.name}, whose data is not sent before it"
                hint = "the send of each round stands in the computation of the recv-done"
                rule = rule_of(node.op, SENT_BEFORE)
                self.complain(computation, node, Complaint(rule, fact, help=hint))

    def _check_done(self, computation: Computation, node: Node, callers: "_Callers") -> None:
        start = node.op.removesuffix("-done")
        rule = rule_of(node.op, OF_A_RECV if start == "recv" else OF_A_SEND)
        for where, leaf in sorted(
            _origins(self._module, callers, computation.name, node.operands[0])
        ):
            origin = self._module.computations[where].nodes[leaf]
            if origin.op != start:
                fact = f"%{node.name} ends %{origin.name}, which no {start} has started"
                if origin.op in TRANSFERS:
                    fact = f"%{node.name} ends %{origin.name}, which is a {origin.op}"
                hint = f"give it the value of a {start}"
                self.complain(computation, node, Complaint(rule, fact, 0, hint))
        direct = computation.nodes[node.operands[0]]
        done_channel = node.attributes.get("channel_id")
        channel = direct.attributes.get("channel_id")
        if done_channel is not None and direct.op == start and channel != done_channel:
            started = "no channel_id" if channel is None else f"channel_id={channel}"
            fact = f"%{direct.name} has {started}, its {node.op} channel_id={done_channel}"
            self.complain(computation, node, Complaint(rule, fact, "channel_id"))


class _ComputationMatching:
    """Builds a matched computation: old nodes keep their positions, new ones are appended.

    `_ordered` sorts them in the end.
    """

    def __init__(self, matching: _Matching, old: Computation, special: _Specialization) -> None:
        self._matching = matching
        self._old = old
        self._special = special
        self._nodes = list(old.nodes)
        self._taken = {node.name for node in old.nodes}
        self._suffixes: Counter[str] = Counter()
        self._root = old.root
        self._pending: dict[Envelope, deque[_Side]] = defaultdict(deque)
        # data for recvs that were started in another computation
        self._outer_recvs: dict[_PendingRecv, tuple[Envelope, NodeId]] = {}

    def run(self) -> Computation:
        old = self._old
        self._begin()
        for position, node in enumerate(old.nodes):
            envelope = self._matching.envelopes.get((old.name, position))
            if envelope is not None:
                if node.op == "send":
                    self._match_or_wait(
                        envelope, _PendingSend(node.operands[0], NodeId(position), node)
                    )
                else:
                    self._match_or_wait(envelope, _PendingRecv(NodeId(position), (), node))
            elif node.op == "while":
                self._loop(NodeId(position), node)
        self._end()
        for position, node in enumerate(old.nodes):
            if node.op == "recv-done":
                self._done(NodeId(position), node)
        return self._ordered()

    def _add(
        self,
        stem: str,
        op: str,
        kind: Type,
        operands: Iterable[NodeId],
        source: Node,
        **attributes: Attribute,
    ) -> NodeId:
        name = stem
        while name in self._taken:
            self._suffixes[stem] += 1
            name = f"{stem}.{self._suffixes[stem]}"
        self._taken.add(name)
        self._nodes.append(Node(name, op, kind, tuple(operands), attributes, source.span))
        return NodeId(len(self._nodes) - 1)

    def _element(self, tuple_: NodeId, index: int, source: Node) -> NodeId:
        kind = self._nodes[tuple_].type
        assert isinstance(kind, TupleType), source.name
        stem = f"{source.name}.element"
        return self._add(
            stem, "get-tuple-element", kind.elements[index], (tuple_,), source, index=index
        )

    def _widened(self, position: NodeId, registers: Sequence[Type]) -> NodeId:
        """Gives a parameter or loop further elements; returns the new node.

        The old position becomes a tuple of the first elements, so that its users stay as they are.
        """
        node = self._nodes[position]
        assert isinstance(node.type, TupleType), node.name
        wide = TupleType((*node.type.elements, *registers))
        widened = self._add(
            f"{node.name}.wide", node.op, wide, node.operands, node, **node.attributes
        )
        parts = tuple(
            self._element(widened, index, node) for index in range(len(node.type.elements))
        )
        self._nodes[position] = attrs.evolve(node, op="tuple", operands=parts, attributes={})
        return widened

    def _with_registers(self, tuple_: NodeId, data: Sequence[NodeId], source: Node) -> NodeId:
        """A tuple with further elements appended."""
        kind = self._nodes[tuple_].type
        assert isinstance(kind, TupleType), source.name
        parts = [self._element(tuple_, index, source) for index in range(len(kind.elements))]
        wide = TupleType((*kind.elements, *(self._nodes[value].type for value in data)))
        return self._add(f"{source.name}.wide", "tuple", wide, (*parts, *data), source)

    def _begin(self) -> None:
        """Make the transfers pending that are in flight when the computation begins."""
        special = self._special
        if not (special.entering or special.registers):
            return
        (parameter,) = self._old.parameters()
        source, state = self._old.nodes[parameter], parameter
        register = 0
        if special.registers:
            assert isinstance(source.type, TupleType), source.name
            register = len(source.type.elements)
            state = self._widened(parameter, special.registers)
        for envelope, path in special.entering:
            if path is None:
                data = self._element(state, register, source)
                register += 1
                self._pending[envelope].append(_PendingSend(data, parameter))
            else:
                self._pending[envelope].append(_PendingRecv(parameter, path))

    def _match_or_wait(self, envelope: Envelope, side: _Side) -> None:
        """Match it with the oldest pending side of the other kind, or make it pending."""
        waiting = self._pending[envelope]
        if not waiting or type(waiting[0]) is type(side):
            waiting.append(side)
            return
        other = waiting.popleft()
        sent, awaited = (side, other) if isinstance(side, _PendingSend) else (other, side)
        assert isinstance(sent, _PendingSend)
        assert isinstance(awaited, _PendingRecv)
        recv = self._nodes[awaited.after]
        if recv.op == "recv":
            operands = (recv.operands[0], sent.data)
            self._nodes[awaited.after] = attrs.evolve(recv, operands=operands)
        else:  # a node that carries a recv of another computation: `_done` starts it anew
            self._outer_recvs[awaited] = envelope, sent.data

    def _loop(self, position: NodeId, node: Node) -> None:
        """Takes pending sides through a loop that has sides with the same envelopes.

        Each iteration completes one of them and starts the next, so one comes out for each that
        goes in. Two loops over the pending sides: the first collects what enters, the second
        replaces it by what leaves.
        """
        matching, state = self._matching, node.type
        body, condition = node.callee("body"), node.callee("condition")
        ancestors: set[int] | None = None
        entering: list[tuple[Envelope, Path | None]] = []
        registers: list[NodeId] = []
        places: list[tuple[Envelope, int]] = []
        for envelope in sorted(matching.envelopes_inside[body], key=str):
            for place, side in enumerate(self._pending[envelope]):
                if isinstance(side, _PendingRecv):
                    paths = _started_in(state, envelope)
                    path = next(
                        (p for p in paths if self._resolved(node.operands[0], p) == side), None
                    )
                    if path is None:  # the loop does not carry it
                        continue
                    entering.append((envelope, path))
                    self._postpone(side)
                else:
                    if ancestors is None:
                        ancestors = _ancestors(self._old, position)
                    # in flight when the loop begins only if the loop depends on it
                    if side.after not in ancestors or not isinstance(state, TupleType):
                        continue
                    entering.append((envelope, None))
                    registers.append(side.data)
                places.append((envelope, place))
        kinds = tuple(self._nodes[register].type for register in registers)
        callees: dict[str, Attribute] = {
            "body": Callee(matching.specialize(body, _Specialization(tuple(entering), kinds))),
            "condition": Callee(matching.specialize(condition, _Specialization((), kinds))),
        }
        self._nodes[position] = attrs.evolve(node, attributes={**node.attributes, **callees})
        loop, register_index = position, 0
        if registers:
            assert isinstance(state, TupleType), node.name
            register_index = len(state.elements)
            start = self._with_registers(node.operands[0], registers, node)
            loop = self._widened(position, kinds)
            self._nodes[loop] = attrs.evolve(self._nodes[loop], operands=(start,))
        for (envelope, place), (_, path) in zip(places, entering, strict=True):
            waiting = self._pending[envelope]
            side = waiting[place]
            if isinstance(side, _PendingSend):
                data = self._element(loop, register_index, node)
                waiting[place] = _PendingSend(data, position, side.send)
                register_index += 1
            else:
                assert path is not None, node.name
                waiting[place] = _PendingRecv(position, path, side.recv)

    def _resolved(self, value: NodeId, path: Path) -> _PendingRecv:
        """The node that defines an element of a value, looking through tuples and copies."""
        while True:
            node = self._old.nodes[value]
            if node.op == "get-tuple-element":
                path = (node.integer("index"), *path)
            elif node.op == "tuple" and path:
                value, path = node.operands[path[0]], path[1:]
                continue
            elif node.op not in _FORWARDING:
                return _PendingRecv(value, path)
            value = node.operands[0]

    def _postpone(self, side: _PendingRecv) -> None:
        """Replaces a recv of this computation, whose data is sent in another, by zeros."""
        recv = self._nodes[side.after]
        if recv.op != "recv":
            return
        assert isinstance(recv.type, TupleType), recv.name
        self._matching.postponed.add((self._old.name, side.after))
        data, context, _ = recv.type.elements
        parts = (self._zeros(data, recv), self._zeros(context, recv), recv.operands[0])
        self._nodes[side.after] = attrs.evolve(recv, op="tuple", operands=parts, attributes={})

    def _zeros(self, kind: Type, source: Node) -> NodeId:
        stem = f"{source.name}.nothing"
        if isinstance(kind, TupleType):
            parts = [self._zeros(part, source) for part in kind.elements]
            return self._add(stem, "tuple", kind, parts, source)
        assert isinstance(kind, ArrayType), source.name
        zero = np.zeros((), kind.dtype.numpy)
        zero.setflags(write=False)
        scalar = attrs.evolve(kind, shape=())
        part = self._add(stem, "constant", scalar, (), source, literal=Literal(zero))
        if not kind.shape:
            return part
        return self._add(stem, "broadcast", kind, (part,), source, dimensions=())

    def _end(self) -> None:
        """Checks what is in flight at the end: in a loop, the same as at the beginning."""
        special, matching = self._special, self._matching
        outgoing: list[NodeId] = []  # data for the registers
        left = {envelope: deque(sides) for envelope, sides in self._pending.items()}
        for envelope, path in special.entering:
            side = left[envelope].popleft() if left.get(envelope) else None
            if path is None and isinstance(side, _PendingSend):
                outgoing.append(side.data)
            elif (
                path is not None
                and isinstance(side, _PendingRecv)
                and self._resolved(self._root, path) == side
            ):
                self._postpone(side)
            else:
                self._complain_of_iteration(envelope, path)
        for sides in left.values():
            for side in sides:
                node = side.send if isinstance(side, _PendingSend) else side.recv
                if node is not None:
                    matching.unmatched(self._old, node)
        if outgoing:
            source = self._old.nodes[self._old.root]
            self._root = self._with_registers(self._old.root, outgoing, source)

    def _complain_of_iteration(self, envelope: Envelope, path: Path | None) -> None:
        name = self._old.name
        node = next(
            node
            for position, node in enumerate(self._old.nodes)
            if self._matching.envelopes.get((name, position)) == envelope or node.op == "while"
        )
        started, other = ("recv", "send") if path is not None else ("send", "recv")
        fact = (
            f"a round of %{name} begins with a {started} that waits for its {other}, and does not "
            "end with one in the same place of the state"
        )
        rule = rule_of("send", PARTNERED.format("recv"))
        if node.op == "recv":
            rule = rule_of("recv", PARTNERED.format("send"))
        hint = "each round starts what the next one ends"
        self._matching.complain(self._old, node, Complaint(rule, fact, help=hint))

    def _done(self, position: NodeId, node: Node) -> None:
        """Starts the recv of a recv-done here if its recv was postponed."""
        started = self._resolved(node.operands[0], ())
        if started not in self._outer_recvs:
            self._matching.ordinary_dones.append((self._old.name, position))
            return
        envelope, data = self._outer_recvs[started]
        recv = self._matching.recvs[envelope]
        kind = self._old.nodes[node.operands[0]].type
        token = self._element(node.operands[0], 2, node)
        start = self._add(f"{node.name}.recv", "recv", kind, (token, data), node, **recv.attributes)
        self._nodes[position] = attrs.evolve(node, operands=(start,))

    def _ordered(self) -> Computation:
        """The nodes in an order that respects uses, in the old order where possible."""
        nodes = self._nodes
        order, cycles = use_order([node.operands for node in nodes])
        for cycle, _, _ in cycles:
            # the only new uses are those of data by recvs, so every cycle has one
            recv = next(
                nodes[user]
                for user, used in itertools.pairwise(cycle)
                if nodes[user].op == "recv" and nodes[user].operands[1:] == (used,)
            )
            fact = f"what is sent to %{recv.name} is computed from what it receives"
            hint = "write one transfer for each step of the way"
            complaint = Complaint(rule_of("recv", INDEPENDENT), fact, help=hint)
            self._matching.complain(self._old, recv, complaint)
        if cycles:
            return self._old
        ids = {position: NodeId(k) for k, position in enumerate(order)}
        moved = [
            attrs.evolve(nodes[k], operands=tuple(ids[operand] for operand in nodes[k].operands))
            for k in order
        ]
        return attrs.evolve(self._old, nodes=tuple(moved), root=ids[self._root])


def _called_by_loops_only(computations: Iterable[Computation]) -> set[str]:
    """The computations that are called by loops and by nothing else."""
    loops: set[str] = set()
    others: set[str] = set()
    for computation in computations:
        for node in computation.nodes:
            (loops if node.op == "while" else others).update(name for _, name in node.callees())
    return loops - others


def _ancestors(computation: Computation, position: NodeId) -> set[int]:
    """The nodes that a node depends on, directly or through others."""
    ancestors: set[int] = set()
    pending = [*computation.nodes[position].operands]
    while pending:
        node = pending.pop()
        if node not in ancestors:
            ancestors.add(node)
            pending += computation.nodes[node].operands
    return ancestors


def _started_in(kind: Type, envelope: Envelope) -> Iterator[Path]:
    """The paths in a type where the result of a send or recv of the envelope may be."""
    if is_started(kind) and data_of(kind) == envelope.data:
        yield ()
    elif isinstance(kind, TupleType):
        for index, element in enumerate(kind.elements):
            yield from ((index, *path) for path in _started_in(element, envelope))


_Callers: TypeAlias = Mapping[str, Sequence[tuple[str, NodeId]]]
"""By computation, the nodes that call it."""


def _callers(module: Module) -> _Callers:
    callers: dict[str, list[tuple[str, NodeId]]] = defaultdict(list)
    for name, computation in module.computations.items():
        for position, node in enumerate(computation.nodes):
            for _, callee in node.callees():
                callers[callee].append((name, NodeId(position)))
    return callers


def _origins(
    module: Module, callers: _Callers, name: str, value: NodeId
) -> frozenset[tuple[str, int]]:
    """The nodes that may define a value, through tuples, loops, branches and calls."""
    start = (name, value, Path(()))
    seen = {start}
    pending: list[tuple[str, NodeId, Path]] = [start]
    definitions: set[tuple[str, int]] = set()
    while pending:
        where, position, path = pending.pop()
        sources = _sources(module, callers, where, position, path)
        if sources is None:
            definitions.add((where, position))
            continue
        fresh = set(sources) - seen
        seen |= fresh
        pending += fresh
    return frozenset(definitions)


def _sources(
    module: Module, callers: _Callers, name: str, position: NodeId, path: Path
) -> list[tuple[str, NodeId, Path]] | None:
    """The values that an element of a node may equal; None if the node defines it."""
    node = module.computations[name].nodes[position]

    def root(callee: str, inside: Path) -> tuple[str, NodeId, Path]:
        return callee, module.computations[callee].root, inside

    match node.op:
        case "get-tuple-element":
            return [(name, node.operands[0], (node.integer("index"), *path))]
        case "tuple" if path:
            return [(name, node.operands[path[0]], path[1:])]
        case op if op in _FORWARDING:
            return [(name, node.operands[0], path)]
        case "while":
            return [(name, node.operands[0], path), root(node.callee("body"), path)]
        case "call":
            return [root(node.callee("to_apply"), path)]
        case "fusion":
            return [root(node.callee("calls"), path)]
        case "conditional":
            return [root(branch, path) for branch in branch_names(node)]
        case "async-done":
            return [(name, node.operands[0], (1, *path))]
        case "async-start" if path[:1] == (1,):
            return [root(node.callee("calls"), path[1:])]
        case "async-start" if len(path) > 1 and path[0] == 0:
            return [(name, node.operands[path[1]], path[2:])]
        case "parameter" if name != module.entry:
            number = node.integer("parameter_number")
            return [
                source
                for where, user in callers.get(name, ())
                for source in _arguments(module, where, user, name, number, path)
            ]
    return None


def _arguments(
    module: Module, where: str, user: NodeId, callee: str, number: int, path: Path
) -> Iterator[tuple[str, NodeId, Path]]:
    """The values that a node passes for parameter `number` of a computation that it calls."""
    node = module.computations[where].nodes[user]
    if node.op == "conditional":
        for branch, name in enumerate(branch_names(node)):
            if name == callee:
                yield where, node.operands[branch + 1], path
    elif node.op == "while":
        body = node.callee("body")
        yield where, node.operands[0], path
        yield body, module.computations[body].root, path
    elif number < len(node.operands):
        yield where, node.operands[number], path
