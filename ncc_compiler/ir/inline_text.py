"""Operations and computations that are written in the place of their names, given names.

    r = f32[8] add(f32[8] negate(x), y)
    c = f32[8] call(x), to_apply={ p = f32[8] parameter(0) ROOT n = f32[8] negate(p) }

are two instructions each: the inner operation stands before its user, the inner computation
before the one that calls it. XLA prints started calls this way, and its tests are written so.
`f32[8,8] constant(0)` is one number for all elements, and so a broadcast of a scalar.
"""

import re
from collections.abc import Iterable

import attrs

from ncc_compiler.ir.reading import Reading
from ncc_compiler.syntax import tree
from ncc_compiler.syntax.statement import CALLEE_LISTS


class FreshNames:
    """Names that nobody has; the first is the one that is asked for."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def like(self, name: str) -> str:
        free, number = name, self._numbers.get(name, 0)
        while free in self._taken:
            number += 1
            free = f"{name}.{number}"
        self._numbers[name] = number
        self._taken.add(free)
        return free


def with_names(file: tree.File, reading: Reading) -> tree.File:
    """The file with nothing written in place; what nests too deep is complained of and left out."""
    instructions = [one for body in file.computations for one in body.instructions]
    if all(one.depth == 0 and not _is_splat(one) for one in instructions):
        return file
    too_deep = [one for one in instructions if one.depth > tree.MAX_INLINE_DEPTH]
    for one in too_deep:
        fact = f"operations nest {one.depth} deep here, at most {tree.MAX_INLINE_DEPTH} are read"
        hint = "define the inner ones on lines of their own"
        reading.complain("syntax-C2", fact, (one.op.start, one.op.end), hint)
    naming = _Naming(body.name.text for body in file.computations if body.name)
    for body in file.computations:
        kept = [one for one in body.instructions if one.depth <= tree.MAX_INLINE_DEPTH]
        naming.found.append(attrs.evolve(body, instructions=naming.flat(kept)))
    return attrs.evolve(
        file,
        computations=tuple(naming.found),
        broken=file.broken | {one.name.text for one in too_deep},
        is_whole=file.is_whole and not too_deep,
    )


class _Naming:
    """The computations of a file, those that had no name before those that call them."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.found: list[tree.Computation] = []
        self._names = FreshNames(taken)

    def flat(self, instructions: Iterable[tree.Instruction]) -> tree.Body:
        """The instructions of one computation, each operand a name."""
        instructions = list(instructions)
        names = FreshNames(one.name.text for one in instructions)
        flat: list[tree.Instruction] = []
        for one in instructions:
            self._add(one, names, flat)
        return tuple(flat)

    def _add(self, one: tree.Instruction, names: FreshNames, flat: list[tree.Instruction]) -> None:
        if _is_splat(one):
            one = _as_broadcast(one)
        operands = []
        for operand in one.operands:
            inner = operand.inline
            if inner is not None:
                name = names.like(inner.op.text)
                inner = attrs.evolve(inner, name=attrs.evolve(inner.op, text=name))
                self._add(inner, names, flat)
                operand = tree.Operand(name, operand.start, operand.end)
            operands.append(operand)
        attributes = tuple(
            self._named(attribute, one.name.text) if attribute.inline else attribute
            for attribute in one.attributes
        )
        flat.append(attrs.evolve(one, operands=tuple(operands), attributes=attributes))

    def _named(self, attribute: tree.Attribute, user: str) -> tree.Attribute:
        """The attribute with a name for each computation that is written in it."""
        names = []
        for callee in attribute.inline:
            if isinstance(callee, tuple):
                name = tree.Word(
                    self._names.like(f"{user}.{attribute.key}"), attribute.start, attribute.end
                )
                body = self.flat(callee)
                self.found.append(tree.Computation(name, False, None, body))
                names.append(f"%{name.text}")
            else:
                names.append(f"%{callee.text}")
        is_one = len(names) == 1 and isinstance(attribute.inline[0], tuple)
        is_list = attribute.key in CALLEE_LISTS or not is_one
        value = "{" + ", ".join(names) + "}" if is_list else names[0]
        return attrs.evolve(attribute, value=value, inline=())


_SIZES = re.compile(r"\[\s*\d.*\Z", re.DOTALL)


def _is_splat(one: tree.Instruction) -> bool:
    """Whether it is an array constant with the value of one element in its parentheses."""
    if one.payload is None or one.op.text != "constant" or not isinstance(one.type, tree.ArrayText):
        return False
    text = one.payload.text
    return "{" not in text and "..." not in text and _SIZES.search(one.type.text) is not None


def _as_broadcast(one: tree.Instruction) -> tree.Instruction:
    """A broadcast of the constant scalar in place."""
    assert isinstance(one.type, tree.ArrayText), one.name
    kind = attrs.evolve(one.type, text=_SIZES.sub("[]", one.type.text))
    scalar = attrs.evolve(one, type=kind, attributes=(), is_root=False)
    operand = tree.Operand(one.op.text, one.op.start, one.op.end, None, scalar)
    op = attrs.evolve(one.op, text="broadcast")
    return attrs.evolve(one, op=op, operands=(operand,), payload=None)
