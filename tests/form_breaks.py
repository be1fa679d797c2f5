"""Small executables, and ways to break one rule of form in them."""

import functools
from collections.abc import Callable

import attrs
import numpy as np

import ncc_compiler
import ncc_runtime
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    EngineQueue,
    Executable,
    Post,
    Queue,
    RegisterLoad,
)
from ncc_runtime.neff.placeholder import CollectiveOp
from tests import mutant_edits as edit
from tests.counted_programs import Shape, text_of
from tests.programs import collective_program

LOOPED = """HloModule m, replica_count=4
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a,b) }
cond { p = (s32[], f32[4]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 n = s32[] constant(3)
 ROOT c = pred[] compare(i, n), direction=LT }
body { p = (s32[], f32[4]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 one = s32[] constant(1)
 j = s32[] add(i, one)
 v = f32[4] get-tuple-element(p), index=1
 r = f32[4] all-reduce(v), replica_groups={}, to_apply=add
 ROOT t = (s32[], f32[4]) tuple(j, r) }
ENTRY e { x = f32[4] parameter(0)
 z = s32[] constant(0)
 t = (s32[], f32[4]) tuple(z, x)
 w = (s32[], f32[4]) while(t), condition=cond, body=body
 ROOT y = f32[4] get-tuple-element(w), index=1 }
"""


def loaded(ranks: int, algorithm: str, topology: str = "trn2", **place: object) -> Executable:
    program = collective_program(CollectiveOp.ALL_REDUCE, ranks, [64], repeat=2)
    algorithms = {"all-reduce": algorithm}
    return ncc_runtime.load(program, topology, algorithms=algorithms, **place).executable


@functools.cache
def ring() -> Executable:
    """Two all-reduces over the cores of a chip."""
    return loaded(4, "ring")


@functools.cache
def averaged() -> Executable:
    """Sums that are joined in the memory of neighbours."""
    return loaded(4, "mesh")


@functools.cache
def duplicated() -> Executable:
    """Bytes that are written at two ranks."""
    return loaded(8, "kangaring")


@functools.cache
def over_links() -> Executable:
    """A rank on each of four chips."""
    return loaded(4, "ring", placement="spread")


@functools.cache
def over_efa() -> Executable:
    """Two ranks on each of two instances."""
    return loaded(4, "ring", nodes=2)


@functools.cache
def looped() -> Executable:
    """A collective in the body of a loop."""
    neff = ncc_compiler.compile_text(LOOPED)
    return ncc_runtime.load(neff, "trn2", algorithms={"all-reduce": "ring"}).executable


STREAMS = """HloModule m, replica_count=4
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a,b) }
ENTRY e { x = f32[4] parameter(0)
 p = f32[4] all-reduce(x), replica_groups={}, to_apply=add
 q = f32[4] all-reduce(x), replica_groups={}, to_apply=add, frontend_attributes={stream_id="1"}
 r = f32[4] all-reduce(x), replica_groups={}, to_apply=add, frontend_attributes={stream_id="2"}
 ROOT y = (f32[4], f32[4], f32[4]) tuple(p, q, r) }
"""


@functools.cache
def three_streams() -> Executable:
    """Collectives that may run side by side."""
    return ncc_runtime.load(ncc_compiler.compile_text(STREAMS), "trn2").executable


@functools.cache
def counted() -> Executable:
    """Rows that go where tables say."""
    neff = ncc_compiler.compile_text(text_of("ragged-all-to-all", Shape(groups=((0, 1, 2, 3),))))
    return ncc_runtime.load(neff, "trn2").executable


COPY, REDUCE = 0, 1
"""Rows of the ring of `ring()`."""

SIGNAL, PUSH, DONE = 1, 2, 12
"""Rows of its CC-core program."""

BASES = (ring, averaged, duplicated, over_links, over_efa, looped, three_streams, counted)
Break = Callable[[Executable], Executable]


def number_of(executable: Executable, name: str) -> int:
    return [queue.name for queue in executable.queues].index(name)


def changed(name: str, change: Callable[[Queue], Queue]) -> Break:
    """Another queue in the place of one."""

    def made(executable: Executable) -> Executable:
        number = number_of(executable, name)
        return edit.with_queue(executable, number, change(executable.queues[number]))

    return made


def cell(name: str, row: int, rank: int, **values: int) -> Break:
    """Other values in columns of a ring."""
    return lambda executable: edit.with_cells(
        executable, number_of(executable, name), (row, rank), values
    )


def plain(name: str, column: str, row: int, value: int) -> Break:
    """Another value in a column that ranks share."""

    def change(queue: Queue) -> Queue:
        values = np.array(getattr(queue, column))
        values[row] = value
        return attrs.evolve(queue, **{column: values})

    return changed(name, change)


def register(column: str, row: int, rank: int, value: int) -> Break:
    """Another length register in the first ring of a counted collective."""

    def change(queue: Queue) -> Queue:
        assert isinstance(queue, DmaQueue)
        values = np.array(getattr(queue.registers, column))
        values[row, rank] = value
        return attrs.evolve(queue, registers=attrs.evolve(queue.registers, **{column: values}))

    return changed("cc0.dma0", change)


def loads(change: Callable[[dict[int, RegisterLoad]], dict[int, RegisterLoad]]) -> Break:
    """Other tables in the program of a CC-core."""
    return changed("cc0", lambda queue: attrs.evolve(queue, loads=change(dict(queue.loads))))


def wait(name: str, row: int, rank: int, sem: int, value: int) -> Break:
    return lambda executable: edit.with_wait(
        executable, number_of(executable, name), (row, rank), sem, value
    )


def post(name: str, row: int, rank: int, which: int, to: tuple[int, int]) -> Break:
    return lambda executable: edit.with_post(
        executable, number_of(executable, name), which, (row, rank), to
    )


def facts(**values: object) -> Break:
    """Other facts of stream 0."""
    return lambda executable: attrs.evolve(
        executable, streams=(attrs.evolve(executable.streams[0], **values),)
    )


def jump(name: str, **values: object) -> Break:
    """Another first jump of a queue."""

    def change(queue: Queue) -> Queue:
        assert isinstance(queue, EngineQueue | CcQueue)
        row = min(queue.jumps)
        return attrs.evolve(
            queue, jumps={**queue.jumps, row: attrs.evolve(queue.jumps[row], **values)}
        )

    return changed(name, change)


def without_jump(name: str) -> Break:
    def change(queue: Queue) -> Queue:
        assert isinstance(queue, EngineQueue | CcQueue)
        row = min(queue.jumps)
        return attrs.evolve(queue, jumps={k: v for k, v in queue.jumps.items() if k != row})

    return changed(name, change)


def placed(column: str, rank: int, value: int) -> Break:
    """Another place of a rank."""

    def made(executable: Executable) -> Executable:
        values = np.array(getattr(executable.placement, column))
        values[rank] = value
        placement = attrs.evolve(executable.placement, **{column: values})
        return attrs.evolve(executable, placement=placement)

    return made


def topology(**values: object) -> Break:
    return lambda executable: attrs.evolve(
        executable, topology=attrs.evolve(executable.topology, **values)
    )


def dma(**values: int) -> Break:
    return lambda executable: attrs.evolve(
        executable,
        topology=attrs.evolve(
            executable.topology, dma=attrs.evolve(executable.topology.dma, **values)
        ),
    )


def hbm(**values: int) -> Break:
    return lambda executable: attrs.evolve(
        executable,
        topology=attrs.evolve(
            executable.topology, hbm=attrs.evolve(executable.topology.hbm, **values)
        ),
    )


def links(**values: Callable[[np.ndarray], np.ndarray]) -> Break:
    """Other columns of the links, made from the old ones."""

    def made(executable: Executable) -> Executable:
        old = executable.topology.links
        new = {name: change(getattr(old, name)) for name, change in values.items()}
        return topology(links=attrs.evolve(old, **new))(executable)

    return made


def rerouted(way: list[int]) -> Break:
    """Other links from rank 0's chip to rank 1's."""

    def made(executable: Executable) -> Executable:
        chip = executable.placement.chip
        pair = int(executable.routes.table.pair(np.array(0), chip[0], chip[1]))
        return edit.with_route(executable, pair, way)

    return made


def more_sources(queue: Queue) -> Queue:
    """17 sources of a reduction."""
    assert isinstance(queue, DmaQueue)
    more = np.full((*queue.peer.shape, 15), IDLE)
    sources = np.concatenate((queue.sources, more), axis=2)
    sources[REDUCE] = sources[REDUCE, :, :1]
    return attrs.evolve(queue, sources=sources)


def gap(queue: Queue) -> Queue:
    """The second source of a copy instead of the first."""
    assert isinstance(queue, DmaQueue)
    sources = np.array(queue.sources)
    sources[COPY, 0] = sources[COPY, 0, ::-1]
    return attrs.evolve(queue, sources=sources)


def owner(rank: int) -> Break:
    """The first source of the first row of rank 0 in the memory of another."""

    def change(queue: Queue) -> Queue:
        assert isinstance(queue, DmaQueue)
        here = np.arange(queue.peer.shape[1])[None, :, None]
        owners = np.where(queue.sources == IDLE, IDLE, here).astype(np.int32)
        owners[0, 0, 0] = rank
        return attrs.evolve(queue, source_rank=owners)

    return changed("cc0.dma0", change)


def untriggered(row: int) -> Break:
    """A row of GpSimd posts nothing."""

    def change(queue: Queue) -> Queue:
        posts = [Post(np.array(one.rank), np.array(one.sem)) for one in queue.sync.posts]
        for one in posts:
            one.rank[row], one.sem[row] = IDLE, IDLE
        return attrs.evolve(queue, sync=attrs.evolve(queue.sync, posts=tuple(posts)))

    return changed("GpSimd", change)
