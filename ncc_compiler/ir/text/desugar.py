"""Shorthand of HLO text, rewritten to plain instructions before the graph is built.

1. `hoist_inline`: operations and computations written in the place of their names.

       r = f32[8] add(f32[8] negate(x), y)
       c = f32[8] call(x), to_apply={ p = f32[8] parameter(0) ROOT n = f32[8] negate(p) }

   are two instructions each: the inner operation stands before its user, the inner computation
   before its caller. XLA prints asynchronous calls this way, and its tests are written so.
   `f32[8,8] constant(0)` is one number for all elements, and so a broadcast of a scalar.

2. `expand_async_sugar`: what XLA prints for an `async-start` whose computation is one op.

       s = ((f32[8]), f32[4], s32[]) slice-start(x), slice={[2:6]}
       d = f32[4] slice-done(s)

   is an `async-start` of a computation of one `slice`, and its `async-done`.

3. `expand_tuple_constants`: `constant(({1, 2}, (3)))` is a `tuple` of a constant {1, 2} and of a
   `tuple` of a constant 3.

4. `infer_missing_types`, on the graph: XLA's parser takes `y = negate(x)` and infers the type; so
   do these rules, for every op whose type follows. `check_operand_types` compares types that are
   written a second time, before operands.

Every instruction made here has the place of the text it was made from, so that complaints about it
point there.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.rules import Complaint, InstructionSpan, NodePart
from ncc_compiler.ir.text.backend_config import CUSTOM_CALL
from ncc_compiler.ir.text.literals import COMMENT, ELIDED
from ncc_compiler.ir.text.reading import TextReader, limits_fault
from ncc_compiler.ir.types import TokenType, Type
from ncc_compiler.ir.verify import diagnostic_of, inferred
from ncc_compiler.syntax import tree
from ncc_compiler.syntax.lexer import CALLEE_LISTS


class FreshNames:
    """Names that are not taken yet, derived from the requested one by a number."""

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


def hoist_inline(file: tree.File, reading: TextReader) -> tree.File:
    """The file with nothing inline; instructions that nest too deep are refused and left out."""
    instructions = [instruction for body in file.computations for instruction in body.instructions]
    if all(instruction.depth == 0 and not _is_splat(instruction) for instruction in instructions):
        return file
    too_deep = [
        instruction for instruction in instructions if instruction.depth > tree.MAX_INLINE_DEPTH
    ]
    for instruction in too_deep:
        depth = instruction.depth
        fact = f"operations nest {depth} deep here, at most {tree.MAX_INLINE_DEPTH} are read"
        hint = "define the inner ones on lines of their own"
        reading.complain("syntax-C2", fact, (instruction.op.start, instruction.op.end), hint)
    hoisting = _Hoisting(body.name.text for body in file.computations if body.name)
    for body in file.computations:
        kept = [
            instruction
            for instruction in body.instructions
            if instruction.depth <= tree.MAX_INLINE_DEPTH
        ]
        hoisting.computations.append(attrs.evolve(body, instructions=hoisting.flat(kept)))
    return attrs.evolve(
        file,
        computations=tuple(hoisting.computations),
        broken=file.broken | {instruction.name.text for instruction in too_deep},
        is_whole=file.is_whole and not too_deep,
    )


class _Hoisting:
    """The computations of a file, inline ones before their callers."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.computations: list[tree.ComputationText] = []
        self._names = FreshNames(taken)

    def flat(self, instructions: Iterable[tree.Instruction]) -> tree.Body:
        """The instructions of one computation, each operand a name."""
        instructions = list(instructions)
        names = FreshNames(instruction.name.text for instruction in instructions)
        flat: list[tree.Instruction] = []
        for instruction in instructions:
            self._add(instruction, names, flat)
        return tuple(flat)

    def _add(
        self, instruction: tree.Instruction, names: FreshNames, flat: list[tree.Instruction]
    ) -> None:
        """Append an instruction behind the operations that are its operands."""
        if _is_splat(instruction):
            instruction = _as_broadcast(instruction)
        operands = []
        for operand in instruction.operands:
            inner = operand.inline
            if inner is not None:
                name = names.like(inner.op.text)
                inner = attrs.evolve(inner, name=attrs.evolve(inner.op, text=name))
                self._add(inner, names, flat)
                operand = tree.Operand(name, operand.start, operand.end)
            operands.append(operand)
        attributes = tuple(
            self._named(attribute, instruction.name.text) if attribute.inline else attribute
            for attribute in instruction.attributes
        )
        flat.append(attrs.evolve(instruction, operands=tuple(operands), attributes=attributes))

    def _named(self, attribute: tree.Attribute, user: str) -> tree.Attribute:
        """The attribute with a name for each computation that is written in it."""
        names = []
        for callee in attribute.inline:
            if isinstance(callee, tuple):
                name = tree.Word(
                    self._names.like(f"{user}.{attribute.key}"), attribute.start, attribute.end
                )
                body = self.flat(callee)
                self.computations.append(tree.ComputationText(name, False, None, body))
                names.append(f"%{name.text}")
            else:
                names.append(f"%{callee.text}")
        is_single_body = len(names) == 1 and isinstance(attribute.inline[0], tuple)
        is_list = attribute.key in CALLEE_LISTS or not is_single_body
        value = "{" + ", ".join(names) + "}" if is_list else names[0]
        return attrs.evolve(attribute, value=value, inline=())


_SIZES = re.compile(r"\[\s*\d.*\Z", re.DOTALL)


def _is_splat(instruction: tree.Instruction) -> bool:
    """Whether it is an array constant with a single number in its parentheses."""
    if (
        instruction.payload is None
        or instruction.op.text != "constant"
        or not isinstance(instruction.type, tree.ArrayText)
    ):
        return False
    text = instruction.payload.text
    return (
        "{" not in text and "..." not in text and _SIZES.search(instruction.type.text) is not None
    )


def _as_broadcast(instruction: tree.Instruction) -> tree.Instruction:
    """A broadcast whose operand is the scalar constant, inline."""
    assert isinstance(instruction.type, tree.ArrayText), instruction.name
    kind = attrs.evolve(instruction.type, text=_SIZES.sub("[]", instruction.type.text))
    scalar = attrs.evolve(instruction, type=kind, attributes=(), is_root=False)
    operand = tree.Operand(
        instruction.op.text, instruction.op.start, instruction.op.end, None, scalar
    )
    op = attrs.evolve(instruction.op, text="broadcast")
    return attrs.evolve(instruction, op=op, operands=(operand,), payload=None)


_START = "-start"
_ASYNC_SUFFIXES = (_START, "-update", "-done")
_START_ATTRIBUTES = frozenset({"async_execution_thread", "control-predecessors", "metadata"})
"""Keys of attributes that belong to the start, not to the op inside."""


def expand_async_sugar(file: tree.File, reading: TextReader) -> tree.File:
    """The file without such starts, updates and dones; each start gets a new computation."""
    if not any(
        _is_sugar(instruction.op.text)
        for body in file.computations
        for instruction in body.instructions
    ):
        return file
    names = FreshNames(body.name.text for body in file.computations if body.name)
    computations: list[tree.ComputationText] = []
    for body in file.computations:
        known = {instruction.name.text: instruction for instruction in body.instructions}
        instructions: list[tree.Instruction] = []
        for instruction in body.instructions:
            op = instruction.op.text
            if not _is_sugar(op):
                instructions.append(instruction)
                continue
            _check_started_op(instruction, known, reading)
            plain = _renamed(instruction, "async" + op.removeprefix(_wrapped(op)))
            if op.endswith(_START):
                name = names.like(f"wrapped_{_wrapped(op)}")
                computations.append(_wrapper_computation(instruction, known, name, reading))
                kept = [row for row in plain.attributes if row.key in _START_ATTRIBUTES]
                op_place = (plain.op.start, plain.op.start, plain.op.end)
                calls = tree.Attribute("calls", f"%{name}", *op_place)
                plain = attrs.evolve(plain, attributes=(calls, *kept))
            instructions.append(plain)
        computations.append(attrs.evolve(body, instructions=tuple(instructions)))
    return attrs.evolve(file, computations=tuple(computations))


def _is_sugar(op: str) -> bool:
    """Whether it is the start, update or done of an op of the table, and not in the table."""
    if not op.endswith(_ASYNC_SUFFIXES) or op in OPS:
        return False
    inner = _wrapped(op)
    is_op = inner in OPS and OPS[inner].payload is None and not inner.endswith(_ASYNC_SUFFIXES)
    return is_op or inner == CUSTOM_CALL


def _wrapped(op: str) -> str:
    """`slice` of `slice-start`."""
    return op.rpartition("-")[0]


def _check_started_op(
    instruction: tree.Instruction, known: Mapping[str, tree.Instruction], reading: TextReader
) -> None:
    """Complains of an update or a done whose operand is the start of another op."""
    op = instruction.op.text
    for operand in instruction.operands:
        start_op = known[operand.text].op.text if operand.text in known else op
        is_async = start_op.endswith(_ASYNC_SUFFIXES[:2])
        if (
            not op.endswith(_START)
            and is_async
            and _wrapped(start_op) not in ("async", _wrapped(op))
        ):
            fact = f"{op} goes on with what {start_op} has begun"
            reading.complain("op-C6", fact, (operand.start, operand.end))


def _renamed(instruction: tree.Instruction, op: str) -> tree.Instruction:
    return attrs.evolve(instruction, op=tree.Word(op, instruction.op.start, instruction.op.end))


def _wrapper_computation(
    instruction: tree.Instruction,
    known: Mapping[str, tree.Instruction],
    name: str,
    reading: TextReader,
) -> tree.ComputationText:
    """The computation of the single op; its parameters have the names of the operands."""
    parameters = list(_parameters(instruction, known, reading))
    names = FreshNames(parameter.name.text for parameter in parameters)
    result = instruction.type
    if isinstance(result, tree.TupleText) and len(result.elements) >= 2:
        result = result.elements[1]
    root = attrs.evolve(
        _renamed(instruction, _wrapped(instruction.op.text)),
        name=attrs.evolve(instruction.name, text=names.like(instruction.name.text)),
        type=result,
        operands=tuple(
            tree.Operand(parameter.name.text, operand.start, operand.end)
            for parameter, operand in zip(parameters, instruction.operands, strict=True)
        ),
        attributes=tuple(
            attribute
            for attribute in instruction.attributes
            if attribute.key not in _START_ATTRIBUTES or attribute.key == "metadata"
        ),
        is_root=True,
    )
    return tree.ComputationText(
        tree.Word(name, instruction.op.start, instruction.op.end), False, None, (*parameters, root)
    )


def _parameters(
    instruction: tree.Instruction, known: Mapping[str, tree.Instruction], reading: TextReader
) -> Iterator[tree.Instruction]:
    """A parameter for each operand, with its type as defined, or as the start's type repeats it."""
    names = FreshNames(())
    start_types = (
        instruction.type.elements[:1] if isinstance(instruction.type, tree.TupleText) else ()
    )
    kinds = (
        start_types[0].elements
        if start_types and isinstance(start_types[0], tree.TupleText)
        else ()
    )
    for number, operand in enumerate(instruction.operands):
        place = operand.start, operand.end
        kind = kinds[number] if number < len(kinds) else operand.type
        if operand.text in known:
            kind = known[operand.text].type or kind
            if kind is None:
                fact = (
                    f"the type of %{operand.text} does not follow for a {instruction.op.text} of it"
                )
                reading.complain("op-C8", fact, place, f"write it: %{operand.text} = f32[2,3] …")
        yield tree.Instruction(
            name=tree.Word(names.like(operand.text), *place),
            type=kind or instruction.type,
            op=tree.Word("parameter", *place),
            operands=(),
            payload=tree.Word(str(number), *place),
            attributes=(),
            is_root=False,
        )


_TUPLE_MARK = re.compile(r"[(){},]")


def expand_tuple_constants(file: tree.File) -> tree.File:
    """The file with tuple constants expanded, except literals that do not match their tuple."""
    if not any(
        _is_tuple_constant(instruction)
        for body in file.computations
        for instruction in body.instructions
    ):
        return file
    return attrs.evolve(
        file,
        computations=tuple(
            attrs.evolve(body, instructions=tuple(_with_expanded_tuples(body)))
            for body in file.computations
        ),
    )


def _is_tuple_constant(instruction: tree.Instruction) -> bool:
    is_constant = instruction.op.text == "constant" and instruction.payload is not None
    return is_constant and isinstance(instruction.type, tree.TupleText)


def _with_expanded_tuples(body: tree.ComputationText) -> Iterator[tree.Instruction]:
    taken = {instruction.name.text for instruction in body.instructions}
    numbers: dict[str, Iterator[int]] = {}  # by stem, so that large tuples take linear time

    def fresh(stem: str) -> str:
        number = numbers.setdefault(stem, itertools.count())
        return next(name for k in number if (name := f"{stem}.{k}") not in taken)

    def expand(constant: tree.Instruction) -> Iterator[tree.Instruction]:
        if not _is_tuple_constant(constant):
            yield constant
            return
        assert isinstance(constant.type, tree.TupleText)
        assert constant.payload is not None
        if constant.type.depth > tree.MAX_TYPE_DEPTH:
            yield constant  # refused when it is read
            return
        kinds = constant.type.elements
        parts = _tuple_parts(constant.payload, len(kinds))
        if parts is None:
            yield constant  # refused when it is read
            return
        names: list[tree.Operand] = []
        for kind, part in zip(kinds, parts, strict=True):
            name = tree.Word(fresh(constant.name.text), part.start, part.end)
            yield from expand(
                attrs.evolve(constant, name=name, type=kind, payload=part, is_root=False)
            )
            names.append(tree.Operand(name.text, part.start, part.end))
        op = attrs.evolve(constant.op, text="tuple")
        yield attrs.evolve(constant, op=op, operands=tuple(names), payload=None)

    for instruction in body.instructions:
        yield from expand(instruction)


def _tuple_parts(payload: tree.Word, count: int) -> list[tree.Word] | None:
    """The texts between the commas of `(a, b, …)`; None if there are not `count` of them."""
    blanked = COMMENT.sub(lambda comment: " " * len(comment[0]), payload.text)  # places stay
    text = blanked.strip()
    if text == ELIDED:
        return [payload] * count
    start = payload.start + blanked.index(text)
    depth, separators = 0, [0]
    for mark in _TUPLE_MARK.finditer(text):
        if mark[0] in "({":
            depth += 1
        elif mark[0] in ")}":
            depth -= 1
        elif mark[0] == "," and depth == 1:
            separators.append(mark.start())
        if depth == 0 and mark[0] in ")}" and mark.end() != len(text):
            return None
    if not (text.startswith("(") and text.endswith(")")) or depth:
        return None
    separators.append(len(text) - 1)
    if len(separators) == 2 and not text[1:-1].strip():
        return [] if count == 0 else None
    parts = []
    for before, after in itertools.pairwise(separators):
        inside = text[before + 1 : after]
        at = start + before + 1 + len(inside) - len(inside.lstrip())
        parts.append(tree.Word(inside.strip(), at, at + len(inside.strip())))
    return parts if len(parts) == count else None


HOLE = "?"
"""The op of a node that stands for an instruction with an error."""

UNTYPED = TokenType()
"""The type of a node until the one that its text leaves out is known."""

NOT_INFERRED = frozenset(
    {
        "bitcast",
        "bitcast-convert",
        "broadcast",
        "constant",
        "convert",
        "custom-call",
        "iota",
        "parameter",
        "recv",
        "reshape",
        "rng-bit-generator",
        "stochastic-convert",
    }
)
"""Ops whose result type does not follow from their operands and attributes."""


def missing_type(op: str) -> Complaint:
    fact = f"the result type of a {op} does not follow from its operands"
    return Complaint("op-C8", fact, NodePart.OP, f"write it before the op: f32[2,3] {op}(…)")


def infer_missing_types(
    module: Module, untyped: Mapping[str, frozenset[NodeId]], reading: TextReader
) -> Module:
    """The module with types for `untyped` nodes; a node without a known type becomes a hole."""
    computations = dict(module.computations)  # callees come first
    for name, computation in module.computations.items():
        if not untyped.get(name):
            continue
        nodes = list(computation.nodes)
        unknown: set[NodeId] = set()
        for position, node in enumerate(computation.nodes):
            is_untyped = position in untyped[name]
            if node.op == HOLE or not unknown.isdisjoint(node.operands):
                nodes[position] = attrs.evolve(node, op=HOLE, operands=(), attributes={})
                unknown |= {NodeId(position)} if is_untyped else set()
            elif is_untyped:
                current = attrs.evolve(module, computations=computations)
                kinds = tuple(nodes[operand].type for operand in node.operands)
                kind = _type_of(current, node, kinds, nodes, reading)
                if kind is None:
                    unknown.add(NodeId(position))
                    nodes[position] = attrs.evolve(node, op=HOLE, operands=(), attributes={})
                else:
                    nodes[position] = attrs.evolve(node, type=kind)
        computations[name] = attrs.evolve(computation, nodes=tuple(nodes))
    return attrs.evolve(module, computations=computations)


def _type_of(
    module: Module,
    node: Node,
    operands: tuple[Type, ...],
    nodes: Sequence[Node],
    reading: TextReader,
) -> Type | None:
    """The inferred type, or None after a complaint."""
    inference = inferred(module, node, operands)
    complaints: list[Complaint] = []
    kind = None
    try:  # the generator yields complaints and returns the type
        while True:
            complaints.append(next(inference))
    except StopIteration as end:
        kind = end.value
    if kind is UNTYPED:
        complaints = [missing_type(node.op)]
    if not complaints and (fault := limits_fault(kind)):
        complaints = [Complaint(fault[0], f"the result of {node.op} is {kind}: {fault[1]}")]
    reading.diagnostics += [diagnostic_of(nodes, node, complaint) for complaint in complaints]
    return None if complaints else kind


def check_operand_types(computation: Computation, reading: TextReader) -> None:
    """A type before an operand must be that of its definition."""
    for node in computation.nodes:
        if node.op == HOLE or not isinstance(node.span, InstructionSpan):
            continue
        pairs = zip(node.operands, node.span.instruction.operands, strict=True)
        for position, (operand, written) in enumerate(pairs):
            if written.type is None:
                continue
            declared, defined = reading.type_of(written.type), computation.nodes[operand]
            if declared is not None and defined.op != HOLE and declared != defined.type:
                fact = f"%{written.text} is {defined.type}, the type before it says {declared}"
                complaint = Complaint("op-C7", fact, position)
                diagnostic = diagnostic_of(computation.nodes, node, complaint)
                place = reading.span(written.type.start, written.type.end)
                hint = "correct the type before the operand, or leave it out"
                reading.diagnostics.append(attrs.evolve(diagnostic, span=place, help=hint))
