"""Reductions as expressions over the members of a group: what is joined when, and where rounded.

Expressions are numbered and shared: equal ones have one number (hash consing). Equal means equal
bits, for any operands: a + b is b + a, and where every addition rounds to the type of the elements
anyway, one descriptor that joins three parts is two that join two. It does not mean a + (b + c).

A descriptor joins its parts from left to right in the accumulator's type, float32 for all floats
of less than 32 bits; only then it divides and rounds to the type of the elements, once.
"""

import enum
import functools
import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction, is_exact

ZEROS = 0
"""The expression of zeros that a fill writes, and of a source that a row does not have."""

UNWRITTEN = 1
"""The expression of memory that holds what it happened to hold."""

MOST_TERMS = 16
"""An expression of more members is written shortened."""

MOST_NAMED = 8
"""A chain of more members is written without its middle."""

JOINED_AT_ONCE = 16
"""Parts of one descriptor in the fixed order; assumed, as in `collectives/stages.py`."""


@attrs.frozen
class Arithmetic:
    """A reduction of elements of a type: whether its order shows in the bits, and how it rounds."""

    reduction: Reduction
    dtype: DType

    @property
    def is_exact(self) -> bool:
        """Whether every order gives the same bits: nothing is rounded."""
        return is_exact(self.reduction, self.dtype)

    @property
    def commutes(self) -> bool:
        """Whether a op b has the bits of b op a; complex products may be contracted on one side."""
        return not self.dtype.is_complex or self.reduction in (Reduction.ADD, Reduction.AVERAGE)

    @property
    def rounds_late(self) -> bool:
        """Whether the accumulator holds more than an element, so that descriptors round once."""
        return self.dtype.is_float and self.dtype.bits < 32

    @property
    def accumulator(self) -> DType:
        """The type in which a descriptor joins its parts."""
        return DType.F32 if self.rounds_late else self.dtype

    @property
    def sign(self) -> str:
        """What stands between the parts of an expression."""
        is_sum = self.reduction in (Reduction.ADD, Reduction.AVERAGE)
        return "+" if is_sum else "*" if self.reduction is Reduction.MULTIPLY else " op "

    @property
    def has_bound(self) -> bool:
        """Whether the textbook bounds its rounding: sums, and products of real numbers."""
        is_sum = self.reduction in (Reduction.ADD, Reduction.AVERAGE)
        return is_sum or (self.reduction is Reduction.MULTIPLY and self.dtype.is_float)


@functools.cache
def unit_roundoff(dtype: DType) -> float:
    """Half the distance from 1 to the next number of a float type, or of a complex one's parts."""
    return float(_finfo(dtype).eps) / 2


@functools.cache
def least_rounding(dtype: DType) -> float:
    """Half the smallest subnormal number: what rounding to the type adds near zero."""
    return float(_finfo(dtype).smallest_subnormal) / 2


def _finfo(dtype: DType) -> Any:
    if dtype.numpy.isbuiltin == 1:
        return np.finfo(dtype.numpy)
    import ml_dtypes

    info: Any = ml_dtypes.finfo  # whose type has no annotations
    return info(dtype.numpy)


@attrs.frozen
class Join:
    """Parts joined from left to right in the accumulator, divided, and rounded once."""

    parts: tuple[int, ...]  # expressions
    divisor: int = 1


@attrs.frozen
class Roundings:
    """How often the value of an expression is rounded."""

    in_all: int  # of all its operations
    accumulator: int  # on the longest way from a member to the result: to the accumulator's type
    element: int  # the same, to the type of the elements


class OrderShape(enum.Enum):
    """What an expression looks like, where it has a name."""

    MEMBER = "member"
    CHAIN = "chain"
    AT_ONCE = "one sum"
    PAIRWISE = "pairwise tree"
    OTHER = "tree"


class Sums:
    """All expressions of one arithmetic; numbers grow from parts to what is made of them."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self._commutes, self._rounds_late = arithmetic.commutes, arithmetic.rounds_late
        self._nodes: list[int | Join] = [ZEROS, UNWRITTEN]  # a member, or what is joined
        self._members: list[int] = [0, 0]  # how many stand in each, counted as often as they do
        self._first: list[int] = [0, 0]  # the least of them
        self._roundings = [Roundings(0, 0, 0)] * 2
        self._known: dict[int | Join, int] = {}
        self._outlines: list[int] = [0, 1]
        self._known_outlines: dict[tuple[int, ...], int] = {}

    # ---- made

    def member(self, place: int) -> int:
        """The contribution of a member of the group."""
        return self._number(place)

    def joined(self, parts: Sequence[int], divisor: int = 1) -> int:
        """What one descriptor makes of these parts, in this order."""
        parts = [part for part in parts if part != ZEROS]
        if not parts:
            return ZEROS
        if divisor == 1 and len(parts) == 1:
            return parts[0]
        if self._commutes and len(parts) > 1 and parts[0] > parts[1]:
            parts[:2] = parts[1::-1]
        if self._rounds_late:
            return self._number(Join(tuple(parts), divisor))
        # every operation rounds to the type of the elements: one after the other
        total = parts[0]
        for part in parts[1:]:
            is_swapped = self._commutes and total > part
            total = self._number(Join((part, total) if is_swapped else (total, part)))
        return total if divisor == 1 else self._number(Join((total,), divisor))

    def in_order(self, members: int, divisor: int = 1) -> int:
        """The fixed order: blocks of 16 members from left to right, then as many blocks, and so on.

        With as many members as a descriptor joins at once that is one sum of all.
        """
        left = [self.member(place) for place in range(members)]
        while len(left) > JOINED_AT_ONCE:
            blocks = range(0, len(left), JOINED_AT_ONCE)
            left = [self.joined(left[first : first + JOINED_AT_ONCE]) for first in blocks]
        return self.joined(left, divisor)

    def _number(self, node: int | Join) -> int:
        number = self._known.setdefault(node, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(node)
        return number

    def _describe(self) -> None:
        """Work out what is asked of expressions, for those that came since; most are never asked.

        Parts have lower numbers than what is made of them.
        """
        for node in self._nodes[len(self._members) :]:
            if isinstance(node, Join):
                self._members.append(sum(self._members[part] for part in node.parts))
                self._first.append(min(self._first[part] for part in node.parts))
                self._roundings.append(self._roundings_of(node))
                outlines = [self._outlines[part] for part in node.parts]
                outlines[:2] = sorted(outlines[:2])
                key = (node.divisor, *outlines)
                outline = self._known_outlines.setdefault(key, len(self._known_outlines) + 3)
                self._outlines.append(outline)
            else:
                self._members.append(1)
                self._first.append(node)
                self._outlines.append(2)
                self._roundings.append(Roundings(0, 0, 0))

    def _roundings_of(self, node: Join) -> Roundings:
        parts = [self._roundings[part] for part in node.parts]
        divides, rounds = int(node.divisor != 1), int(self.arithmetic.rounds_late)
        last = len(parts) - 1
        return Roundings(
            sum(part.in_all for part in parts) + last + divides + rounds,
            # part k goes through the additions from its own on; the first two share theirs
            max(part.accumulator + last - max(0, k - 1) for k, part in enumerate(parts)) + divides,
            max(part.element for part in parts) + rounds,
        )

    # ---- asked

    def node(self, number: int) -> int | Join:
        """The place of a member, or what is joined; neither for ZEROS and UNWRITTEN."""
        return self._nodes[number]

    def roundings(self, number: int) -> Roundings:
        """How often its value is rounded."""
        self._describe()
        return self._roundings[number]

    def members_of(self, number: int) -> int:
        """How many contributions it joins."""
        self._describe()
        return self._members[number]

    def bound(self, number: int) -> float | None:
        """How far rounding can take it, over the sum of the absolute values of what is added.

        A value goes from its member to the result through at most h operations, each of which
        multiplies it by 1 + d with |d| ≤ u: so |error| ≤ ((1 + u)^h - 1) · Σ|x|, which is less than
        gamma_h · Σ|x|. Of a product the factors of all operations multiply, over its absolute
        value. Nothing may overflow; see `least` for what is near zero. None where there is none.

        Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002,
        lemma 3.1, sections 3.1 and 4.2; for averages Σ|x| is over the number of members.
        """
        arithmetic, roundings = self.arithmetic, self.roundings(number)
        if not arithmetic.has_bound:
            return None
        accumulator, element = roundings.accumulator, roundings.element
        if arithmetic.reduction is Reduction.MULTIPLY:
            element = self._rounded_to_element(number)
            accumulator = roundings.in_all - element
        logarithm = accumulator * math.log1p(unit_roundoff(arithmetic.accumulator))
        logarithm += element * math.log1p(unit_roundoff(arithmetic.dtype))
        return math.expm1(logarithm)

    def _rounded_to_element(self, number: int) -> int:
        """How many roundings in all are to the type of the elements."""
        if not self.arithmetic.rounds_late:
            return 0
        count, left = 0, [number]
        while left:
            node = self._nodes[left.pop()]
            if isinstance(node, Join):
                count += 1
                left += node.parts
        return count

    def least(self, number: int) -> float:
        """What roundings near zero add to the bound at most, an absolute value."""
        bound = self.bound(number)
        most = least_rounding(self.arithmetic.dtype) * self.roundings(number).in_all
        return most * (1 + (bound or 0.0))

    def value(self, number: int, operands: Sequence[np.ndarray]) -> np.ndarray:
        """Its value, where member k contributes operands[k]; arrays of the type of the elements."""
        from ncc_runtime.execution.values.transfers import reduce_parts

        values: dict[int, np.ndarray] = {}
        uses = self._uses(number)
        for at in sorted(uses):  # parts come before what is made of them
            node = self._nodes[at]
            if not isinstance(node, Join):
                values[at] = operands[node]
                continue
            parts = [values[part] for part in node.parts]
            values[at] = reduce_parts(parts, self.arithmetic.reduction, node.divisor)
            for part in node.parts:
                uses[part] -= 1
                if not uses[part]:
                    del values[part]
        return values[number]

    def _uses(self, number: int) -> dict[int, int]:
        """Its expressions, by how many others of them have each as a part."""
        uses: dict[int, int] = {}
        left = [number]
        while left:
            at = left.pop()
            uses[at] = uses.get(at, 0) + 1
            node = self._nodes[at]
            if uses[at] == 1 and isinstance(node, Join):
                left += node.parts
        return uses

    # ---- named and written

    def shape(self, number: int) -> tuple[OrderShape, tuple[int, ...], int]:
        """What it looks like; of a chain its members from left to right, and how many at once."""
        self._describe()
        node = self._undivided(number)
        if not isinstance(node, Join):
            return OrderShape.MEMBER, (node,), 1
        places, at_once = self._chained(node)
        if places:
            is_one = self.arithmetic.rounds_late and at_once == len(places) > 2
            return OrderShape.AT_ONCE if is_one else OrderShape.CHAIN, places, at_once
        return OrderShape.PAIRWISE if self._is_pairwise(number) else OrderShape.OTHER, (), 0

    def _undivided(self, number: int) -> int | Join:
        """Its node; of an average in a wide type, that of the sum."""
        node = self._nodes[number]
        if isinstance(node, Join) and len(node.parts) == 1:
            return self._nodes[node.parts[0]]
        return node

    def _chained(self, node: Join) -> tuple[tuple[int, ...], int]:
        """Members from the first to the last, where joins add members to what there is.

        And how many sources a descriptor has at most; () if it is no chain.
        """
        places: list[int] = []  # from the last on
        at: int | Join = node
        at_once = 0
        while isinstance(at, Join):
            parts = [self._nodes[part] for part in at.parts]
            at_once = max(at_once, len(parts))
            inner = [k for k, part in enumerate(parts) if isinstance(part, Join)]
            if len(inner) > 1 or (inner and inner[0] > int(self.arithmetic.commutes)):
                return (), 0
            first = parts.pop(inner[0] if inner else 0)
            places += [part for part in reversed(parts) if not isinstance(part, Join)]
            at = first
        places.append(at)
        return _in_turn(places[::-1]), at_once

    def _is_pairwise(self, number: int) -> bool:
        """Whether two halves are joined, and so on down to the members."""
        left = [number]
        while left:
            node = self._nodes[left.pop()]
            if not isinstance(node, Join):
                continue
            if len(node.parts) == 1:
                left.append(node.parts[0])
                continue
            one, *others = node.parts
            if len(others) != 1 or self._members[one] != self._members[others[0]]:
                return False
            left += node.parts
        return True

    def outline(self, number: int) -> int:
        """Equal for expressions that differ in which members stand where only."""
        self._describe()
        return self._outlines[number]

    def name(self, number: int) -> str:
        """`chain r1, r2, …, r0`: what it looks like, in few words."""
        shape, places, at_once = self.shape(number)
        node = self._nodes[number]
        divisor = node.divisor if isinstance(node, Join) else 1
        over = "" if divisor == 1 else f", / {divisor}"
        match shape:
            case OrderShape.MEMBER:
                return f"r{places[0]}{over}"
            case OrderShape.AT_ONCE:
                return f"one sum {_listed(places)}{over}"
            case OrderShape.CHAIN:
                many = f", {at_once} at once" if at_once > 2 else ""
                return f"chain {_listed(places)}{many}{over}"
            case OrderShape.PAIRWISE:
                return f"pairwise tree of {self._members[number]}{over}"
            case _:
                return f"{self._spine(number)}{over}"

    def _spine(self, number: int) -> str:
        """A tree by what is joined last: `chain of 4 sums of 16`, or its parts."""
        node = self._undivided(number)
        assert isinstance(node, Join), "a tree"
        parts = list(node.parts)
        while True:  # down the greatest part, as long as the others are of one kind
            largest = max(range(len(parts)), key=lambda k: self._members[parts[k]])
            inner = self._nodes[parts[largest]]
            rest = [part for k, part in enumerate(parts) if k != largest]
            sizes = {self._members[part] for part in rest}
            if not isinstance(inner, Join) or self._members[parts[largest]] in sizes:
                break
            parts = [*inner.parts, *rest]
        counts = sorted({self._members[part] for part in parts})
        words = {self.shape(part)[0].value for part in parts if self._members[part] == counts[-1]}
        word = words.pop() if len(words) == 1 else OrderShape.OTHER.value
        each = f"{counts[-1]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"tree of {self._members[number]}: {len(parts)} parts, each a {word} of {each}"

    def text(self, number: int) -> str:
        """`((r0+r1)+r2)+r3`; each bracket is rounded; of many members, what it looks like."""
        self._describe()
        shape, places, _ = self.shape(number)
        is_long = shape in (OrderShape.CHAIN, OrderShape.AT_ONCE) and len(places) > MOST_NAMED
        if is_long or self._members[number] > MOST_TERMS:
            return self.name(number)
        return self._written(number, is_outermost=True)

    def _written(self, number: int, is_outermost: bool = False) -> str:
        node = self._nodes[number]
        if not isinstance(node, Join):
            return f"r{node}"
        parts = list(node.parts)
        if self.arithmetic.commutes:
            parts[:2] = sorted(
                parts[:2], key=lambda part: (-self._members[part], self._first[part])
            )
        text = self.arithmetic.sign.join(map(self._written, parts))
        if len(parts) > 1 and (not is_outermost or node.divisor != 1):
            text = f"({text})"
        return text if node.divisor == 1 else f"{text}/{node.divisor}"


def _in_turn(places: Sequence[int]) -> tuple[int, ...]:
    """Members of a chain; the first two, whose order is no matter, as they go on."""
    first = list(places)
    if len(first) > 2 and first[0] - first[1] == first[1] - first[2]:
        return tuple(first)
    if len(first) > 2 and first[1] - first[0] == first[0] - first[2]:
        first[:2] = first[1::-1]
    elif len(first) > 1 and len(first) < 3:
        first.sort()
    return tuple(first)


def _listed(places: Sequence[int], most: int = MOST_NAMED) -> str:
    """`r1, r2, … r63, r0`, the middle left out."""
    if len(places) <= most:
        return ", ".join(f"r{place}" for place in places)
    return (
        ", ".join(f"r{place}" for place in places[:3])
        + ", … "
        + ", ".join(f"r{place}" for place in places[-2:])
    )
