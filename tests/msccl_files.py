"""MSCCL files as the msccl-tools compiler prints them, and what they compute on plain numpy."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from xml.etree import ElementTree

import attrs

Ref = tuple[str, int]
At = tuple[int, int]
"""Thread block and step."""

NONE: Ref = ("i", 0)


@attrs.define(eq=False)
class Step:
    """One step; dependences are made nops but for the last."""

    kind: str
    source: Ref
    target: Ref
    count: int = 1
    deps: "list[Step]" = attrs.field(factory=list)
    at: At = (-1, -1)
    tells: bool = False


@attrs.define(eq=False)
class Block:
    """A thread block."""

    send: int
    recv: int
    chan: int
    steps: list[Step] = attrs.field(factory=list)

    def add(
        self,
        kind: str,
        source: Ref = NONE,
        target: Ref = NONE,
        count: int = 1,
        deps: Iterable[Step] = (),
    ) -> Step:
        """The next step."""
        self.steps.append(Step(kind, source, target, count, list(deps)))
        return self.steps[-1]


@attrs.define(eq=False)
class File:
    """An algorithm that grows."""

    name: str
    coll: str
    gpus: int
    chunks: int  # nchunksperloop
    in_place: bool = False
    protocol: str = "Simple"
    blocks: dict[int, dict[tuple[int, int, int], Block]] = attrs.field(factory=dict)
    scratch: dict[int, int] = attrs.field(factory=dict)
    copies: dict[int, list[tuple[int, int]]] = attrs.field(factory=dict)  # outside of blocks

    def block(self, gpu: int, send: int = -1, recv: int = -1, chan: int = 0) -> Block:
        """The thread block of a gpu with these connections."""
        its = self.blocks.setdefault(gpu, {})
        return its.setdefault((send, recv, chan), Block(send, recv, chan))

    def xml(self) -> str:
        """As msccl-tools prints it."""
        channels = 1 + max(
            (block.chan for its in self.blocks.values() for block in its.values()), default=0
        )
        root = ElementTree.Element(
            "algo",
            {
                "name": self.name,
                "proto": self.protocol,
                "nchannels": str(channels),
                "nchunksperloop": str(self.chunks),
                "ngpus": str(self.gpus),
                "coll": self.coll,
                "inplace": str(int(self.in_place)),
            },
        )
        for gpu in range(self.gpus):
            self._gpu(root, gpu)
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode")

    def _gpu(self, root: ElementTree.Element, gpu: int) -> None:
        parts = {"allgather": (1, self.gpus), "reduce_scatter": (self.gpus, 1)}
        given, got = parts.get(self.coll, (1, 1))
        larger = max(given, got)
        element = ElementTree.SubElement(
            root,
            "gpu",
            {
                "id": str(gpu),
                "i_chunks": str(self.chunks * given // larger),
                "o_chunks": str(self.chunks * got // larger),
                "s_chunks": str(self.scratch.get(gpu, 0)),
            },
        )
        for given_chunk, got_chunk in self.copies.get(gpu, ()):
            its = {"i_off": str(given_chunk), "o_off": str(got_chunk)}
            ElementTree.SubElement(element, "copy", its)
        blocks = list(self.blocks.get(gpu, {}).values())
        printed = [_with_nops(block) for block in blocks]
        for number, steps in enumerate(printed):
            for place, step in enumerate(steps):
                step.at = number, place
        for steps in printed:
            for step in steps:
                for other in step.deps:
                    other.tells = True
        for number, (block, steps) in enumerate(zip(blocks, printed, strict=True)):
            tb = ElementTree.SubElement(
                element,
                "tb",
                {
                    "id": str(number),
                    "send": str(block.send),
                    "recv": str(block.recv),
                    "chan": str(block.chan),
                },
            )
            for step in steps:
                ElementTree.SubElement(tb, "step", _attributes(step))


def _with_nops(block: Block) -> list[Step]:
    found = []
    for step in block.steps:
        found += [Step("nop", ("i", -1), ("o", -1), 0, [other]) for other in step.deps[:-1]]
        step.deps = step.deps[-1:]
        found.append(step)
    return found


def _attributes(step: Step) -> dict[str, str]:
    block, place = step.deps[0].at if step.deps else (-1, -1)
    return {
        "s": str(step.at[1]),
        "type": step.kind,
        "srcbuf": step.source[0],
        "srcoff": str(step.source[1]),
        "dstbuf": step.target[0],
        "dstoff": str(step.target[1]),
        "cnt": str(step.count),
        "depid": str(block),
        "deps": str(place),
        "hasdep": str(int(step.tells)),
    }


def ring_all_reduce(gpus: int, channels: int = 1, *, in_place: bool = True) -> File:
    """A ring per channel with fused steps: s, rrs …, rrcs, rcs …, r."""
    file = File("ring", "allreduce", gpus, gpus * channels, in_place)
    out = "i" if in_place else "o"
    for gpu in range(gpus):
        for chan in range(channels):
            block = file.block(gpu, (gpu + 1) % gpus, (gpu - 1) % gpus, chan)

            def at(step: int, gpu: int = gpu, chan: int = chan) -> int:
                return (gpu - step) % gpus * channels + chan

            block.add("s", ("i", at(0)), ("i", at(0)))
            for step in range(1, gpus - 1):
                block.add("rrs", ("i", at(step)), ("i", at(step)))
            block.add("rrcs", ("i", at(gpus - 1)), (out, at(gpus - 1)))
            for step in range(gpus, 2 * gpus - 2):
                block.add("rcs", (out, at(step)), (out, at(step)))
            block.add("r", (out, at(2 * gpus - 2)), (out, at(2 * gpus - 2)))
    return file


def all_pairs_all_reduce(gpus: int, *, in_place: bool = True) -> File:
    """Everybody sends to everybody's scratch, reduces its chunk, sends that to everybody."""
    file = File("allpairs", "allreduce", gpus, gpus, in_place, "LL")
    out = "i" if in_place else "o"
    for gpu in range(gpus):
        others = [one for one in range(gpus) if one != gpu]
        file.scratch[gpu] = gpus - 1
        came = []
        for place, peer in enumerate(others):
            block = file.block(gpu, peer, peer)
            block.add("s", ("i", peer), ("s", gpu - (gpu > peer)))
            came.append(block.add("r", ("i", gpu), ("s", place)))
        local = file.block(gpu)
        if not in_place:
            local.add("cpy", ("i", gpu), ("o", gpu))
        done = [local.add("re", ("s", k), (out, gpu), deps=[one]) for k, one in enumerate(came)]
        for peer in others:
            block = file.block(gpu, peer, peer)
            block.add("s", (out, gpu), (out, gpu), deps=done[-1:])
            block.add("r", (out, peer), (out, peer))
    return file


def halving_doubling_all_reduce(gpus: int) -> File:
    """Recursive halving, then doubling, in place; a thread block per distance, dependent."""
    file = File("halving-doubling", "allreduce", gpus, gpus, True)
    steps = [1 << k for k in range((gpus - 1).bit_length())][::-1]
    for gpu in range(gpus):
        first, count, last = 0, gpus, []
        halves = []
        for distance in steps:
            peer, half = gpu ^ distance, count // 2
            mine = first + half if gpu & distance else first
            theirs = first if gpu & distance else first + half
            block = file.block(gpu, peer, peer)
            block.add("s", ("i", theirs), ("i", theirs), half, deps=last)
            last = [block.add("rrc", ("i", mine), ("i", mine), half)]
            halves.append((distance, mine, theirs, half))
            first, count = mine, half
        for distance, mine, theirs, half in halves[::-1]:
            block = file.block(gpu, gpu ^ distance, gpu ^ distance)
            block.add("s", ("i", mine), ("i", mine), half, deps=last)
            last = [block.add("r", ("i", theirs), ("i", theirs), half)]
    return file


def hierarchical_all_reduce(nodes: int, local: int, channels: int = 1) -> File:
    """Ring inside of nodes, ring between, ring inside; thread blocks depend on one another."""
    gpus = nodes * local
    file = File("hierarchical", "allreduce", gpus, gpus * channels, True)
    for gpu in range(gpus):
        node, place = divmod(gpu, local)
        for chan in range(channels):

            def at(piece: int, part: int, chan: int = chan) -> int:
                return (piece % local * nodes + part % nodes) * channels + chan

            def near(step: int, node: int = node, place: int = place) -> int:
                return node * local + (place + step) % local

            def far(step: int, node: int = node, place: int = place) -> int:
                return (node + step) % nodes * local + place

            last: list[Step] = []
            inside = file.block(gpu, near(1), near(-1), chan)
            for part in range(nodes):
                inside.add("s", ("i", at(place - 1, part)), ("i", at(place - 1, part)))
                for step in range(2, local):
                    piece = at(place - step, part)
                    inside.add("rrs", ("i", piece), ("i", piece))
                piece = at(place, part)
                last = [inside.add("rrc", ("i", piece), ("i", piece))]
            between = file.block(gpu, far(1), far(-1), channels + chan)
            if nodes > 1:
                piece = at(place, node)
                between.add("s", ("i", piece), ("i", piece), deps=last)
                for step in range(1, nodes - 1):
                    piece = at(place, node - step)
                    between.add("rrs", ("i", piece), ("i", piece))
                piece = at(place, node + 1)
                between.add("rrcs", ("i", piece), ("i", piece))
                for step in range(nodes - 2):
                    piece = at(place, node - step)
                    between.add("rcs", ("i", piece), ("i", piece))
                piece = at(place, node + 2)
                last = [between.add("r", ("i", piece), ("i", piece))]
            gather = file.block(gpu, near(1), near(-1), 2 * channels + chan)
            for part in range(nodes):
                piece = at(place, part)
                gather.add("s", ("i", piece), ("i", piece), deps=last if not part else ())
                for step in range(1, local - 1):
                    piece = at(place - step, part)
                    gather.add("rcs", ("i", piece), ("i", piece))
                piece = at(place + 1, part)
                gather.add("r", ("i", piece), ("i", piece))
    return file


def ring_all_gather(gpus: int, channels: int = 1, *, in_place: bool = False) -> File:
    """Every gpu passes on what came; out of place it copies its own first."""
    file = File("ring", "allgather", gpus, gpus * channels, in_place)
    for gpu in range(gpus):
        for chan in range(channels):
            block = file.block(gpu, (gpu + 1) % gpus, (gpu - 1) % gpus, chan)
            own = gpu * channels + chan
            if in_place:
                block.add("s", ("o", own), ("o", own))
            else:
                file.block(gpu, chan=chan).add("cpy", ("i", chan), ("o", own))
                block.add("s", ("i", chan), ("o", own))
            for step in range(1, gpus - 1):
                piece = (gpu - step) % gpus * channels + chan
                block.add("rcs", ("o", piece), ("o", piece))
            piece = (gpu + 1) % gpus * channels + chan
            block.add("r", ("o", piece), ("o", piece))
    return file


def doubling_all_gather(gpus: int) -> File:
    """Recursive doubling in place: everything held goes across, several chunks at once."""
    file = File("doubling", "allgather", gpus, gpus, True, "LL128")
    for gpu in range(gpus):
        last: list[Step] = []
        for k in range((gpus - 1).bit_length()):
            peer, size = gpu ^ 1 << k, 1 << k
            mine, theirs = gpu // size * size, peer // size * size
            block = file.block(gpu, peer, peer)
            block.add("s", ("o", mine), ("o", mine), size, deps=last)
            last = [block.add("r", ("o", theirs), ("o", theirs), size)]
    return file


def ring_reduce_scatter(gpus: int, channels: int = 1, *, in_place: bool = False) -> File:
    """A ring per channel."""
    file = File("ring", "reduce_scatter", gpus, gpus * channels, in_place)
    for gpu in range(gpus):
        for chan in range(channels):
            block = file.block(gpu, (gpu + 1) % gpus, (gpu - 1) % gpus, chan)
            for step in range(1, gpus):
                piece = (gpu - step) % gpus * channels + chan
                block.add("s" if step == 1 else "rrs", ("i", piece), ("i", piece))
            own = gpu * channels + chan
            target = ("i", own) if in_place else ("o", chan)
            block.add("rrc", ("i", own), target)
    return file


def direct_all_to_all(gpus: int, chunks: int = 1) -> File:
    """Everybody to everybody, each by a thread block of its own."""
    file = File("direct", "alltoall", gpus, gpus * chunks)
    for gpu in range(gpus):
        file.block(gpu).add("cpy", ("i", gpu * chunks), ("o", gpu * chunks), chunks)
        for peer in range(gpus):
            if peer != gpu:
                block = file.block(gpu, peer, peer)
                block.add("s", ("i", peer * chunks), ("o", gpu * chunks), chunks)
                block.add("r", ("i", gpu * chunks), ("o", peer * chunks), chunks)
    return file


def two_step_all_to_all(nodes: int, local: int) -> File:
    """Through the gpu of the own place at the other node, by scratch and strided copies."""
    gpus = nodes * local
    file = File("two-step", "alltoall", gpus, gpus)
    for gpu in range(gpus):
        node, place = divmod(gpu, local)
        file.scratch[gpu] = 2 * gpus
        ready = []
        for other in range(local):  # inside: what is for place `other`, gathered by node
            packed = [
                file.block(gpu).add("cpy", ("i", far * local + other), ("s", other * nodes + far))
                for far in range(nodes)
            ]
            if other == place:
                ready.append(
                    file.block(gpu).add(
                        "cpy", ("s", other * nodes), ("s", gpus + place * nodes), nodes
                    )
                )
                continue
            peer = node * local + other
            block = file.block(gpu, peer, peer)
            block.add(
                "s", ("s", other * nodes), ("s", gpus + place * nodes), nodes, deps=packed[-1:]
            )
            ready.append(block.add("r", ("s", place * nodes), ("s", gpus + other * nodes), nodes))
        for far in range(nodes):
            for other in range(local):
                piece = ("s", gpus + other * nodes + far)
                if far == node:
                    file.block(gpu).add(
                        "cpy", piece, ("o", node * local + other), deps=[ready[other]]
                    )
                    continue
                block = file.block(gpu, far * local + place, far * local + place)
                block.add("s", piece, ("o", node * local + other), deps=[ready[other]])
                target = ("o", far * local + other)
                block.add("r", target, target)
    return file


def chain_broadcast(gpus: int, chunks: int = 4, root: int = 0) -> File:
    """From gpu to gpu, chunk after chunk."""
    file = File("chain", "broadcast", gpus, chunks)
    for place in range(gpus):
        gpu = (root + place) % gpus
        behind = -1 if place == gpus - 1 else (gpu + 1) % gpus
        block = file.block(gpu, behind, -1 if not place else (gpu - 1) % gpus)
        for chunk in range(chunks):
            if not place:
                block.add("s", ("i", chunk), ("o", chunk))
                file.block(gpu, chan=0).add("cpy", ("i", chunk), ("o", chunk))
            else:
                block.add("r" if behind == -1 else "rcs", ("o", chunk), ("o", chunk))
    return file


def direct_rooted(coll: str, gpus: int, chunks: int = 2, root: int = 0) -> File:
    """Reduce, gather or scatter: everybody with the root, a channel and a chunk after another."""
    parts = {"reduce": 1, "gather": gpus, "scatter": gpus}[coll]
    file = File("direct", coll, gpus, parts * chunks)
    others = [gpu for gpu in range(gpus) if gpu != root]
    last: dict[int, Step] = {}
    first = root * chunks if coll != "reduce" else 0
    given, got = (first if coll == "scatter" else 0), (first if coll == "gather" else 0)
    for chunk in range(chunks):
        last[chunk] = file.block(root).add("cpy", ("i", given + chunk), ("o", got + chunk))
    for gpu in others:
        for chunk in range(chunks):
            at = chunk if coll == "reduce" else gpu * chunks + chunk
            if coll == "scatter":
                file.block(root, send=gpu).add("s", ("i", at), ("o", chunk))
                file.block(gpu, recv=root).add("r", ("i", at), ("o", chunk))
                continue
            file.block(gpu, send=root).add("s", ("i", chunk), ("o", at))
            block, deps = file.block(root, recv=gpu), [last[chunk]]
            if coll == "reduce":
                last[chunk] = block.add("rrc", ("o", at), ("o", at), deps=deps)
            else:
                block.add("r", ("i", chunk), ("o", at))
    return file


def shifted_copy(gpus: int) -> File:
    """A collective of nobody's name: what gpu k has goes to gpu k+1."""
    file = File("shift", "custom", gpus, 1)
    for gpu in range(gpus):
        block = file.block(gpu, (gpu + 1) % gpus, (gpu - 1) % gpus)
        block.add("s", ("i", 0), ("o", 0))
        block.add("r", ("i", 0), ("o", 0))
    return file


ALL: Mapping[str, Sequence[Callable[[], File]]] = {
    "all-reduce": [
        lambda: ring_all_reduce(4),
        lambda: ring_all_reduce(8, 4),
        lambda: ring_all_reduce(5, 2, in_place=False),
        lambda: all_pairs_all_reduce(4),
        lambda: all_pairs_all_reduce(8, in_place=False),
        lambda: halving_doubling_all_reduce(8),
        lambda: hierarchical_all_reduce(2, 4, 2),
        lambda: hierarchical_all_reduce(4, 4),
    ],
    "all-gather": [
        lambda: ring_all_gather(4, 2),
        lambda: ring_all_gather(6, in_place=True),
        lambda: doubling_all_gather(16),
    ],
    "reduce-scatter": [
        lambda: ring_reduce_scatter(4, 3),
        lambda: ring_reduce_scatter(6, in_place=True),
    ],
    "all-to-all": [
        lambda: direct_all_to_all(4, 2),
        lambda: two_step_all_to_all(2, 4),
    ],
}
