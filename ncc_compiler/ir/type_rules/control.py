"""Result types of ops that run computations, of tokens, and of asynchronous start/done pairs.

Also of send, recv and their dones. `ir/transfers.py` checks that sends match recvs, which is no
rule of a single node. The sentences of the rules stand in `op_tables/control.py`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from ncc_compiler.ir.collectives import PAIRS_OF_TRANSFERS, moves_slices, pairs_attribute
from ncc_compiler.ir.graph import Computation
from ncc_compiler.ir.op_tables.control import DATA_OF_ARRAYS
from ncc_compiler.ir.order import branch_names
from ncc_compiler.ir.rules import Complaint, NodePart
from ncc_compiler.ir.type_rules.collectives import (
    COLLECTIVE_RULES,
    VARIABLE_SIZE_RULES,
    id_space,
    range_hint,
)
from ncc_compiler.ir.type_rules.context import (
    Inference,
    InferenceContext,
    TypeRule,
    listed,
    one_or_tuple,
    parameter_types,
    result_type,
    without_dimension,
)
from ncc_compiler.ir.types import ArrayType, TokenType, TupleType, Type
from ncc_runtime.neff.shared.dtypes import DType

_PRED, _INDEX = ArrayType(DType.PRED), ArrayType(DType.S32)


def _call(key: str) -> TypeRule:
    """A call: operands are arguments of the computation, whose result is the result."""

    def rule(ctx: InferenceContext) -> Inference:
        callee = ctx.callee(key)
        if callee is None:
            return None
        parameters = parameter_types(callee)
        if len(parameters) != len(ctx.operands):
            fact = f"%{callee.name} takes {len(parameters)} operands, {len(ctx.operands)} are given"
            yield ctx.complain(1, fact, key)
        for position, (argument, kind) in enumerate(zip(ctx.operands, parameters, strict=False)):
            if argument != kind:
                fact = f"operand {position} is {argument}, parameter {position} of "
                yield ctx.complain(2, f"{fact}%{callee.name} is {kind}", position)
        return result_type(callee)

    return rule


def _signature(computation: Computation) -> str:
    parameters, result = parameter_types(computation), result_type(computation)
    return f"%{computation.name} takes ({listed(parameters)}) and returns {result}"


def _while(ctx: InferenceContext) -> Inference:
    (state,) = ctx.operands
    for number, key, result in ((1, "condition", _PRED), (2, "body", state)):
        callee = ctx.callee(key)
        if callee is None:
            continue
        if parameter_types(callee) != [state] or result_type(callee) != result:
            fact = f"{_signature(callee)}, the operand is {state}"
            hint = f"it should take one {state} and return {result}"
            yield ctx.complain(number, fact, key, hint)
    return state


def _conditional(ctx: InferenceContext) -> Inference:
    selector, arguments = ctx.operands[0], ctx.operands[1:]
    if selector not in (_PRED, _INDEX):
        yield ctx.complain(1, f"the first operand is {selector}, not {_PRED} or {_INDEX}", 0)
        return None
    names = branch_names(ctx.node)
    if not names or ("branch_computations" in ctx.node.attributes) != (selector == _INDEX):
        example = "true_computation=%f, false_computation=%g"
        if selector == _INDEX:
            example = "branch_computations={%f, %g}"
        fact = f"{selector} does not choose between what is named"
        yield ctx.complain(2, fact, NodePart.OP, f"write {example}")
        return None
    if len(names) != len(arguments):
        fact = f"{len(names)} branches, {len(arguments)} operands for them"
        yield ctx.complain(3, fact)
        return None
    results: list[Type] = []
    for position, (name, kind) in enumerate(zip(names, arguments, strict=True), start=1):
        branch = ctx.computation(name)
        if branch is None:
            continue
        if parameter_types(branch) != [kind]:
            fact = f"{_signature(branch)}, its operand is {kind}"
            yield ctx.complain(4, fact, position)
        results.append(result_type(branch))
        if results[-1] != results[0]:
            fact = f"branches return {results[0]} and {results[-1]}"
            yield ctx.complain(5, fact)
            return None
    return results[0] if results else None


def _scan(ctx: InferenceContext) -> Inference:
    """A tuple of the outputs, stacked over the steps, and of the carries.

    `to_apply` takes a slice of each input and the carries; it returns a slice of each output and
    the carries.
    """
    callee, carry_count = ctx.callee(), ctx.node.integer("num_carries")
    if callee is None:
        return None
    operands, root = ctx.arrays, result_type(callee)
    results = root.elements if isinstance(root, TupleType) else (root,)
    if not 0 <= carry_count <= min(len(operands), len(results)):
        fact = f"{carry_count} carries, {len(operands)} operands and {len(results)} results of a"
        yield ctx.complain(2, f"{fact} step", "num_carries")
        return None
    inputs = operands[: len(operands) - carry_count]
    carries = operands[len(operands) - carry_count :]
    outputs = [
        kind for kind in results[: len(results) - carry_count] if isinstance(kind, ArrayType)
    ]
    declared = ctx.node.type.elements if isinstance(ctx.node.type, TupleType) else ()
    # the arrays that show the number of steps: inputs, or without any the declared outputs
    stacked = inputs or tuple(
        kind for kind in declared[: len(outputs)] if isinstance(kind, ArrayType)
    )
    dimensions = ctx.node.integers("dimensions")
    dimension = dimensions[0] if len(dimensions) == 1 else -1
    lengths = {kind.shape[dimension] for kind in stacked if 0 <= dimension < kind.rank}
    if (
        any(not 0 <= dimension < kind.rank for kind in inputs)
        or any(not 0 <= dimension <= kind.rank for kind in outputs)
        or len(lengths) > 1
    ):
        arrays = listed(stacked)
        fact = f"{list(dimensions)} is not one dimension in which {arrays} are equally long"
        yield ctx.complain(1, fact, "dimensions")
        return None
    if not lengths:
        yield ctx.complain(4, "nothing says how many steps there are", NodePart.TYPE)
        return None
    slices = [ArrayType(kind.dtype, without_dimension(kind.shape, dimension)) for kind in inputs]
    expected = [*slices, *carries]
    if parameter_types(callee) != expected or results != (*outputs, *carries):
        hint = f"({listed(expected)}) and ends with the carries ({listed(carries)})"
        yield ctx.complain(3, f"{_signature(callee)}; it should take {hint}", "to_apply")
        return None
    (length,) = lengths
    stacked_outputs = (
        ArrayType(kind.dtype, (*kind.shape[:dimension], length, *kind.shape[dimension:]))
        for kind in outputs
    )
    return TupleType((*stacked_outputs, *carries))


def _after_all(ctx: InferenceContext) -> Inference:
    for position, kind in enumerate(ctx.operands):
        if not isinstance(kind, TokenType):
            yield ctx.complain(1, f"operand {position} is {kind}, not {TokenType()}", position)
    return TokenType()


def _add_dependency(ctx: InferenceContext) -> Inference:
    kind, token = ctx.operands
    if not isinstance(token, TokenType):
        yield ctx.complain(1, f"the second operand is {token}, not {TokenType()}", 1)
    return kind


def _same_as_operand(ctx: InferenceContext) -> Inference:
    yield from ()
    return ctx.operands[0]


def _is_context(kind: Type) -> bool:
    """Whether it may follow operand and result of a start; it has no meaning here."""
    return isinstance(kind, ArrayType) and not kind.shape and kind.dtype.is_integer


def _with_contexts(declared: Type, *forms: TupleType) -> Type:
    """The declared type, if it is one of the forms followed by contexts; else the first form."""
    if isinstance(declared, TupleType):
        head, contexts = TupleType(declared.elements[:2]), declared.elements[2:]
        if head in forms and all(map(_is_context, contexts)):
            return declared
    return forms[0]


def _start(inner: TypeRule) -> TypeRule:
    """A `-start` op: a tuple of operand, result and contexts; several operands are a tuple."""

    def rule(ctx: InferenceContext) -> Inference:
        result = yield from inner(ctx)
        if result is None:
            return None
        operands = ctx.operands[:1] if moves_slices(ctx.node) else ctx.operands
        plain = TupleType((one_or_tuple(operands), result))
        # XLA also accepts a tuple around a single operand
        return _with_contexts(ctx.node.type, plain, TupleType((TupleType(operands), result)))

    return rule


def _copy_start(ctx: InferenceContext) -> Inference:
    yield from ()
    (operand,) = ctx.operands
    return _with_contexts(ctx.node.type, TupleType((operand, operand)))


def _async_start(ctx: InferenceContext) -> Inference:
    result = yield from _call("calls")(ctx)
    if result is None:
        return None
    return _with_contexts(ctx.node.type, TupleType((TupleType(ctx.operands), result)))


def _element_of_start(index: int) -> TypeRule:
    """A `-done` op: an element of the tuple that the start returns."""

    def rule(ctx: InferenceContext) -> Inference:
        (kind,) = ctx.operands
        if isinstance(kind, TupleType) and len(kind.elements) >= 2:
            return kind.elements[index]
        yield ctx.complain(1, f"the operand is {kind}, not what a start gives", 0)
        return None

    return rule


def _async_update(ctx: InferenceContext) -> Inference:
    yield from _element_of_start(1)(ctx)
    return ctx.operands[0]


_RAGGED = "ragged-all-to-all"
_ASYNCHRONOUS = {**COLLECTIVE_RULES, _RAGGED: VARIABLE_SIZE_RULES[_RAGGED]}

CONTROL_RULES: Mapping[str, TypeRule] = {
    "call": _call("to_apply"),
    "fusion": _call("calls"),
    "while": _while,
    "conditional": _conditional,
    "scan": _scan,
    "add-dependency": _add_dependency,
    "after-all": _after_all,
    "domain": _same_as_operand,
    "opt-barrier": _same_as_operand,
    "optimization-barrier": _same_as_operand,
    **{f"{op}-start": _start(rule) for op, rule in _ASYNCHRONOUS.items()},
    **{f"{op}-done": _element_of_start(1) for op in _ASYNCHRONOUS},
    "all-reduce-start": COLLECTIVE_RULES["all-reduce"],
    "all-reduce-done": _same_as_operand,
    "copy-start": _copy_start,
    "copy-done": _element_of_start(0),
    "async-start": _async_start,
    "async-update": _async_update,
    "async-done": _element_of_start(1),
}


_CONTEXT = ArrayType(DType.U32)


def _send(ctx: InferenceContext) -> Inference:
    data, token = ctx.operands
    yield from _check_transfer(ctx, data)
    if not isinstance(token, TokenType):
        yield ctx.complain(7, f"operand 1 is {token}, not {TokenType()}", 1)
    declared = ctx.node.type
    plain = TupleType((data, _CONTEXT, TokenType()))
    return declared if is_started(declared) and data_of(declared) == data else plain


def _recv(ctx: InferenceContext) -> Inference:
    (token,) = ctx.operands
    if not isinstance(token, TokenType):
        yield ctx.complain(7, f"operand 0 is {token}, not {TokenType()}", 0)
    declared = ctx.node.type
    if not is_started(declared):
        fact = f"the result is {declared}, not a tuple such as (f32[4], {_CONTEXT}, {TokenType()})"
        yield ctx.complain(9, fact)
        return None
    yield from _check_transfer(ctx, data_of(declared))
    return declared


def _check_transfer(ctx: InferenceContext, data: Type) -> Iterator[Complaint]:
    """The rules that send and recv share."""
    if ctx.attribute("is_host_transfer"):
        fact = f"{ctx.node.op} is a transfer with the host, which takes no part in a program"
        hint = "what the host gives and gets are inputs and outputs"
        yield ctx.complain(1, fact, "is_host_transfer", hint)
        return
    yield from _check_pairs(ctx)
    arrays = data.elements if isinstance(data, TupleType) else (data,)
    if not arrays or not all(isinstance(array, ArrayType) for array in arrays):
        yield ctx.complain_of(DATA_OF_ARRAYS, f"the data is {data}")


def _check_pairs(ctx: InferenceContext) -> Iterator[Complaint]:
    place = "frontend_attributes"
    try:
        written = pairs_attribute(ctx.node)
    except ValueError as error:
        yield ctx.complain(2, f"{PAIRS_OF_TRANSFERS}: {error}", place)
        return
    if written is None:
        fact = f"{ctx.node.op} does not say which ranks send to which"
        hint = f"{place}={{{PAIRS_OF_TRANSFERS}={{{{0,1}},{{1,2}}}}}}"
        yield ctx.complain(2, fact, place, hint)
        return
    noun, count = id_space(ctx)
    for number, end, side in ((3, "source", 0), (4, "target", 1)):
        times = Counter(pair[side] for pair in written.pairs)
        for rank in sorted(rank for rank, repeats in times.items() if repeats > 1):
            fact = f"{noun} {rank} is the {end} of {times[rank]} pairs"
            yield ctx.complain(number, fact, place)
    for rank in sorted({rank for pair in written.pairs for rank in pair if rank >= count}):
        fact = f"{noun} {rank} is out of range: there are {count}"
        yield ctx.complain(5, fact, place, range_hint(ctx, noun, rank))


def is_started(kind: Type) -> bool:
    """Whether it is the type of a send or recv: data, a context and a token."""
    if not isinstance(kind, TupleType) or len(kind.elements) != 3:
        return False
    _, context, token = kind.elements
    return _is_context(context) and isinstance(token, TokenType)


def data_of(kind: Type) -> Type:
    """The data in the result type of a send or recv."""
    assert isinstance(kind, TupleType), kind
    return kind.elements[0]


def _transfer_done(*elements: int) -> TypeRule:
    """A done of a transfer: elements of the result of its start."""

    def rule(ctx: InferenceContext) -> Inference:
        (kind,) = ctx.operands
        if not isinstance(kind, TupleType) or not is_started(kind):
            start = ctx.node.op.removesuffix("-done")
            yield ctx.complain(1, f"the operand is {kind}, not what a {start} gives", 0)
            return None
        kept = tuple(kind.elements[element] for element in elements)
        return TupleType(kept) if len(kept) > 1 else kept[0]

    return rule


TRANSFER_RULES: Mapping[str, TypeRule] = {
    "send": _send,
    "recv": _recv,
    "send-done": _transfer_done(2),
    "recv-done": _transfer_done(0, 2),
}
