"""Result types of sends and recvs, and which of them belong together.

A send and a recv of one computation with one channel, one list of pairs and one type of data are
the two sides of a transfer; of several such, the first send belongs to the first recv.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import attrs

from ncc_compiler.ir.collectives import PAIRS_OF_TRANSFERS, TRANSFERS, pairs_attribute
from ncc_compiler.ir.facts import Facts, Findings, Rule
from ncc_compiler.ir.graph import Attribute, Computation, Node, NodeId, Pairs
from ncc_compiler.ir.infer_collectives import members
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.ops_control import DATA_OF_ARRAYS, INDEPENDENT, PARTNERED
from ncc_compiler.ir.order import use_order
from ncc_compiler.ir.rules import Complaint, rule_of
from ncc_compiler.ir.types import ArrayType, TokenType, TupleType, Type
from ncc_runtime.neff.dtypes import DType

_CONTEXT = ArrayType(DType.U32)


def _send(facts: Facts) -> Findings:
    data, token = facts.operands
    yield from _transfer(facts, data)
    if not isinstance(token, TokenType):
        yield facts.complain(7, f"operand 1 is {token}, not {TokenType()}", 1)
    declared = facts.node.type
    plain = TupleType((data, _CONTEXT, TokenType()))
    return declared if _is_started(declared) and _data(declared) == data else plain


def _recv(facts: Facts) -> Findings:
    (token,) = facts.operands
    if not isinstance(token, TokenType):
        yield facts.complain(7, f"operand 0 is {token}, not {TokenType()}", 0)
    declared = facts.node.type
    if not _is_started(declared):
        fact = f"the result is {declared}, not a tuple such as (f32[4], {_CONTEXT}, {TokenType()})"
        yield facts.complain(9, fact)
        return None
    yield from _transfer(facts, _data(declared))
    return declared


def _transfer(facts: Facts, data: Type) -> Iterator[Complaint]:
    """The rules that send and recv share."""
    if facts.attribute("is_host_transfer"):
        fact = f"{facts.node.op} is a transfer with the host, which takes no part in a program"
        hint = "what the host gives and gets are inputs and outputs"
        yield facts.complain(1, fact, "is_host_transfer", hint)
        return
    yield from _pairs(facts)
    arrays = data.elements if isinstance(data, TupleType) else (data,)
    if not arrays or not all(isinstance(array, ArrayType) for array in arrays):
        yield facts.complain_of(DATA_OF_ARRAYS, f"the data is {data}")


def _pairs(facts: Facts) -> Iterator[Complaint]:
    place = "frontend_attributes"
    try:
        written = pairs_attribute(facts.node)
    except ValueError as error:
        yield facts.complain(2, f"{PAIRS_OF_TRANSFERS}: {error}", place)
        return
    if written is None:
        fact = f"{facts.node.op} does not say which ranks send to which"
        hint = f"{place}={{{PAIRS_OF_TRANSFERS}={{{{0,1}},{{1,2}}}}}}"
        yield facts.complain(2, fact, place, hint)
        return
    what, count = members(facts)
    for number, end, side in ((3, "source", 0), (4, "target", 1)):
        times = Counter(pair[side] for pair in written.pairs)
        for rank in sorted(rank for rank, found in times.items() if found > 1):
            fact = f"{what} {rank} is the {end} of {times[rank]} pairs"
            yield facts.complain(number, fact, place)
    for rank in sorted({rank for pair in written.pairs for rank in pair if rank >= count}):
        yield facts.complain(5, f"{what} {rank} is out of range: there are {count}", place)


def _is_started(kind: Type) -> bool:
    """Whether it is data, a context and a token."""
    if not isinstance(kind, TupleType) or len(kind.elements) != 3:
        return False
    _, context, token = kind.elements
    is_context = isinstance(context, ArrayType) and not context.shape and context.dtype.is_integer
    return is_context and isinstance(token, TokenType)


def _data(kind: Type) -> Type:
    assert isinstance(kind, TupleType), kind
    return kind.elements[0]


def _done(*elements: int) -> Rule:
    """What a finished transfer gives: elements of what its start gave."""

    def rule(facts: Facts) -> Findings:
        (kind,) = facts.operands
        if not isinstance(kind, TupleType) or not _is_started(kind):
            start = facts.node.op.removesuffix("-done")
            yield facts.complain(1, f"the operand is {kind}, not what a {start} gives", 0)
            return None
        found = tuple(kind.elements[element] for element in elements)
        return TupleType(found) if len(found) > 1 else found[0]

    return rule


TRANSFER_RULES: Mapping[str, Rule] = {
    "send": _send,
    "recv": _recv,
    "send-done": _done(2),
    "recv-done": _done(0, 2),
}


@attrs.frozen
class _Meeting:
    """What the two sides of a transfer have in common."""

    channel: Attribute | None
    pairs: Pairs
    data: Type


def _sides(computation: Computation, op: str) -> Mapping[_Meeting, list[NodeId]]:
    """The sends or the recvs that are understood, those together that could be one another's."""
    found: dict[_Meeting, list[NodeId]] = defaultdict(list)
    for position, node in enumerate(computation.nodes):
        if node.op == op and _is_started(node.type):
            pairs = pairs_attribute(node)
            if pairs is not None:
                meeting = _Meeting(node.attributes.get("channel_id"), pairs, _data(node.type))
                found[meeting].append(NodeId(position))
    return found


def transfers(computation: Computation) -> dict[NodeId, NodeId]:
    """The send of every recv that has one."""
    sends, recvs = _sides(computation, "send"), _sides(computation, "recv")
    return {
        recv: send
        for meeting, waiting in recvs.items()
        for send, recv in zip(sends.get(meeting, ()), waiting, strict=False)
    }


def meet(computation: Computation) -> Computation:
    """The computation where every recv has a second operand, the data, and comes after it."""
    sends = transfers(computation)
    if not sends:
        return computation
    nodes = computation.nodes
    order, cycles = use_order(_uses(computation, sends))
    assert not cycles, computation.name
    place = {position: NodeId(k) for k, position in enumerate(order)}
    moved = []
    for position in order:
        send = sends.get(NodeId(position))
        data = () if send is None else nodes[send].operands[:1]
        operands = (*nodes[position].operands, *data)
        moved.append(attrs.evolve(nodes[position], operands=tuple(place[k] for k in operands)))
    return attrs.evolve(computation, nodes=tuple(moved), root=place[computation.root])


def _uses(computation: Computation, sends: Mapping[NodeId, NodeId]) -> list[list[int | None]]:
    """The operands of every node, and for a recv what is sent to it."""
    uses: list[list[int | None]] = [[*node.operands] for node in computation.nodes]
    for recv, send in sends.items():
        uses[recv].append(computation.nodes[send].operands[0])
    return uses


def lonely(computation: Computation) -> Iterator[tuple[Node, Complaint]]:
    """Sends and recvs that cannot be carried out, in a computation that is right otherwise."""
    nodes = computation.nodes
    if not any(node.op in TRANSFERS for node in nodes) or any(node.op not in OPS for node in nodes):
        return
    sends = transfers(computation)
    yield from _unmatched(computation, {*sends, *sends.values()})
    _, cycles = use_order(_uses(computation, sends))
    for cycle, _, _ in cycles:
        recv = _waiting_for_itself(computation, sends, cycle)
        fact = f"what is sent to %{recv.name} is computed from what it receives"
        hint = "write one transfer for each step of the way"
        yield recv, Complaint(rule_of("recv", INDEPENDENT), fact, help=hint)


def _unmatched(computation: Computation, matched: set[NodeId]) -> Iterator[tuple[Node, Complaint]]:
    nodes = computation.nodes
    for op, other in (("send", "recv"), ("recv", "send")):
        rule = rule_of(op, PARTNERED.format(other))
        for position in (k for known in _sides(computation, op).values() for k in known):
            node = nodes[position]
            if position not in matched and not node.attributes.get("is_host_transfer"):
                fact = f"no {other} of %{computation.name} goes with %{node.name}"
                hint = f"both take the same channel_id, {PAIRS_OF_TRANSFERS} and type of data"
                yield node, Complaint(rule, fact, help=hint)


def _waiting_for_itself(
    computation: Computation, sends: Mapping[NodeId, NodeId], cycle: Sequence[int]
) -> Node:
    """The recv on a way around; there is one, since uses alone are no circle."""
    nodes = computation.nodes
    return next(
        nodes[user]
        for user, used in itertools.pairwise(cycle)
        if (send := sends.get(NodeId(user))) is not None and nodes[send].operands[0] == used
    )
