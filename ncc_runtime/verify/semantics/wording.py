"""What a wrong byte is made of, in words."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import attrs

from ncc_runtime.verify.bindings import Binding, Role, binding_of, own_address
from ncc_runtime.verify.semantics.outcome import Filling
from ncc_runtime.verify.semantics.promises import EVERYBODY, NOBODY
from ncc_runtime.verify.semantics.provenance import Contribution, Writer, trace
from ncc_runtime.verify.semantics.results import Difference

MOST_NAMED = 8
"""A witness names no more ranks or bytes than this."""


def explained(filling: Filling, found: Difference) -> tuple[str, Writer | None]:
    """`rank 2, result 0, bytes 0x40..0x80: …`, and who wrote the first of these bytes last."""
    address = found.result.start + found.offset
    traced = trace(filling.rings, filling.steps, found.rank, address)
    wanted = _by_rank(promised(found, filling.bindings), filling)
    what = difference(wanted, _by_rank(traced.contributions, filling), filling.bindings)
    end, rank = found.offset + found.size_bytes, filling.members.rank(found.rank)
    where = f"rank {rank}, result {found.result.index}, bytes {found.offset:#x}..{end:#x}"
    return f"{where}: {what}", traced.writer


def _by_rank(counts: Counter[Contribution], filling: Filling) -> Counter[Contribution]:
    """The same with ranks for the numbers of members."""
    rank = filling.members.rank
    return Counter({attrs.evolve(one, rank=rank(one.rank)): n for one, n in counts.items()})


def promised(found: Difference, bindings: Sequence[Binding]) -> Counter[Contribution]:
    """What the first wrong byte was to be made of."""
    promise = found.promise
    parts = promise.giver.shape[1]
    inside = found.offset % (found.result.size_bytes // parts)
    giver, taken = (
        int(column[found.member % len(column), found.part % column.shape[1]])
        for column in (promise.giver, promise.taken)
    )
    if giver == NOBODY:
        return Counter()
    wanted = Counter[Contribution]()
    for rank in promise.joined if giver == EVERYBODY else (giver,):
        operand = binding_of(bindings, Role.OPERAND, found.result.index, rank)
        address = operand.start + taken * (operand.size_bytes // promise.operand_parts) + inside
        wanted[Contribution(rank, address, promise.divisor)] += 1
    return wanted


def difference(
    wanted: Counter[Contribution], found: Counter[Contribution], bindings: Sequence[Binding]
) -> str:
    """How a byte differs from what was promised: `the contribution of rank 5 is missing`."""
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
