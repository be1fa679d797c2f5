"""Constants that are tuples, spelt out as constants of arrays and tuples of them.

    c = (f32[2], (s32[])) constant(({1, 2}, (3)))

is a `tuple` of a constant {1, 2} and a `tuple` of a constant 3. Every piece that is made here lies
where it was written, so that complaints about it find their place.
"""

import itertools
import re
from collections.abc import Iterator

import attrs

from ncc_compiler.ir.literals import COMMENT, ELIDED
from ncc_compiler.syntax import tree

_MARK = re.compile(r"[(){},]")


def without_tuple_constants(file: tree.File) -> tree.File:
    """The file with arrays only as constants, but for literals that are not of their tuple."""
    if not any(_is_tuple(one) for body in file.computations for one in body.instructions):
        return file
    return attrs.evolve(
        file,
        computations=tuple(
            attrs.evolve(body, instructions=tuple(_spelt_out(body))) for body in file.computations
        ),
    )


def _is_tuple(one: tree.Instruction) -> bool:
    is_constant = one.op.text == "constant" and one.payload is not None
    return is_constant and isinstance(one.type, tree.TupleText)


def _spelt_out(body: tree.Computation) -> Iterator[tree.Instruction]:
    taken = {one.name.text for one in body.instructions}

    numbers: dict[str, Iterator[int]] = {}  # by stem; a wide tuple takes many

    def fresh(stem: str) -> str:
        number = numbers.setdefault(stem, itertools.count())
        return next(name for k in number if (name := f"{stem}.{k}") not in taken)

    def expand(one: tree.Instruction) -> Iterator[tree.Instruction]:
        if not _is_tuple(one):
            yield one
            return
        assert isinstance(one.type, tree.TupleText)
        assert one.payload is not None
        if one.type.depth > tree.MAX_TYPE_DEPTH:
            yield one  # refused when it is read
            return
        kinds = one.type.elements
        parts = _parts(one.payload, len(kinds))
        if parts is None:
            yield one  # refused when it is read
            return
        names: list[tree.Operand] = []
        for kind, part in zip(kinds, parts, strict=True):
            name = tree.Word(fresh(one.name.text), part.start, part.end)
            yield from expand(attrs.evolve(one, name=name, type=kind, payload=part, is_root=False))
            names.append(tree.Operand(name.text, part.start, part.end))
        op = attrs.evolve(one.op, text="tuple")
        yield attrs.evolve(one, op=op, operands=tuple(names), payload=None)

    for instruction in body.instructions:
        yield from expand(instruction)


def _parts(payload: tree.Word, count: int) -> list[tree.Word] | None:
    """The texts between the commas of `(a, b, …)`; None if there are not `count` of them."""
    blanked = COMMENT.sub(lambda comment: " " * len(comment[0]), payload.text)  # places stay
    text = blanked.strip()
    if text == ELIDED:
        return [payload] * count
    start = payload.start + blanked.index(text)
    depth, cuts = 0, [0]
    for mark in _MARK.finditer(text):
        if mark[0] in "({":
            depth += 1
        elif mark[0] in ")}":
            depth -= 1
        elif mark[0] == "," and depth == 1:
            cuts.append(mark.start())
        if depth == 0 and mark[0] in ")}" and mark.end() != len(text):
            return None
    if not (text.startswith("(") and text.endswith(")")) or depth:
        return None
    cuts.append(len(text) - 1)
    if len(cuts) == 2 and not text[1:-1].strip():
        return [] if count == 0 else None
    found = []
    for before, after in itertools.pairwise(cuts):
        inside = text[before + 1 : after]
        at = start + before + 1 + len(inside) - len(inside.lstrip())
        found.append(tree.Word(inside.strip(), at, at + len(inside.strip())))
    return found if len(found) == count else None
