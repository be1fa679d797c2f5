"""MSCCL files from programs over chunks, in the way of MSCCLang: steps follow from what is done.

Chunks are copied and reduced. A receive and a send of the same chunk become one step, thread blocks
follow from peers and channels, dependences from who reads and writes; instances repeat everything
on chunks and channels of their own.
"""

from collections import defaultdict
from collections.abc import Iterator

import attrs

from tests.msccl_files import Block, File, Ref, Step

NOBODY = -1


@attrs.define(eq=False)
class Move:
    """One step of one gpu."""

    kind: str
    gpu: int
    source: Ref
    target: Ref
    count: int
    to: int = NOBODY
    of: int = NOBODY
    chan: int = 0
    before: "list[Move]" = attrs.field(factory=list)
    fused: "Move | None" = None  # the send that it does as well

    @property
    def ends(self) -> tuple[int, int]:
        """Whom it sends to and receives from."""
        return (self.to if self.fused is None else self.fused.to), self.of


@attrs.frozen(eq=False)
class Chunk:
    """Some chunks of a gpu's buffer."""

    lang: "Lang"
    gpu: int
    ref: Ref
    count: int

    def copy(self, gpu: int, buffer: str, index: int, chan: int = 0) -> "Chunk":
        """Copy to a gpu, which may be its own."""
        there = self.lang.chunk(gpu, buffer, index, self.count)
        if gpu == self.gpu:
            if there.ref != self.ref:
                self.lang.local("cpy", gpu, (self.ref, there.ref), self.count)
        else:
            self.lang.across("r", self, there, chan)
        return there

    def reduce(self, other: "Chunk", chan: int = 0) -> "Chunk":
        """Join another chunk, of any gpu, to this one."""
        if other.gpu == self.gpu:
            self.lang.local("re", self.gpu, (other.ref, self.ref), self.count)
        else:
            self.lang.across("rrc", other, self, chan)
        return self


class Lang:
    """A program that grows."""

    def __init__(self, coll: str, gpus: int, chunks: int, *, in_place: bool = False) -> None:
        self.coll, self.gpus, self.chunks, self.in_place = coll, gpus, chunks, in_place
        self._moves: list[Move] = []
        self._writer: dict[tuple[int, str, int], Move] = {}
        self._readers: dict[tuple[int, str, int], list[Move]] = defaultdict(list)
        self._scratch: dict[int, int] = defaultdict(int)

    def chunk(self, gpu: int, buffer: str, index: int, count: int = 1) -> Chunk:
        """Chunks, by the one name that they have in place."""
        if self.in_place:
            match self.coll, buffer:
                case ("allgather", "i"):
                    buffer, index = "o", gpu * self.chunks + index
                case ("reduce_scatter", "o"):
                    buffer, index = "i", gpu * self.chunks + index
                case ("allreduce" | "reduce" | "broadcast", "o"):
                    buffer = "i"
        if buffer == "s":
            self._scratch[gpu] = max(self._scratch[gpu], index + count)
        return Chunk(self, gpu, (buffer, index), count)

    def local(self, kind: str, gpu: int, refs: tuple[Ref, Ref], count: int) -> None:
        """A step at home, from a chunk to another."""
        reads = refs if kind == "re" else refs[:1]
        self._add(Move(kind, gpu, *refs, count), reads, refs[1:])

    def across(self, kind: str, source: Chunk, target: Chunk, chan: int) -> None:
        """A send and its receive; the source of the latter is printed as the sender's."""
        refs, count = (source.ref, target.ref), source.count
        send = Move("s", source.gpu, *refs, count, to=target.gpu, chan=chan)
        came = self._writer.get((source.gpu, *source.ref))
        self._add(send, refs[:1], ())
        if came is not None and _is_one(came, send) and not self._overtakes(came, send):
            came.fused = send
        receive = Move(kind, target.gpu, *refs, count, of=source.gpu, chan=chan)
        self._add(receive, refs[1:] if kind == "rrc" else (), refs[1:])

    def _overtakes(self, came: Move, send: Move) -> bool:
        """Whether a send of the same connection lies between: the n-th meets the n-th."""
        between = self._moves[self._moves.index(came) + 1 : -1]
        ways = [(one.gpu, one.to, one.chan) for one in between]
        return (send.gpu, send.to, send.chan) in ways

    def _add(self, move: Move, reads: tuple[Ref, ...], writes: tuple[Ref, ...]) -> None:
        for refs, is_write in ((reads, False), (writes, True)):
            for buffer, first in refs:
                for index in range(first, first + move.count):
                    self._touch(move, (move.gpu, buffer, index), is_write=is_write)
        self._moves.append(move)

    def _touch(self, move: Move, chunk: tuple[int, str, int], *, is_write: bool) -> None:
        earlier = self._readers[chunk] if is_write else []
        if chunk in self._writer:
            earlier = [*earlier, self._writer[chunk]]
        move.before += [one for one in earlier if one is not move and one not in move.before]
        if is_write:
            self._writer[chunk], self._readers[chunk] = move, []
        else:
            self._readers[chunk].append(move)

    def file(self, instances: int = 1, protocol: str = "Simple") -> File:
        """The steps, as many times side by side."""
        parts = self.gpus if self.coll in ("allgather", "reduce_scatter", "alltoall") else 1
        chunks = parts * self.chunks * instances
        file = File("lang", self.coll, self.gpus, chunks, self.in_place, protocol)
        most = max(self._scratch.values(), default=0) * instances
        file.scratch = dict.fromkeys(range(self.gpus), most)
        for number in range(instances):
            self._write(file, number, instances)
        return file

    def _write(self, file: File, number: int, instances: int) -> None:
        done: dict[Move, tuple[Block, Step, int]] = {}
        sends = {move.fused: move for move in self._moves if move.fused is not None}
        its_ends = dict(self._ends(sends))
        for place, move in enumerate(self._moves):
            if move in sends:
                done[move] = done[sends[move]]
                continue
            block = file.block(move.gpu, *its_ends[move], move.chan * instances + number)
            waits: dict[Block, tuple[int, Step]] = {}
            for one in move.before:
                other, step, at = done[one]
                if other is not block and waits.get(other, (NOBODY, step))[0] < at:
                    waits[other] = at, step
            refs = [self._at(ref, number, instances) for ref in (move.source, move.target)]
            kind = move.kind if move.fused is None else {"r": "rcs", "rrc": "rrcs"}[move.kind]
            deps = [step for _, step in waits.values()]
            done[move] = block, block.add(kind, *refs, move.count, deps), place

    def _at(self, ref: Ref, number: int, instances: int) -> Ref:
        """A chunk in an instance: parts are cut in as many stretches; so is scratch."""
        buffer, index = ref
        if buffer == "s":
            return buffer, index + number * max(self._scratch.values())
        part, inside = divmod(index, self.chunks)
        return buffer, (part * instances + number) * self.chunks + inside

    def _ends(self, sends: dict[Move, Move]) -> Iterator[tuple[Move, tuple[int, int]]]:
        """The ends of each move's thread block: those that do both first, the rest fills up."""
        blocks: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
        chosen: list[tuple[Move, list[int]]] = []
        for move in sorted(self._moves, key=lambda one: NOBODY in one.ends):
            if move in sends:
                continue
            its = blocks[move.gpu, move.chan] if move.ends != (NOBODY, NOBODY) else []
            fitting = [one for one in its if _fits(one, move.ends)]
            if not fitting:
                fitting = [[NOBODY, NOBODY]]
                its += fitting
            block = fitting[0]
            block[:] = [max(both) for both in zip(block, move.ends, strict=True)]
            chosen.append((move, block))
        yield from ((move, (block[0], block[1])) for move, block in chosen)


def _is_one(came: Move, send: Move) -> bool:
    """Whether what came and goes on is one step: nothing else is waited for."""
    is_same = (came.target, came.count, came.chan) == (send.source, send.count, send.chan)
    return came.of != NOBODY and came.fused is None and is_same and send.before == [came]


def _fits(block: list[int], ends: tuple[int, int]) -> bool:
    """Whether a connection of the block is one of these, or it sends to whom it receives from."""
    if all(end in (NOBODY, own) for own, end in zip(block, ends, strict=True)):
        return True
    end, is_of = (ends[1], True) if ends[0] == NOBODY else (ends[0], False)
    return block == ([end, NOBODY] if is_of else [NOBODY, end])
