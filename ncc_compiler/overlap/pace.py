"""When compute reaches each node, if it never waits for a collective."""

from collections.abc import Sequence

import attrs

from ncc_compiler.ir.graph import Computation, Module
from ncc_compiler.overlap.work import CONTROL_FLOW, work_of
from ncc_runtime.neff.isa import ENGINES

NEVER = 2**62


@attrs.frozen
class Pace:
    """In program order, each engine one after the other; units of `work.py`."""

    ready: tuple[int, ...]  # per node: when its operands are there
    needed: tuple[int, ...]  # when the first operation that reads it starts; NEVER: no compute does


def pace_of(module: Module, body: Computation, feeds: Sequence[bool]) -> Pace:
    """The pace of a computation; `feeds` says which values feed compute."""
    free = dict.fromkeys(ENGINES, 0)
    ready, done = [0] * len(body.nodes), [0] * len(body.nodes)
    starts = [NEVER] * len(body.nodes)
    for position, node in enumerate(body.nodes):
        work = work_of(module, body, node)
        ready[position] = max((done[operand] for operand in node.operands), default=0)
        start = ready[position]
        if node.op in CONTROL_FLOW:
            start = max(start, *free.values())
            free = dict.fromkeys(ENGINES, start)
        elif work.engine is not None and not work.flight:
            start = max(start, free[work.engine])
            free[work.engine] = start + work.duration
        done[position] = start + (0 if work.flight else work.duration)
        if work.engine is not None or node.op in CONTROL_FLOW:
            starts[position] = start
    return Pace(tuple(ready), _needed(body, starts, feeds))


def _needed(body: Computation, starts: Sequence[int], feeds: Sequence[bool]) -> tuple[int, ...]:
    """From when nodes start, when their values are needed; names for data start with users."""
    needed = [NEVER] * len(starts)
    for position in range(len(starts) - 1, -1, -1):
        start = min(starts[position], needed[position])
        for operand in body.nodes[position].operands:
            needed[operand] = min(needed[operand], start)
    return tuple(one if feeding else NEVER for one, feeding in zip(needed, feeds, strict=True))
