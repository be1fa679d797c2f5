"""Whether a plan in chunks does what its operator promises: performed on who gave what.

A chunk holds a chunk number and a bit for each gpu that gave its own; joining adds bits. What is
wrong on the way (a chunk that nobody wrote, two that do not belong together, a gpu twice) is kept
with the value and told if a result is made of it.
"""

from typing import NamedTuple

import attrs
import numpy as np

from ncc_runtime.errors import PlanError
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.plans.msccl import OUTPUT
from ncc_runtime.plans.shapes import Wanted
from ncc_runtime.plans.steps import NONE, Graph, chunks_of, places_of

MOST_NAMED = 8
"""A message names no more gpus than this."""


class Value(NamedTuple):
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
    run.perform()
    shape = graph.shape
    index = np.arange(shape.chunks(OUTPUT))
    for gpu in range(shape.gpus):
        if shape.is_cleared(placeholder, gpu):
            continue
        own = shape.own(np.full(len(index), gpu), np.full(len(index), OUTPUT), index)
        for chunk, at in enumerate(chunks_of(np.array(gpu), *own).tolist()):
            wanted = shape.wanted(placeholder, gpu, chunk)
            found = run.holds(at)
            if (
                found is None
                or found.fault
                or (found.givers, found.chunk) != (wanted.givers, wanted.chunk)
            ):
                raise _wrong(graph, (gpu, chunk), wanted, found)
    return Performed(frozenset(run.complete))


class _Run:
    """The chunks of all gpus."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._everybody = (1 << graph.shape.gpus) - 1
        self._sent: dict[int, list[Value]] = {}  # by send
        self._held: dict[int, Value] = {}  # by chunk: what steps have written
        self.complete: set[tuple[int, int]] = set()

    def perform(self) -> None:
        """All steps: each receives, reads, joins, writes, sends."""
        graph, steps = self._graph, self._graph.steps
        rows = zip(
            *(
                column.tolist()
                for column in (
                    steps.which("receives"),
                    steps.which("joins"),
                    steps.which("reads"),
                    steps.which("writes"),
                    steps.which("sends"),
                    graph.source,
                    graph.target,
                    steps.count,
                    graph.sent,
                )
            ),
            strict=True,
        )
        table = list(rows)
        for step in graph.order:
            receives, joins, reads, writes, sends, source, target, count, sent = table[step]
            if not (receives or reads):
                continue  # a nop
            came = self._sent.pop(sent) if receives else self._read(step, source, count)
            if joins:
                # a join at home reads its target, one that receives its source
                ours = self._read(step, source if receives else target, count)
                came = [self._joined(step, *both) for both in zip(came, ours, strict=True)]
                self.complete.update(
                    (step, place)
                    for place, both in enumerate(came)
                    if both.givers == self._everybody and not both.fault
                )
            if writes:
                for place, (givers, chunk, fault, _) in enumerate(came):
                    self._held[target + place] = Value(givers, chunk, fault, step)
            if sends:
                self._sent[step] = came

    def holds(self, at: int) -> Value | None:
        """What a step wrote in a chunk, or the gpu's operand has there; None for nothing."""
        found = self._held.get(at)
        if found is not None:
            return found
        gpu, buffer, index = places_of(at)
        given = self._graph.shape.given(gpu, buffer, index)
        return None if given is None else Value(1 << gpu, given)

    def _read(self, step: int, first: int, count: int) -> list[Value]:
        found = []
        for chunk in range(first, first + count):
            value = self._held.get(chunk) or self.holds(chunk)
            if value is None:
                name = self._graph.name_of(step, chunk)
                fault = f"{_named(self._graph, step)} reads {name}, which nothing has written"
                value = Value(0, 0, fault)
            found.append(value)
        return found

    def _joined(self, step: int, one: Value, other: Value) -> Value:
        fault = one.fault or other.fault
        if not fault and one.chunk != other.chunk:
            fault = f"{_named(self._graph, step)} joins chunk {one.chunk} to chunk {other.chunk}"
        twice = one.givers & other.givers
        if not fault and twice:
            named = _named(self._graph, step)
            fault = f"{named} joins the contribution of {_gpus(twice)} twice"
        return Value(one.givers | other.givers, one.chunk, fault)


def _wrong(graph: Graph, place: tuple[int, int], wanted: Wanted, found: Value | None) -> PlanError:
    gpu, chunk = place
    what, steps = _what(wanted, found), graph.steps
    at, last = graph.algo.at, "no step writes there"
    _, written, _ = places_of(graph.target[steps.which("writes")])
    if not graph.shape.in_place and OUTPUT not in written:
        last = 'no step writes to o: say inplace="1" if i and o are one buffer'
    if found is not None and found.number != NONE:
        at, last = steps.at(found.number), f"last written by {graph.name(found.number)}"
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


def _named(graph: Graph, step: int) -> str:
    return f"{graph.name(step)} (line {graph.steps.line[step]})"


def _gpus(givers: int) -> str:
    numbers = [gpu for gpu in range(givers.bit_length()) if givers >> gpu & 1]
    more = f", … ({len(numbers)})" if len(numbers) > MOST_NAMED else ""
    shown = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"gpu{'s' if len(numbers) > 1 else ''} {shown}{more}"
