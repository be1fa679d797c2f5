"""Where a wrong byte came from: traced back through the rows, and told against what it was to be.

Fingerprints tell that something is wrong; this tells what. It reads the rows themselves, address by
address, and knows nothing of cells.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.order import Batch
from ncc_runtime.verify.bindings import Binding, Role, binding_of, own_address
from ncc_runtime.verify.conflicts import CC
from ncc_runtime.verify.segments import DmaRingRows, Segment
from ncc_runtime.verify.semantics.results import Difference
from ncc_runtime.verify.semantics.spec import REDUCED, ZEROS

MOST_NAMED = 8
"""A witness names no more ranks or bytes than this."""


@attrs.frozen(order=True)
class Contribution:
    """A byte as it was when the placeholder began, and by what it has been divided since."""

    rank: int
    address: int
    divisor: int = 1

    @property
    def byte(self) -> tuple[int, int]:
        """Which it is."""
        return self.rank, self.address


@attrs.frozen
class Writer:
    """A row that has written a byte."""

    ring: int
    row: int  # of the ring's rows
    rank: int


def explained(
    segment: Segment, batches: Sequence[Batch], difference: Difference
) -> tuple[str, Writer | None]:
    """`rank 2, result 0, bytes 0x40..0x80: …`, and who wrote the first of these bytes last."""
    rank_of = segment.members.rank

    def by_rank(counts: Counter[Contribution]) -> Counter[Contribution]:
        return Counter({attrs.evolve(one, rank=rank_of(one.rank)): n for one, n in counts.items()})

    address = difference.result.start + difference.offset
    found, writer = trace(segment.rings, batches, difference.rank, address)
    wanted = specified(difference, segment.bindings)
    what = difference_text(by_rank(wanted), by_rank(found), segment.bindings)
    end = difference.offset + difference.size_bytes
    where = f"rank {rank_of(difference.rank)}, result {difference.result.index}"
    return f"{where}, bytes {difference.offset:#x}..{end:#x}: {what}", writer


# ---- what a byte is made of


def trace(
    rings: Sequence[DmaRingRows], batches: Sequence[Batch], rank: int, address: int
) -> tuple[Counter[Contribution], Writer | None]:
    """What a byte is made of when all rows are performed, nothing for zeros, and its last writer.

    Rows are gone through backwards: what one has written is made of what it has read.
    """
    contributions, last = Counter({Contribution(rank, address): 1}), None
    for batch in reversed(batches):
        if batch.queue == CC:
            continue
        ring = rings[batch.queue - 1]
        before: Counter[Contribution] = Counter()
        for contribution, performer, inside in list(_written(ring, batch, contributions)):
            last = last or Writer(batch.queue - 1, batch.row, performer)
            count = contributions.pop(contribution, 0)  # 0: another has written it in this step
            for source in _sources(ring, batch.row, performer):
                divisor = contribution.divisor * source.divisor
                before[Contribution(source.rank, source.address + inside, divisor)] += count
        contributions += before
    return contributions, last


def _written(
    ring: DmaRingRows, batch: Batch, contributions: Counter[Contribution]
) -> Iterator[tuple[Contribution, int, int]]:
    """The contributions that some ranks write in a row, by whom, and how far into the range."""
    row = batch.row
    ranks = np.arange(ring.peer.shape[1]) if batch.ranks is None else batch.ranks
    for address in sorted({contribution.address for contribution in contributions}):
        for peer, target in ((ring.peer, ring.target), (ring.second_peer, ring.second_target)):
            if peer is None or target is None:
                continue
            peers, inside = peer[row, ranks], address - target[row, ranks]
            hit = (peers != IDLE) & (inside >= 0) & (inside < ring.size_bytes[row, ranks])
            for at in np.flatnonzero(hit).tolist():
                byte = int(peers[at]), address
                for contribution in [one for one in contributions if one.byte == byte]:
                    yield contribution, int(ranks[at]), int(inside[at])


def _sources(ring: DmaRingRows, row: int, rank: int) -> Iterator[Contribution]:
    """The first bytes of what a transfer reads."""
    opcode, addresses = int(ring.opcode[row]), ring.sources[row, rank].tolist()
    if opcode != DmaOpcode.REDUCE:
        addresses = addresses[: 0 if opcode == DmaOpcode.FILL else 1]
    divisor = int(ring.divisor[row]) if opcode == DmaOpcode.REDUCE else 1
    for number, address in enumerate(addresses):
        if address != IDLE:
            owner = rank if ring.source_rank is None else int(ring.source_rank[row, rank, number])
            yield Contribution(owner, address, divisor)


def specified(difference: Difference, bindings: Sequence[Binding]) -> Counter[Contribution]:
    """What the first wrong byte was to be made of."""
    spec, result = difference.spec, difference.result
    part, inside = divmod(difference.offset, result.size_bytes // spec.parts)
    source, source_part = (
        int(column[difference.member % len(column), part % column.shape[1]])
        for column in (spec.source, spec.source_part)
    )
    wanted = Counter[Contribution]()
    if source != ZEROS:
        for rank in spec.group if source == REDUCED else (source,):
            operand = binding_of(bindings, Role.OPERAND, result.index, rank)
            start = operand.start + source_part * (operand.size_bytes // spec.operand_parts)
            wanted[Contribution(rank, start + inside, spec.divisor)] += 1
    return wanted


# ---- in words


def difference_text(
    wanted: Counter[Contribution], found: Counter[Contribution], bindings: Sequence[Binding]
) -> str:
    """How a byte differs from its spec: `the contribution of rank 5 is missing`."""
    if wanted == found:
        return "is made of the right bytes, by transfers that must not be"
    if not wanted or not found or len(wanted) == len(found) == 1:
        return f"holds {_content(found, bindings)} instead of {_content(wanted, bindings)}"
    missing, extra = wanted - found, found - wanted
    words = [
        *_divided(missing, extra),
        *_repeated(extra, wanted),
        *_moved(missing, extra, bindings),
    ]
    if extra:
        words.append(f"also holds {_content(extra, bindings)}")
    if missing:
        words.append(f"{_contributions(one.rank for one in missing)} missing")
    return ", ".join(words)


def _divided(missing: Counter[Contribution], extra: Counter[Contribution]) -> Iterator[str]:
    """Contributions that are there, but divided by something else; taken out of both."""
    ranks: dict[tuple[int, int], list[int]] = {}
    for one in sorted(missing):
        for other in [other for other in extra if other.byte == one.byte]:
            ranks.setdefault((other.divisor, one.divisor), []).append(one.rank)
            _take(missing, one)
            _take(extra, other)
            break
    for (found, wanted), divided in ranks.items():
        what = "not divided" if found == 1 else f"divided by {found} instead of"
        yield f"{_contributions(divided)} {what} by {wanted}"


def _repeated(extra: Counter[Contribution], wanted: Counter[Contribution]) -> Iterator[str]:
    """Contributions that were joined again; taken out of the former."""
    again = {one: extra.pop(one) for one in sorted(extra) if one in wanted}
    for count in sorted(set(again.values())):
        times = "twice" if count == 1 else f"{count + 1} times"
        ranks = (one.rank for one, more in again.items() if more == count)
        yield f"{_contributions(ranks)} counted {times}"


def _moved(
    missing: Counter[Contribution], extra: Counter[Contribution], bindings: Sequence[Binding]
) -> Iterator[str]:
    """Contributions of other bytes of the right rank; taken out of both."""
    for one in sorted(missing)[:MOST_NAMED]:
        for other in [other for other in sorted(extra) if other.rank == one.rank]:
            yield f"holds {_byte(other, bindings)} instead of {_byte(one, bindings)}"
            _take(missing, one)
            _take(extra, other)
            break


def _take(counts: Counter[Contribution], one: Contribution) -> None:
    counts[one] -= 1
    if not counts[one]:
        del counts[one]


def _contributions(ranks: Iterable[int]) -> str:
    """`the contribution of rank 5 is`, `the contributions of ranks 5, 6 are`."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"the contribution of rank {numbers[0]} is"
    return f"the contributions of ranks {_some(map(str, numbers))} are"


def _content(counts: Counter[Contribution], bindings: Sequence[Binding]) -> str:
    """What a byte is made of."""
    each = (
        f"{count} x " * (count > 1) + _byte(one, bindings) for one, count in sorted(counts.items())
    )
    return _some(each, " + ") or "zeros"


def _some(words: Iterable[str], between: str = ", ") -> str:
    named = list(words)
    more = f"{between}… ({len(named)})" if len(named) > MOST_NAMED else ""
    return between.join(named[:MOST_NAMED]) + more


def _byte(one: Contribution, bindings: Sequence[Binding]) -> str:
    """`rank 3's operand 0 at 0x40`; other memory is nothing that a collective may hold."""
    inside = [binding for binding in bindings if binding.start <= one.address < binding.end]
    for binding in sorted(inside, key=lambda binding: binding.role is not Role.OPERAND):
        index = "" if binding.role is Role.CHANNEL else f" {binding.index}"
        text = f"rank {one.rank}'s {binding.role.value}{index} at {one.address - binding.start:#x}"
        break
    else:
        return f"rank {one.rank}'s memory at {own_address(one.address):#x}"
    text = text if binding.role is Role.OPERAND else f"what was never written ({text})"
    return text if one.divisor == 1 else f"{text} / {one.divisor}"
