"""Comparators of sorts, and the keys that the usual ones compare.

A comparator takes two scalars of each operand, side by side. If it is `key(left) < key(right)`, or
that for a first key and, where the first keys are equal, for a second and so on, then sorting by
the keys does what it asks. A key is whatever the region computes from one side alone.
"""

from collections.abc import Iterator

import attrs

from ncc_runtime.neff.program import Region, RegionInstr


@attrs.frozen
class Key:
    """What elements are sorted by: `region` gives it as its only result, from the left side."""

    region: Region
    largest_first: bool
    is_total: bool  # by the total order of floats; else NaNs have no place


def sort_keys(region: Region) -> list[Key] | None:
    """The keys of a comparator, most significant first; nothing if it is of another form."""
    (result,) = region.results
    return _Reading(region).keys(result)


class _Reading:
    """A comparator whose parameters 2k are left and 2k + 1 right."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._count = len(region.parameters)
        known: dict[object, int] = {}
        self._meanings = (_meanings(region, 0, known), _meanings(region, 1, known))

    def keys(self, value: int) -> list[Key] | None:
        """The keys that a pred value of the region compares."""
        found: list[Key] = []
        while (key := self._compared(value, ("LT", "GT"))) is None:
            parts = self._first_and_rest(value)
            if parts is None:
                return None
            key, value = parts
            found.append(key)
        return [*found, key]

    def _first_and_rest(self, value: int) -> tuple[Key, int] | None:
        """The first key and what decides among equals, of `first or (equal and rest)`."""
        for first, others in self._either_way(value, "or"):
            key = self._compared(first, ("LT", "GT"))
            if key is None:
                continue
            for equal, rest in self._either_way(others, "and"):
                if self._is_equality(equal, key):
                    return key, rest
        return None

    def _either_way(self, value: int, opcode: str) -> Iterator[tuple[int, int]]:
        step = self._step(value)
        if step is not None and step.opcode == opcode:
            left, right = step.operands
            yield left, right
            yield right, left

    def _step(self, value: int) -> RegionInstr | None:
        return self._region.body[value - self._count] if value >= self._count else None

    def _compared(self, value: int, directions: tuple[str, ...]) -> Key | None:
        """The key of a comparison of one key on both sides, in one of these directions."""
        step = self._step(value)
        if step is None or step.opcode != "compare":
            return None
        direction = step.attributes["direction"]
        left, right = step.operands
        is_swapped = not self._is_key(left, right)
        if is_swapped:
            left, right = right, left
        if direction not in directions or not self._is_key(left, right):
            return None
        body = self._region.body[: max(0, left - self._count + 1)]
        return Key(
            attrs.evolve(self._region, body=body, results=(left,)),
            (direction == "GT") != is_swapped,
            step.attributes.get("type") == "TOTALORDER",
        )

    def _is_key(self, left: int, right: int) -> bool:
        """Whether two values are one function, of left parameters only and of right ones."""
        ours, theirs = self._meanings[0][left], self._meanings[1][right]
        return ours is not None and ours == theirs

    def _is_equality(self, value: int, key: Key) -> bool:
        """Whether a pred value says that the keys are equal, in the sense of their comparison."""
        equality = self._compared(value, ("EQ",))
        if equality is None or equality.is_total != key.is_total:
            return False
        (ours,), (theirs,) = key.region.results, equality.region.results
        return self._meanings[0][ours] == self._meanings[0][theirs]


def _meanings(region: Region, side: int, known: dict[object, int]) -> list[int | None]:
    """For each value a number of what it is as a function of one side's parameters.

    Equal functions have equal numbers, on both sides. None is of values that need the other side.
    """
    found: list[int | None] = [
        known.setdefault(number // 2, len(known)) if number % 2 == side else None
        for number in range(len(region.parameters))
    ]
    for step in region.body:
        inputs = tuple(found[operand] for operand in step.operands)
        attributes = tuple(sorted(step.attributes.items()))
        meaning = (step.opcode, step.dtype, attributes, step.constant, inputs)
        found.append(None if None in inputs else known.setdefault(meaning, len(known)))
    return found
