"""What XLA prints for an `async-start` whose computation is one op, spelt out again.

    s = ((f32[8]), f32[4], s32[]) slice-start(x), slice={[2:6]}
    d = f32[4] slice-done(s)

is an `async-start` of a computation of one `slice`, and its `async-done`. Every piece that is made
here lies where it was written, so that complaints about it find their place.
"""

from collections.abc import Iterable, Iterator, Mapping

import attrs

from ncc_compiler.ir.backend_config import CUSTOM_CALL
from ncc_compiler.ir.inline_text import FreshNames
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.reading import Reading
from ncc_compiler.syntax import tree

_START = "-start"
_HALVES = (_START, "-update", "-done")
_OF_THE_START = frozenset({"async_execution_thread", "control-predecessors", "metadata"})
"""Keys of attributes that say something of the start, not of the op."""


def spelt_out(file: tree.File, reading: Reading) -> tree.File:
    """The file without such starts, updates and dones; a computation more for each start."""
    if not any(_is_sugar(one.op.text) for body in file.computations for one in body.instructions):
        return file
    names = FreshNames(body.name.text for body in file.computations if body.name)
    computations: list[tree.Computation] = []
    for body in file.computations:
        known = {one.name.text: one for one in body.instructions}
        instructions: list[tree.Instruction] = []
        for one in body.instructions:
            op = one.op.text
            if not _is_sugar(op):
                instructions.append(one)
                continue
            _check(one, known, reading)
            plain = _renamed(one, "async" + op.removeprefix(_wrapped(op)))
            if op.endswith(_START):
                name = names.like(f"wrapped_{_wrapped(op)}")
                computations.append(_wrapper(one, known, name, reading))
                plain = _start(plain, name)
            instructions.append(plain)
        computations.append(attrs.evolve(body, instructions=tuple(instructions)))
    return attrs.evolve(file, computations=tuple(computations))


def _is_sugar(op: str) -> bool:
    """Whether it starts, carries on or ends an op of the table, and is none itself."""
    return op.endswith(_HALVES) and op not in OPS and _is_whole(_wrapped(op))


def _is_whole(op: str) -> bool:
    known = op in OPS and OPS[op].payload is None and not op.endswith(_HALVES)
    return known or op == CUSTOM_CALL


def _wrapped(op: str) -> str:
    return op.rpartition("-")[0]


def _check(one: tree.Instruction, known: Mapping[str, tree.Instruction], reading: Reading) -> None:
    """Complains of an update or a done whose operand is the start of another op."""
    op = one.op.text
    for operand in one.operands:
        began = known[operand.text].op.text if operand.text in known else op
        is_half = began.endswith(_HALVES[:2])
        if not op.endswith(_START) and is_half and _wrapped(began) not in ("async", _wrapped(op)):
            fact = f"{op} goes on with what {began} has begun"
            reading.complain("op-C6", fact, (operand.start, operand.end))


def _renamed(one: tree.Instruction, op: str) -> tree.Instruction:
    return attrs.evolve(one, op=tree.Word(op, one.op.start, one.op.end))


def _start(one: tree.Instruction, name: str) -> tree.Instruction:
    """The start, calling the computation of this name."""
    kept = [attribute for attribute in one.attributes if attribute.key in _OF_THE_START]
    calls = tree.Attribute("calls", f"%{name}", one.op.start, one.op.start, one.op.end)
    return attrs.evolve(one, attributes=(calls, *kept))


def _wrapper(
    one: tree.Instruction, known: Mapping[str, tree.Instruction], name: str, reading: Reading
) -> tree.Computation:
    """The computation of the one op; its parameters are named as the operands are."""
    parameters = list(_parameters(one, known, reading))
    names = FreshNames(parameter.name.text for parameter in parameters)
    result = one.type
    if isinstance(result, tree.TupleText) and len(result.elements) >= 2:
        result = result.elements[1]
    root = attrs.evolve(
        _renamed(one, _wrapped(one.op.text)),
        name=attrs.evolve(one.name, text=names.like(one.name.text)),
        type=result,
        operands=tuple(
            tree.Operand(parameter.name.text, operand.start, operand.end)
            for parameter, operand in zip(parameters, one.operands, strict=True)
        ),
        attributes=tuple(_of_the_op(one.attributes)),
        is_root=True,
    )
    return tree.Computation(
        tree.Word(name, one.op.start, one.op.end), False, None, (*parameters, root)
    )


def _of_the_op(attributes: Iterable[tree.Attribute]) -> Iterator[tree.Attribute]:
    for attribute in attributes:
        if attribute.key not in _OF_THE_START or attribute.key == "metadata":
            yield attribute


def _parameters(
    one: tree.Instruction, known: Mapping[str, tree.Instruction], reading: Reading
) -> Iterator[tree.Instruction]:
    """A parameter for each operand, of its type; of the one that the start says, if it has none."""
    names = FreshNames(())
    said = one.type.elements[:1] if isinstance(one.type, tree.TupleText) else ()
    kinds = said[0].elements if said and isinstance(said[0], tree.TupleText) else ()
    for number, operand in enumerate(one.operands):
        place = operand.start, operand.end
        kind = kinds[number] if number < len(kinds) else operand.type
        if operand.text in known:
            kind = known[operand.text].type or kind
            if kind is None:
                fact = f"the type of %{operand.text} does not follow for a {one.op.text} of it"
                reading.complain("op-C8", fact, place, f"write it: %{operand.text} = f32[2,3] …")
        yield tree.Instruction(
            name=tree.Word(names.like(operand.text), *place),
            type=kind or one.type,
            op=tree.Word("parameter", *place),
            operands=(),
            payload=tree.Word(str(number), *place),
            attributes=(),
            is_root=False,
        )
