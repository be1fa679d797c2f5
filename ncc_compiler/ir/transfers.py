"""Matches sends with recvs: the module in which every recv has its data as an operand.

The two sides of a transfer have the same envelope (MPI's word): the same pairs and type of data. Of
several sides with one envelope the first send belongs to the first recv, the second to the second,
as NCCL matches the messages between two ranks: in order, whatever their channels. Sides of one
channel_id are matched among themselves where that leaves no side unmatched.

A software pipeline starts a side before a loop and matches it inside: each iteration completes what
the one before has started, and the last one is completed behind the loop. Such a loop is rewritten
to what `collective-permute` can say:

- a send before its recv: the data waits in the loop-carried state, in an element ("register") that
  each iteration reads and writes;
- a recv before its send: its data is not known where it starts, so it starts where it is done.

The walk visits callers before callees. Of a loop's computation it makes a specialised copy
(`_Specialization`) for each list of transfers that are in flight when it begins.
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
from ncc_compiler.ir.order import branch_names, use_order
from ncc_compiler.ir.rules import Complaint, rule_of
from ncc_compiler.ir.type_rules.control import data_of, is_started
from ncc_compiler.ir.types import ArrayType, TupleType, Type

Path: TypeAlias = tuple[int, ...]
"""Indices into nested tuples, the outermost first."""

Unmatched: TypeAlias = tuple[Computation, Node, Complaint]

_DONE = frozenset({"send-done", "recv-done"})
_THROUGH = frozenset({"copy", "opt-barrier", "optimization-barrier", "async-update"})
"""Ops whose value is that of their operand."""

_PIPELINE = re.compile(r'\b_xla_send_recv_pipeline\s*=\s*"?(\d+)')


@attrs.frozen
class Envelope:
    """What both sides of a transfer have in common, as MPI calls it.

    The first send of an envelope goes with its first recv, and so on.
    """

    has_channel: bool
    pairs: tuple[tuple[int, int], ...]
    data: Type
    channel: Attribute | None  # where both sends and recvs have it
    pipeline: str  # XLA runs those of another pipeline on a communicator of their own


@attrs.frozen
class _PendingSend:
    """A send that is not matched yet; `after` is the node that started it or carries its data."""

    data: NodeId
    after: NodeId
    send: Node | None = attrs.field(default=None, eq=False)  # None: of another computation


@attrs.frozen
class _PendingRecv:
    """A recv that is not matched yet: the element of a node that is what the recv gives."""

    after: NodeId
    path: Path
    recv: Node | None = attrs.field(default=None, eq=False)  # None: of another computation


_Side: TypeAlias = _PendingSend | _PendingRecv


@attrs.frozen
class _Specialization:
    """What is in flight when a loop's computation begins: a copy is made for each."""

    # with a recv's place in the state; None: a send
    entering: tuple[tuple[Envelope, Path | None], ...] = ()
    registers: tuple[Type, ...] = ()  # what the state holds more than it did


def has_transfers(module: Module) -> bool:
    """Whether anything in the module is sent, received, or waits for it."""
    ops = TRANSFERS | _DONE
    return any(node.op in ops for body in module.computations.values() for node in body.nodes)


def match_transfers(module: Module) -> Module:
    """The module where every recv has a second operand, the data, and comes after it."""
    if not has_transfers(module):
        return module
    matched, unmatched = _matched(module)
    assert not unmatched, unmatched[0]
    return matched


def unmatched_transfers(module: Module) -> Iterator[Unmatched]:
    """Sends, recvs and their dones that cannot be carried out, in a module that is right else."""
    if has_transfers(module):
        yield from _matched(module)[1]


def _matched(module: Module) -> tuple[Module, list[Unmatched]]:
    """By channel and order, or by order alone where that leaves something over."""
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
        self.unmatched_sides: list[Unmatched] = []
        self._reported: set[tuple[str, str, str]] = set()
        self.envelopes = _side_envelopes(module, by_channel=by_channel)
        self.recvs: dict[Envelope, Node] = {}  # one of each
        self._near: dict[tuple[str, Attribute | None], list[tuple[str, Node]]] = defaultdict(list)
        for (name, position), envelope in self.envelopes.items():
            node = module.computations[name].nodes[position]
            if node.op == "recv":
                self.recvs[envelope] = node
            self._near[node.op, node.attributes.get("channel_id")].append((name, node))
        self.postponed: set[tuple[str, int]] = set()
        self.unhandled: list[tuple[str, int]] = []  # dones that read what their recv has got
        self.touched: dict[str, frozenset[Envelope]] = {}
        self._specializations: dict[str, dict[_Specialization, str]] = {
            name: {} for name in module.computations
        }
        self._taken = set(module.computations)

    def run(self) -> tuple[Module, list[Unmatched]]:
        computations = self._module.computations
        own: dict[str, set[Envelope]] = defaultdict(set)
        for (name, _), envelope in self.envelopes.items():
            own[name].add(envelope)
        for name, computation in computations.items():  # callees first
            inner = [self.touched.get(body, frozenset()) for body in _bodies(computation)]
            self.touched[name] = frozenset(own[name]).union(*inner)
        for name in computations.keys() - _only_of_loops(computations.values()):
            self._specializations[name][_Specialization()] = name
        made: list[Computation] = []
        for name in reversed(list(computations)):
            for special, new_name in self._specializations[name].items():
                scope = _ComputationMatching(self, computations[name], special)
                made.append(attrs.evolve(scope.run(), name=new_name))
        self._check_dones()
        matched = {computation.name: computation for computation in reversed(made)}
        return attrs.evolve(self._module, computations=matched), self.unmatched_sides

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
            self.unmatched_sides.append((computation, node, complaint))

    def unmatched(self, computation: Computation, node: Node) -> None:
        """A side without its other side; the hint says what those differ in that come near."""
        other = "recv" if node.op == "send" else "send"
        fact = f"no {other} of %{computation.name} goes with %{node.name}"
        hint = (
            f"both sides take the same {PAIRS_OF_TRANSFERS} and type of data, and both a "
            "channel_id or neither; they stand in one computation, or before, in and behind a loop"
        )
        channel = node.attributes.get("channel_id")
        for name, near in itertools.islice(self._near[other, channel], 8):
            if channel is None and name != computation.name:
                continue
            pairs, theirs = pairs_attribute(node), pairs_attribute(near)
            if pairs and theirs and sorted(pairs.pairs) != sorted(theirs.pairs):
                hint = f"%{near.name} has other {PAIRS_OF_TRANSFERS}; both sides take the same"
                break
            if data_of(near.type) != data_of(node.type):
                hint = (
                    f"%{near.name} has data of type {data_of(near.type)}, not {data_of(node.type)}"
                )
                break
        rule = rule_of(node.op, PARTNERED.format(other))
        self.complain(computation, node, Complaint(rule, fact, help=hint))

    def _check_dones(self) -> None:
        """What a done waits for is a start of its kind, of the channel it says."""
        callers = _callers(self._module)
        for computation in self._module.computations.values():
            for node in computation.nodes:
                if node.op in _DONE:
                    self._check_done(computation, node, callers)
        for name, position in self.unhandled if self.postponed else ():
            computation = self._module.computations[name]
            node = computation.nodes[position]
            leaves = origins(self._module, callers, name, node.operands[0])
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
            origins(self._module, callers, computation.name, node.operands[0])
        ):
            begun = self._module.computations[where].nodes[leaf]
            if begun.op != start:
                fact = f"%{node.name} ends %{begun.name}, which no {start} has started"
                if begun.op in TRANSFERS:
                    fact = f"%{node.name} ends %{begun.name}, which is a {begun.op}"
                hint = f"give it the value of a {start}"
                self.complain(computation, node, Complaint(rule, fact, 0, hint))
        direct = computation.nodes[node.operands[0]]
        said = node.attributes.get("channel_id")
        if said is not None and direct.op == start and direct.attributes.get("channel_id") != said:
            channel = direct.attributes.get("channel_id")
            started = "no channel_id" if channel is None else f"channel_id={channel}"
            fact = f"%{direct.name} has {started}, its {node.op} channel_id={said}"
            self.complain(computation, node, Complaint(rule, fact, "channel_id"))


class _ComputationMatching:
    """A computation in the making: the old nodes at their positions, new ones behind them."""

    def __init__(self, matching: _Matching, old: Computation, special: _Specialization) -> None:
        self._matching = matching
        self._old = old
        self._special = special
        self._nodes = list(old.nodes)
        self._taken = {node.name for node in old.nodes}
        self._suffixes: Counter[str] = Counter()
        self._root = old.root
        self._pending: dict[Envelope, deque[_Side]] = defaultdict(deque)
        self._late: dict[
            _PendingRecv, tuple[Envelope, NodeId]
        ] = {}  # data of recvs started elsewhere

    def run(self) -> Computation:
        old = self._old
        self._begin()
        for position, node in enumerate(old.nodes):
            envelope = self._matching.envelopes.get((old.name, position))
            if envelope is not None:
                mine = NodeId(position)
                if node.op == "send":
                    self._side(envelope, _PendingSend(node.operands[0], mine, node))
                else:
                    self._side(envelope, _PendingRecv(mine, (), node))
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

    def _element(self, of: NodeId, index: int, source: Node) -> NodeId:
        kind = self._nodes[of].type
        assert isinstance(kind, TupleType), source.name
        stem = f"{source.name}.element"
        return self._add(
            stem, "get-tuple-element", kind.elements[index], (of,), source, index=index
        )

    def _widened(self, position: NodeId, registers: Sequence[Type]) -> NodeId:
        """A node as before, now made of the first elements of a wider one, which is returned."""
        node = self._nodes[position]
        assert isinstance(node.type, TupleType), node.name
        wide = TupleType((*node.type.elements, *registers))
        whole = self._add(
            f"{node.name}.wide", node.op, wide, node.operands, node, **node.attributes
        )
        parts = tuple(self._element(whole, index, node) for index in range(len(node.type.elements)))
        self._nodes[position] = attrs.evolve(node, op="tuple", operands=parts, attributes={})
        return whole

    def _with_registers(self, tuple_: NodeId, data: Sequence[NodeId], source: Node) -> NodeId:
        """A tuple with elements more."""
        kind = self._nodes[tuple_].type
        assert isinstance(kind, TupleType), source.name
        parts = [self._element(tuple_, index, source) for index in range(len(kind.elements))]
        wide = TupleType((*kind.elements, *(self._nodes[value].type for value in data)))
        return self._add(f"{source.name}.wide", "tuple", wide, (*parts, *data), source)

    def _begin(self) -> None:
        """What is in flight when the computation begins."""
        special = self._special
        if not (special.entering or special.registers):
            return
        (parameter,) = self._old.parameters()
        source, whole = self._old.nodes[parameter], parameter
        width = 0
        if special.registers:
            assert isinstance(source.type, TupleType), source.name
            width = len(source.type.elements)
            whole = self._widened(parameter, special.registers)
        for envelope, path in special.entering:
            if path is None:
                data = self._element(whole, width, source)
                width += 1
                self._pending[envelope].append(_PendingSend(data, parameter))
            else:
                self._pending[envelope].append(_PendingRecv(parameter, path))

    def _side(self, envelope: Envelope, side: _Side) -> None:
        """Match it with the first pending one of the other side, or let it be pending."""
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
        else:
            self._late[awaited] = envelope, sent.data

    def _loop(self, position: NodeId, node: Node) -> None:
        """What waits and goes into the loop comes out of it one round later, or as it went in."""
        matching, state = self._matching, node.type
        body, condition = node.callee("body"), node.callee("condition")
        before: set[int] | None = None
        entering: list[tuple[Envelope, Path | None]] = []
        registers: list[NodeId] = []
        places: list[tuple[Envelope, int]] = []
        for envelope in sorted(matching.touched[body], key=str):
            for place, side in enumerate(self._pending[envelope]):
                if isinstance(side, _PendingRecv):
                    path = self._path_of(node.operands[0], state, envelope, side)
                    if path is None:
                        continue
                    entering.append((envelope, path))
                    self._postpone(side)
                else:
                    if before is None:
                        before = _ancestors(self._old, position)
                    if side.after not in before or not isinstance(state, TupleType):
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
        whole, width = position, 0
        if registers:
            assert isinstance(state, TupleType), node.name
            width = len(state.elements)
            start = self._with_registers(node.operands[0], registers, node)
            whole = self._widened(position, kinds)
            self._nodes[whole] = attrs.evolve(self._nodes[whole], operands=(start,))
        for (envelope, place), (_, path) in zip(places, entering, strict=True):
            waiting = self._pending[envelope]
            side = waiting[place]
            if isinstance(side, _PendingSend):
                waiting[place] = _PendingSend(
                    self._element(whole, width, node), position, side.send
                )
                width += 1
            else:
                assert path is not None, node.name
                waiting[place] = _PendingRecv(position, path, side.recv)

    def _path_of(
        self, state: NodeId, kind: Type, envelope: Envelope, side: _PendingRecv
    ) -> Path | None:
        """Where the state of a loop holds what a recv has started, if it does."""
        return next(
            (path for path in _started_in(kind, envelope) if self._resolved(state, path) == side),
            None,
        )

    def _resolved(self, value: NodeId, path: Path) -> _PendingRecv:
        """The node that makes an element of a value, and which of its elements that is."""
        while True:
            node = self._old.nodes[value]
            if node.op == "get-tuple-element":
                path = (node.integer("index"), *path)
            elif node.op == "tuple" and path:
                value, path = node.operands[path[0]], path[1:]
                continue
            elif node.op not in _THROUGH:
                return _PendingRecv(value, path)
            value = node.operands[0]

    def _postpone(self, side: _PendingRecv) -> None:
        """A recv of this computation whose data is sent elsewhere holds nothing yet."""
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
        """What is in flight when the computation ends; in a loop that is what it began with."""
        special, matching = self._special, self._matching
        given_back: list[NodeId] = []
        left = {envelope: deque(sides) for envelope, sides in self._pending.items()}
        for envelope, path in special.entering:
            side = left[envelope].popleft() if left.get(envelope) else None
            if path is None and isinstance(side, _PendingSend):
                given_back.append(side.data)
            elif (
                path is not None
                and isinstance(side, _PendingRecv)
                and self._resolved(self._root, path) == side
            ):
                self._postpone(side)
            else:
                self._complain_of_round(envelope, path)
        for sides in left.values():
            for side in sides:
                node = side.send if isinstance(side, _PendingSend) else side.recv
                if node is not None:
                    matching.unmatched(self._old, node)
        if given_back:
            source = self._old.nodes[self._old.root]
            self._root = self._with_registers(self._old.root, given_back, source)

    def _complain_of_round(self, envelope: Envelope, path: Path | None) -> None:
        name = self._old.name
        node = next(
            node
            for position, node in enumerate(self._old.nodes)
            if self._matching.envelopes.get((name, position)) == envelope or node.op == "while"
        )
        begun = "recv" if path is not None else "send"
        other = "send" if path is not None else "recv"
        fact = (
            f"a round of %{name} begins with a {begun} that waits for its {other}, and does not "
            "end with one in the same place of the state"
        )
        rule = rule_of("send", PARTNERED.format("recv"))
        if node.op == "recv":
            rule = rule_of("recv", PARTNERED.format("send"))
        hint = "each round starts what the next one ends"
        self._matching.complain(self._old, node, Complaint(rule, fact, help=hint))

    def _done(self, position: NodeId, node: Node) -> None:
        """A recv that starts elsewhere, before its send, is started here."""
        started = self._resolved(node.operands[0], ())
        if started not in self._late:
            self._matching.unhandled.append((self._old.name, position))
            return
        envelope, data = self._late[started]
        recv = self._matching.recvs[envelope]
        kind = self._old.nodes[node.operands[0]].type
        token = self._element(node.operands[0], 2, node)
        start = self._add(f"{node.name}.recv", "recv", kind, (token, data), node, **recv.attributes)
        self._nodes[position] = attrs.evolve(node, operands=(start,))

    def _ordered(self) -> Computation:
        """The nodes in an order that respects uses, the old one where it can be."""
        nodes = self._nodes
        order, cycles = use_order([node.operands for node in nodes])
        for cycle, _, _ in cycles:
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
        place = {position: NodeId(k) for k, position in enumerate(order)}
        moved = [
            attrs.evolve(nodes[k], operands=tuple(place[operand] for operand in nodes[k].operands))
            for k in order
        ]
        return attrs.evolve(self._old, nodes=tuple(moved), root=place[self._root])


def _bodies(computation: Computation) -> Iterator[str]:
    return (node.callee("body") for node in computation.nodes if node.op == "while")


def _only_of_loops(computations: Iterable[Computation]) -> set[str]:
    """The computations that loops run and nothing else."""
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
    """Where a type holds what a send or recv of the envelope gives."""
    if is_started(kind) and data_of(kind) == envelope.data:
        yield ()
    elif isinstance(kind, TupleType):
        for index, element in enumerate(kind.elements):
            yield from ((index, *path) for path in _started_in(element, envelope))


_Callers: TypeAlias = Mapping[str, Sequence[tuple[str, NodeId]]]
"""The nodes that run each computation."""


def _callers(module: Module) -> _Callers:
    callers: dict[str, list[tuple[str, NodeId]]] = defaultdict(list)
    for name, computation in module.computations.items():
        for position, node in enumerate(computation.nodes):
            for _, callee in node.callees():
                callers[callee].append((name, NodeId(position)))
    return callers


def origins(
    module: Module, callers: _Callers, name: str, value: NodeId
) -> frozenset[tuple[str, int]]:
    """The nodes that may have made a value, through tuples, loops, branches and calls."""
    start = (name, value, Path(()))
    seen = {start}
    pending: list[tuple[str, NodeId, Path]] = [start]
    made: set[tuple[str, int]] = set()
    while pending:
        where, position, path = pending.pop()
        steps = _sources(module, callers, where, position, path)
        if steps is None:
            made.add((where, position))
            continue
        fresh = set(steps) - seen
        seen |= fresh
        pending += fresh
    return frozenset(made)


def _sources(
    module: Module, callers: _Callers, name: str, position: NodeId, path: Path
) -> list[tuple[str, NodeId, Path]] | None:
    """The values that an element of a node is, one of them; None if the node makes it."""
    node = module.computations[name].nodes[position]

    def root(callee: str, inside: Path) -> tuple[str, NodeId, Path]:
        return callee, module.computations[callee].root, inside

    match node.op:
        case "get-tuple-element":
            return [(name, node.operands[0], (node.integer("index"), *path))]
        case "tuple" if path:
            return [(name, node.operands[path[0]], path[1:])]
        case op if op in _THROUGH:
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
    """What a node gives a parameter of a computation that it runs."""
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
