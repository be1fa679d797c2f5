"""What the parser makes of each rule of the grammar: nodes of the syntax tree.

Methods are named after rules and take the rule's children, as lark calls them. They hold no state:
one instance serves every text.
"""

from collections.abc import Sequence
from typing import Any

from ncc_compiler.diagnostics import Source
from ncc_compiler.syntax.lexer import Lexeme, name_of
from ncc_compiler.syntax.tree import (
    MAX_TYPE_DEPTH,
    ArrayText,
    Attribute,
    Computation,
    File,
    Instruction,
    Signature,
    Table,
    TupleText,
    TypeText,
    Word,
)

Children = Sequence[Any]


class Grow:
    """Callbacks of the grammar's rules."""

    def module(self, children: Children) -> File:
        """The file; instructions outside of braces are the body of the entry computation."""
        header, *rest = children
        name, attributes = header or (None, ())
        loose = tuple(child for child in rest if isinstance(child, Instruction))
        computations = [child for child in rest if isinstance(child, Computation)]
        if loose:
            computations.append(Computation(None, True, None, loose))
        return File(
            source=Source("", ""),
            name=name,
            header=attributes,
            tables=tuple(child for child in rest if isinstance(child, Table)),
            computations=tuple(computations),
        )

    def header(self, children: Children) -> tuple[str, tuple[Attribute, ...]]:
        _, name, *attributes = children
        return name.text, tuple(map(_attribute, attributes))

    def table(self, children: Children) -> Table:
        name, *rows = map(_word, children)
        return Table(name, tuple(rows))

    def computation(self, children: Children) -> Computation:
        entry, name, signature, *rest = children
        body = tuple(child for child in rest if isinstance(child, Instruction))
        attributes = tuple(_attribute(child) for child in rest if isinstance(child, Lexeme))
        return Computation(_name(name), entry is not None, signature, body, attributes)

    def signature(self, children: Children) -> Signature:
        *parameters, result = (child for child in children if child is not None)
        return Signature(tuple(parameters), result)

    def parameter(self, children: Children) -> TypeText:
        written: TypeText = children[1]
        return written

    def instruction(self, children: Children) -> Instruction:
        root, name, kind, op, inside, *attributes = children
        return Instruction(
            name=_name(name),
            type=kind,
            op=_word(op),
            operands=inside if isinstance(inside, tuple) else (),
            payload=inside if isinstance(inside, Word) else None,
            attributes=tuple(map(_attribute, attributes)),
            is_root=root is not None,
        )

    def statement(self, children: Children) -> Instruction:
        """The instruction that a plain line is."""
        plain: Instruction = children[0].instruction
        return plain

    def literal(self, children: Children) -> Word:
        return _word(children[0])

    def operand_list(self, children: Children) -> tuple[Word, ...]:
        return tuple(children)

    def operand(self, children: Children) -> Word:
        """The operand's name; a type before it repeats what its definition says."""
        return _name(children[1])

    def array_type(self, children: Children) -> ArrayText:
        token = children[0]
        return ArrayText(token.text, token.start, token.end)

    def tuple_type(self, children: Children) -> TupleText:
        elements = tuple(child for child in children if isinstance(child, ArrayText | TupleText))
        depth = 1 + max((element.depth for element in elements), default=0)
        kept = elements if depth <= MAX_TYPE_DEPTH else ()
        return TupleText(kept, children[0].start, children[-1].end, depth)


def _word(token: Lexeme) -> Word:
    return Word(token.text, token.start, token.end)


def _name(token: Lexeme) -> Word:
    """The name that a token is or defines; its place includes the `%`."""
    name = name_of(token)
    return Word(name, token.start, token.start + len(name) + token.text.startswith("%"))


def _attribute(token: Lexeme) -> Attribute:
    key, _, value = token.text.partition("=")
    value = value.lstrip()
    return Attribute(key.rstrip(), value, token.start, token.end - len(value), token.end)
