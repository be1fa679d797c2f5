"""Result types of sends and recvs, and of what waits for them."""

from collections import Counter
from collections.abc import Iterator, Mapping

from ncc_compiler.ir.collectives import PAIRS_OF_TRANSFERS, pairs_attribute
from ncc_compiler.ir.facts import Facts, Findings, Rule
from ncc_compiler.ir.infer_collectives import members, range_hint
from ncc_compiler.ir.ops_control import DATA_OF_ARRAYS
from ncc_compiler.ir.rules import Complaint
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
    return declared if is_started(declared) and data_of(declared) == data else plain


def _recv(facts: Facts) -> Findings:
    (token,) = facts.operands
    if not isinstance(token, TokenType):
        yield facts.complain(7, f"operand 0 is {token}, not {TokenType()}", 0)
    declared = facts.node.type
    if not is_started(declared):
        fact = f"the result is {declared}, not a tuple such as (f32[4], {_CONTEXT}, {TokenType()})"
        yield facts.complain(9, fact)
        return None
    yield from _transfer(facts, data_of(declared))
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
        fact = f"{what} {rank} is out of range: there are {count}"
        yield facts.complain(5, fact, place, range_hint(facts, what, rank))


def is_started(kind: Type) -> bool:
    """Whether it is data, a context and a token."""
    if not isinstance(kind, TupleType) or len(kind.elements) != 3:
        return False
    _, context, token = kind.elements
    is_context = isinstance(context, ArrayType) and not context.shape and context.dtype.is_integer
    return is_context and isinstance(token, TokenType)


def data_of(kind: Type) -> Type:
    """The data in what a send or recv gives."""
    assert isinstance(kind, TupleType), kind
    return kind.elements[0]


def _done(*elements: int) -> Rule:
    """What a finished transfer gives: elements of what its start gave."""

    def rule(facts: Facts) -> Findings:
        (kind,) = facts.operands
        if not isinstance(kind, TupleType) or not is_started(kind):
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
