"""What a proof found: its size, its time, and a witness for every breach."""

import attrs


@attrs.frozen
class Proof:
    """One property of a placed program, proved, refuted or not tried."""

    name: str  # well-formed, counters, deadlock, semantics, races
    size: str  # how much was looked at, as in "41536 transfers of 207 collectives (31 distinct)"
    seconds: float = 0.0  # host time, which `prove` takes
    breaches: tuple[str, ...] = ()  # a witness each, several lines at most; empty: proved
    classes: tuple[str, ...] = ()  # alike ranks that were proved once, as people read them
    conditions: tuple[str, ...] = ()  # what it leaves to checks when the program runs
    presumed: str = ""  # not tried: it presumes this proof, which does not hold

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
