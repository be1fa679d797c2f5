"""Hand-made programs on two or three engine queues: random waits, posts, tensors, collectives.

Nothing makes them right: waits are forgotten, ask for what is never posted, or for too little.
"""

from collections.abc import Sequence

import attrs
from hypothesis import strategies as st

from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import (
    ALIGNMENT,
    Buffer,
    BufferId,
    BufferKind,
    Program,
    Semaphore,
    Tensor,
    TensorId,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.neff.table import NONE, Instr, InstrTable

ELEMENTS = 4
SIZE_BYTES = ELEMENTS * DType.F32.size_bytes
COMPUTING = (Engine.VECTOR, Engine.SCALAR, Engine.SYNC)
OPS = (CollectiveOp.ALL_REDUCE, CollectiveOp.PERMUTE, CollectiveOp.BROADCAST, CollectiveOp.BARRIER)


@attrs.define
class _Queues:
    """Rows so far, and how often each semaphore is posted by them."""

    draw: st.DrawFn
    engines: Sequence[Engine]
    tensors: int
    semaphores: list[str] = attrs.field(factory=list)  # owners
    rows: dict[Engine, list[Instr]] = attrs.field(factory=dict)
    posts: dict[int, int] = attrs.field(factory=dict)
    placeholders: list[Placeholder] = attrs.field(factory=list)

    def chance(self, of: int) -> bool:
        return self.draw(st.integers(0, of - 1)) == of - 1

    def tensor(self, *, written: bool = False) -> int:
        """Any tensor; the first is the input, which nothing writes."""
        return self.draw(st.integers(1 if written else 0, self.tensors - 1))

    def semaphore(self, owner: str) -> int:
        if owner not in self.semaphores:
            self.semaphores.append(owner)
        return self.semaphores.index(owner)

    def wait(self) -> dict[str, int]:
        """Mostly for the newest post of a semaphore, seldom for one that may never come."""
        posted = sorted(self.posts)
        if not posted or self.chance(3):
            return {}
        sem = self.draw(st.sampled_from(posted))
        low = self.chance(4)
        value = self.draw(st.integers(1, self.posts[sem])) if low else self.posts[sem]
        return {"wait_sem": sem, "wait_value": value + self.chance(25)}

    def post(self, owner: str) -> None:
        sem = self.semaphore(owner)
        self.posts[sem] = self.posts.get(sem, 0) + 1

    def compute(self) -> None:
        engine = self.draw(st.sampled_from(self.engines))
        wait = self.wait()
        posts = not self.chance(4)
        sem = self.semaphore(engine.value) if posts else NONE
        row = Instr("copy", (self.tensor(written=True),), (self.tensor(),), post_sem=sem, **wait)
        self.rows.setdefault(engine, []).append(row)
        if posts:
            self.post(engine.value)

    def collective(self, ranks: int) -> None:
        number, op = len(self.placeholders), self.draw(st.sampled_from(OPS))
        stream = self.draw(st.integers(0, 1))
        self.semaphore(f"stream {stream}")
        operand, result = self.tensor(), self.tensor(written=True)
        has_tensors = op is not CollectiveOp.BARRIER and operand != result
        group = (tuple(range(ranks)),)
        turn = tuple((rank, (rank + 1) % ranks) for rank in range(ranks))
        self.placeholders.append(
            Placeholder(
                op=op if has_tensors else CollectiveOp.BARRIER,
                dtype=DType.F32 if has_tensors else DType.U8,
                operands=(TensorId(operand),) if has_tensors else (),
                results=(TensorId(result),) if has_tensors else (),
                reduction=Reduction.ADD if has_tensors and op.reduces else None,
                groups=() if has_tensors and op is CollectiveOp.PERMUTE else group,
                pairs=turn if has_tensors and op is CollectiveOp.PERMUTE else (),
                root=0 if has_tensors and op.is_rooted else None,
                stream=stream,
                name=f"p{number}",
            )
        )
        trigger = Instr("ptc2", placeholder=number, **self.wait())
        self.rows.setdefault(Engine.GPSIMD, []).append(trigger)
        self.post(f"stream {stream}")


@st.composite
def small_programs(draw: st.DrawFn, most_rows: int = 8) -> Program:
    """Up to eight instructions, of which at most two trigger collectives of one to three ranks."""
    ranks = draw(st.integers(1, 3))
    engines = COMPUTING[: draw(st.integers(1, 3))]
    queues = _Queues(draw, engines, draw(st.integers(2, 7)))
    for _ in range(draw(st.integers(1, most_rows))):
        if len(queues.placeholders) < 2 and queues.chance(3):
            queues.collective(ranks)
        else:
            queues.compute()
    return _program(queues, ranks)


def _program(queues: _Queues, ranks: int) -> Program:
    step = -(-SIZE_BYTES // ALIGNMENT) * ALIGNMENT
    kinds = [BufferKind.INPUT, *[BufferKind.INTERNAL] * (queues.tensors - 1)]
    buffers = [Buffer(f"t{k}", kind, SIZE_BYTES, k * step) for k, kind in enumerate(kinds)]
    tensors = [Tensor(f"t{k}", BufferId(k), DType.F32, (ELEMENTS,)) for k in range(queues.tensors)]
    names = {owner: owner.lower().replace(" ", "") for owner in queues.semaphores}
    return Program(
        name="small",
        replica_count=1,
        num_partitions=ranks,
        hbm_bytes=queues.tensors * step,
        buffers=tuple(buffers),
        tensors=tuple(tensors),
        inputs=(TensorId(0),),
        outputs=(),
        constants={},
        regions=(),
        attributes=(),
        semaphores=tuple(Semaphore(names[owner], owner) for owner in queues.semaphores),
        placeholders=tuple(queues.placeholders),
        queues={one: InstrTable.from_rows(queues.rows.get(one, ())) for one in ENGINES},
        origins=(),
    )
