"""Whether a plan in chunks does what its operator promises: performed on who gave what.

A chunk holds a chunk number and a bit for each gpu that gave its own; joining adds bits. What is
wrong on the way (a chunk that nobody wrote, two that do not belong together, a gpu twice) is kept
with the value and told if a result is made of it.
"""

from collections.abc import Iterator

import attrs

from ncc_runtime.errors import PlanError
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.plans.msccl import Buffer, Kind, Ref
from ncc_runtime.plans.shapes import Wanted
from ncc_runtime.plans.steps import NONE, Graph, Node, chunks_of

MOST_NAMED = 8
"""A message names no more gpus than this."""


@attrs.frozen
class Value:
    """What a chunk holds."""

    givers: int  # a bit for each gpu
    chunk: int
    fault: str = ""  # the first thing that went wrong with it
    number: int = NONE  # the step that wrote it here


@attrs.frozen(eq=False)
class Performed:
    """What a plan comes to."""

    complete: frozenset[tuple[int, int]]  # steps and chunks of them, that join the last giver's


def performed(graph: Graph, placeholder: Placeholder) -> Performed:
    """Perform all steps; PlanError that names the first chunk of a result that is wrong."""
    run = _Run(graph)
    for number in graph.order:
        run.perform(graph.nodes[number])
    shape = graph.shape
    for gpu in range(shape.gpus):
        if shape.is_cleared(placeholder, gpu):
            continue
        for chunk in range(shape.chunks(Buffer.OUTPUT)):
            wanted = shape.wanted(placeholder, gpu, chunk)
            found = run.holds(gpu, shape.own(gpu, Ref(Buffer.OUTPUT, chunk)))
            if found is None or found.fault or _differs(found, wanted):
                raise _wrong(graph, (gpu, chunk), wanted, found)
    return Performed(frozenset(run.complete))


class _Run:
    """The chunks of all gpus."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._everybody = (1 << graph.shape.gpus) - 1
        self._sent: dict[int, list[Value]] = {}  # by send
        self._held: dict[tuple[int, Buffer, int], Value] = {}  # what steps have written
        self.complete: set[tuple[int, int]] = set()

    def perform(self, node: Node) -> None:
        """Receive, read, join, write, send."""
        kind = node.step.kind
        if kind is Kind.NOP:
            return
        values = list(self._values(node))
        if kind.writes:
            for place, value in enumerate(values):
                at = node.gpu, node.target.buffer, node.target.index + place
                self._held[at] = Value(value.givers, value.chunk, value.fault, node.number)
        if kind.sends:
            self._sent[node.number] = values

    def holds(self, gpu: int, ref: Ref) -> Value | None:
        """What a step wrote in a chunk, or the gpu's operand has there; None for nothing."""
        found = self._held.get((gpu, ref.buffer, ref.index))
        if found is not None:
            return found
        given = self._graph.shape.given(gpu, ref)
        return None if given is None else Value(1 << gpu, given)

    def _values(self, node: Node) -> Iterator[Value]:
        kind = node.step.kind
        came = self._sent.pop(self._graph.sent[node.number]) if kind.receives else []
        for place in range(node.step.count):
            if not kind.joins:
                yield came[place] if kind.receives else self._read(node, node.source, place)
                continue
            if kind is Kind.REDUCE:
                ours, theirs = node.target, self._read(node, node.source, place)
            else:
                ours, theirs = node.source, came[place]
            both = self._joined(node, theirs, self._read(node, ours, place))
            if both.givers == self._everybody and not both.fault:
                self.complete.add((node.number, place))
            yield both

    def _read(self, node: Node, ref: Ref, place: int) -> Value:
        chunk = Ref(ref.buffer, ref.index + place)
        found = self.holds(node.gpu, chunk)
        if found is not None:
            return found
        name = node.name_of(chunks_of(node.gpu, chunk, 1).start)
        return Value(0, 0, f"{_named(node)} reads {name}, which nothing has written")

    def _joined(self, node: Node, one: Value, other: Value) -> Value:
        fault = one.fault or other.fault
        if not fault and one.chunk != other.chunk:
            fault = f"{_named(node)} joins chunk {one.chunk} to chunk {other.chunk}"
        twice = one.givers & other.givers
        if not fault and twice:
            fault = f"{_named(node)} joins the contribution of {_gpus(twice)} twice"
        return Value(one.givers | other.givers, one.chunk, fault)


def _differs(found: Value, wanted: Wanted) -> bool:
    return (found.givers, found.chunk) != (wanted.givers, wanted.chunk)


def _wrong(graph: Graph, place: tuple[int, int], wanted: Wanted, found: Value | None) -> PlanError:
    gpu, chunk = place
    what = _what(wanted, found)
    at, last = graph.algo.at, "no step writes there"
    written = {node.target.buffer for node in graph.nodes if node.step.kind.writes}
    if not graph.shape.in_place and Buffer.OUTPUT not in written:
        last = 'no step writes to o: say inplace="1" if i and o are one buffer'
    if found is not None and found.number != NONE:
        node = graph.nodes[found.number]
        at, last = node.step.at, f"last written by {node}"
    where = f"chunk {chunk} of the result of gpu {gpu}"
    return at.error(f"not {graph.shape.op.value}: {where} {what}; {last}")


def _what(wanted: Wanted, found: Value | None) -> str:
    if found is None:
        return "is never written"
    if found.fault:
        return f"is wrong: {found.fault}"
    if found.chunk != wanted.chunk:
        givers = _gpus(found.givers)
        return f"holds chunk {found.chunk} of {givers}, not chunk {wanted.chunk}"
    missing, more = wanted.givers & ~found.givers, found.givers & ~wanted.givers
    words = [f"lacks the contribution of {_gpus(missing)}"] if missing else []
    words += [f"has a contribution of {_gpus(more)}"] if more else []
    return " and ".join(words)


def _named(node: Node) -> str:
    return f"{node} (line {node.step.at.line})"


def _gpus(givers: int) -> str:
    numbers = [gpu for gpu in range(givers.bit_length()) if givers >> gpu & 1]
    more = f", … ({len(numbers)})" if len(numbers) > MOST_NAMED else ""
    shown = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"gpu{'s' if len(numbers) > 1 else ''} {shown}{more}"
