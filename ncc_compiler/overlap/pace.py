"""When compute reaches each node if it waits for no collective, and how much is behind each."""

from collections.abc import Sequence

import attrs

from ncc_compiler.ir.graph import Computation
from ncc_compiler.overlap.reach import Bits
from ncc_compiler.overlap.work import CONTROL_FLOW, Work
from ncc_runtime.neff.isa import ENGINES


@attrs.frozen
class Pace:
    """In program order, each engine one after the other; units of `work.py`."""

    ready: tuple[int, ...]  # per node: when its operands are there
    behind: tuple[int, ...]  # per collective: work of what waits for it and for none after it


def pace_of(body: Computation, works: Sequence[Work], before: Sequence[Bits]) -> Pace:
    """The pace of a computation; `before` says which collectives each node depends on."""
    free = dict.fromkeys(ENGINES, 0)
    ready, done = [0] * len(body.nodes), [0] * len(body.nodes)
    behind = [0] * max(bits.bit_length() for bits in (*before, 0))
    for position, node in enumerate(body.nodes):
        work = works[position]
        start = ready[position] = max([done[operand] for operand in node.operands], default=0)
        if node.op in CONTROL_FLOW:
            start = max(start, *free.values())
            free = dict.fromkeys(ENGINES, start)
        elif work.engine is not None and not work.flight:
            start = max(start, free[work.engine])
            free[work.engine] = start + work.duration
            if before[position]:
                behind[before[position].bit_length() - 1] += work.duration
        done[position] = start + (0 if work.flight else work.duration)
    return Pace(tuple(ready), tuple(behind))
