"""Semantic actions of the grammar: from a rule and its children to a node of the syntax tree.

Methods are named after rules and take the rule's children, as lark calls them. They hold no state:
one instance serves every text.
"""

from collections.abc import Sequence
from typing import Any

import attrs

from ncc_compiler.diagnostics import Source
from ncc_compiler.syntax.lexer import Lexeme, name_of
from ncc_compiler.syntax.tree import (
    MAX_INLINE_DEPTH,
    MAX_TYPE_DEPTH,
    ArrayText,
    Attribute,
    Body,
    ComputationSignature,
    ComputationText,
    File,
    Instruction,
    Operand,
    SourceTable,
    TupleText,
    TypeText,
    Word,
)

Children = Sequence[Any]


class TreeBuilder:
    """Callbacks of the grammar's rules."""

    def module(self, children: Children) -> File:
        """The file; instructions outside of braces are the body of the entry computation."""
        header, *rest = children
        name, attributes = header or (None, ())
        loose = tuple(child for child in rest if isinstance(child, Instruction))
        computations = [child for child in rest if isinstance(child, ComputationText)]
        if loose:
            computations.append(ComputationText(None, True, None, loose))
        return File(
            source=Source("", ""),
            name=name,
            header=attributes,
            tables=tuple(child for child in rest if isinstance(child, SourceTable)),
            computations=tuple(computations),
        )

    def header(self, children: Children) -> tuple[str, tuple[Attribute, ...]]:
        _, name, *attributes = children
        return name.text, tuple(map(_attribute, attributes))

    def table(self, children: Children) -> SourceTable:
        name, *rows = map(_word, children)
        return SourceTable(name, tuple(rows))

    def computation(self, children: Children) -> ComputationText:
        entry, name, signature, body, *attributes = children
        return ComputationText(
            _name(name), entry is not None, signature, body, tuple(map(_attribute, attributes))
        )

    def body(self, children: Children) -> Body:
        return tuple(children)

    def signature(self, children: Children) -> ComputationSignature:
        *parameters, result = (child for child in children if child is not None)
        return ComputationSignature(tuple(parameters), result)

    def parameter(self, children: Children) -> TypeText:
        written: TypeText = children[1]
        return written

    def instruction(self, children: Children) -> Instruction:
        root, name, operation = children
        return attrs.evolve(operation, name=_name(name), is_root=root is not None)

    def operation(self, children: Children) -> Instruction:
        """An instruction without its name, which the rule above knows."""
        kind, op, inside, *written = children
        operands = inside if isinstance(inside, tuple) else ()
        attributes = tuple(
            child if isinstance(child, Attribute) else _attribute(child) for child in written
        )
        nested = [operand.inline for operand in operands if operand.inline]
        for attribute in attributes:
            for body in attribute.inline:
                nested += body if isinstance(body, tuple) else ()
        depth = max((instruction.depth + 1 for instruction in nested), default=0)
        if depth > MAX_INLINE_DEPTH:
            operands, attributes = (), ()  # complained about later; walks of the tree stay shallow
        return Instruction(
            name=_word(op),
            type=kind,
            op=_word(op),
            operands=operands,
            payload=inside if isinstance(inside, Word) else None,
            attributes=attributes,
            is_root=False,
            depth=depth,
        )

    def arguments(self, children: Children) -> Word | tuple[Operand, ...] | None:
        inside: Word | tuple[Operand, ...] | None = children[0]
        return inside

    def statement(self, children: Children) -> Instruction:
        """An instruction that the lexer has read as a whole line."""
        plain: Instruction = children[0].instruction
        return plain

    def literal(self, children: Children) -> Word:
        return _word(children[0])

    def operand_list(self, children: Children) -> tuple[Operand, ...]:
        return tuple(children)

    def operand(self, children: Children) -> Operand:
        """The operand's name; a type before it repeats what its definition says."""
        kind, token = children
        name = _name(token)
        return Operand(name.text, name.start, name.end, kind)

    def nested(self, children: Children) -> Operand:
        """An operation in the place of the operand; it has no attributes."""
        operation = self.operation(children)
        return Operand(operation.op.text, operation.op.start, operation.op.end, None, operation)

    def inline(self, children: Children) -> Attribute:
        """An attribute that holds computations in the place of their names."""
        token, *callees = children
        key = token.text.partition("=")[0].rstrip()
        written = tuple(
            _name(callee) if isinstance(callee, Lexeme) else callee for callee in callees
        )
        return Attribute(key, "", token.start, token.start, token.end, written)

    def array_type(self, children: Children) -> ArrayText:
        token = children[0]
        return ArrayText(token.text, token.start, token.end)

    def tuple_type(self, children: Children) -> TupleText:
        elements = tuple(child for child in children if isinstance(child, ArrayText | TupleText))
        depth = 1 + max((element.depth for element in elements), default=0)
        kept = elements if depth <= MAX_TYPE_DEPTH else ()  # complained about later
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
