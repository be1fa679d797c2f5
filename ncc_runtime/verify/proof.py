"""What a proof found: its size, its time, and a witness for every breach."""

from collections.abc import Iterable

import attrs


@attrs.frozen
class Cell:
    """A row of a queue on a rank; the queue is a place in Executable.queues."""

    queue: int
    row: int
    rank: int


@attrs.frozen
class Breach:
    """One thing that is wrong, as data and in words.

    Programs go by the data; `text` is for people, is made where the breach is found, with the words
    of `places.py`, and nobody reads it again.
    """

    rule: str  #: `exe-W4`, or the proof and what it missed: `counters.unreached`
    text: str  #: several lines at most
    cells: tuple[Cell, ...] = ()  #: where: the first is where it shows, others have a part in it
    placeholders: frozenset[int] = frozenset()  #: whose rows these are
    semaphore: int | None = None  #: of the rank of the first cell
    value: int | None = None  #: that is awaited
    ranks: tuple[int, ...] = ()  #: that are wrong, where there are many

    def __str__(self) -> str:
        return self.text


def _records(breaches: Iterable[Breach | str]) -> tuple[Breach, ...]:
    return tuple(Breach("", one) if isinstance(one, str) else one for one in breaches)


@attrs.frozen
class Proof:
    """One property of a placed program, proved, refuted or not tried."""

    name: str  #: well-formed, counters, deadlock, semantics, races
    size: str  #: how much was looked at, as in "41536 transfers of 207 collectives (31 distinct)"
    seconds: float = 0.0  #: host time, which `prove` takes
    breaches: tuple[Breach, ...] = attrs.field(default=(), converter=_records)  #: empty: proved
    classes: tuple[str, ...] = ()  #: alike ranks that were proved once, as people read them
    conditions: tuple[str, ...] = ()  #: what it leaves to checks when the program runs
    presumed: str = ""  #: not tried: it presumes this proof, which does not hold

    @property
    def texts(self) -> tuple[str, ...]:
        """The breaches as people read them."""
        return tuple(breach.text for breach in self.breaches)

    @property
    def holds(self) -> bool:
        """Whether it was tried, and nothing was found."""
        return not self.breaches and not self.presumed

    @property
    def verdict(self) -> str:
        """In a word: `proved`, `refuted` or `not tried`."""
        if self.presumed:
            return "not tried"
        return "refuted" if self.breaches else "proved"
