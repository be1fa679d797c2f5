"""Random MSCCL files: trees up and down, with dependences as msccl-tools infers them."""

import random

import attrs

from tests.msccl_files import File, Ref, Step


@attrs.define(eq=False)
class _Uses:
    """Who wrote a chunk last, and who has read it since."""

    write: Step | None = None
    reads: list[Step] = attrs.field(factory=list)


class Writer:
    """Appends steps; each depends on what has to be before it at its gpu."""

    def __init__(self, file: File, draw: random.Random, channels: int) -> None:
        self.file, self._draw, self._channels = file, draw, channels
        self._uses: dict[tuple[int, Ref], _Uses] = {}

    def send(self, gpu: int, to: int, source: Ref, target: Ref, joined: Ref | None) -> None:
        """From one gpu to another, joined to a chunk there or not."""
        chan = self._draw.randrange(self._channels)
        pushed = self.file.block(gpu, to, -1, chan).add("s", source, target)
        self._depend(gpu, pushed, [source], [])
        block = self.file.block(to, -1, gpu, chan)
        if joined is None:
            self._depend(to, block.add("r", source, target), [], [target])
        else:
            self._depend(to, block.add("rrc", joined, target), [joined], [target])

    def local(self, gpu: int, kind: str, source: Ref, target: Ref) -> None:
        """A copy or a join at home, in one of two thread blocks."""
        block = self.file.block(gpu, chan=self._draw.randrange(2))
        reads = [source, target] if kind == "re" else [source]
        self._depend(gpu, block.add(kind, source, target), reads, [target])

    def _depend(self, gpu: int, step: Step, reads: list[Ref], writes: list[Ref]) -> None:
        own = next(block for block in self.file.blocks[gpu].values() if step in block.steps[-1:])
        found: list[Step] = []
        for ref in dict.fromkeys([*reads, *writes]):
            uses = self._uses.setdefault((gpu, ref), _Uses())
            found += [uses.write] if uses.write is not None else []
            found += uses.reads if ref in writes else []
        step.deps = [one for one in dict.fromkeys(found) if one not in own.steps]
        for ref in reads:
            self._uses.setdefault((gpu, ref), _Uses()).reads.append(step)
        for ref in writes:
            self._uses[gpu, ref] = _Uses(step)


def random_all_reduce(seed: int) -> File:
    """Every chunk goes up one random tree and down another, some of it through scratch."""
    draw = random.Random(seed)
    gpus, chunks, slots = draw.randint(2, 7), draw.randint(1, 5), draw.randint(1, 2)
    in_place = draw.random() < 0.5
    file = File("trees", "allreduce", gpus, chunks, in_place, draw.choice(["Simple", "LL"]))
    file.scratch = dict.fromkeys(range(gpus), slots)
    writer = Writer(file, draw, draw.randint(1, 3))
    out = "i" if in_place else "o"
    if not in_place:
        for gpu in range(gpus):
            for chunk in range(chunks):
                writer.local(gpu, "cpy", ("i", chunk), ("o", chunk))
    plans = [_edges(draw, gpus) for _ in range(chunks)]
    order = [chunk for chunk, edges in enumerate(plans) for _ in edges]
    draw.shuffle(order)
    at = [0] * chunks
    for chunk in order:
        is_up, gpu, to = plans[chunk][at[chunk]]
        at[chunk] += 1
        here, slot = (out, chunk), ("s", draw.randrange(slots))
        if draw.random() < 0.4:
            writer.send(gpu, to, here, slot, None)
            writer.local(to, "re" if is_up else "cpy", slot, here)
        else:
            writer.send(gpu, to, here, here, here if is_up else None)
    return file


def _edges(draw: random.Random, gpus: int) -> list[tuple[bool, int, int]]:
    """A tree towards a root, leaves first, and one away from it: up or down, from, to."""
    order = draw.sample(range(gpus), gpus)
    up = [(True, order[k], order[draw.randrange(k)]) for k in range(gpus - 1, 0, -1)]
    rest = draw.sample(order[1:], gpus - 1)
    reached, down = [order[0]], []
    for gpu in rest:
        down.append((False, draw.choice(reached), gpu))
        reached.append(gpu)
    return up + down
