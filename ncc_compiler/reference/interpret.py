"""The meaning of a module: its nodes in order, each on every rank, collectives over all of them.

Slow and obvious on purpose: this is the oracle that the compiler, the runtime and their tests are
held against. It shares no code with the executor.

First what needs the interpreter itself: loops, branches, calls, start/done pairs. Ranks that take
part in the same collective of a loop or of a branch run it together, so they must agree on the
predicate; ranks that share no collective may diverge. `MEANINGS` then has a function for every op.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_compiler.ir.collectives import pairs_attribute, rank_groups, rank_pairs
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.order import branch_names, collectives_in
from ncc_compiler.ir.transfers import match_transfers
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_compiler.reference.collectives import (
    COLLECTIVES,
    NCC_COLLECTIVES,
    TRANSFERS,
    VARIABLE_SIZE,
)
from ncc_compiler.reference.contraction import (
    convolution,
    dot,
    map_,
    ragged_dot,
    reduce,
    reduce_window,
    select_and_scatter,
)
from ncc_compiler.reference.elementwise import ELEMENTWISE
from ncc_compiler.reference.indexing import INDEXING, MOVEMENT, scatter
from ncc_compiler.reference.numeric import METHODS, rng, rng_bit_generator
from ncc_compiler.reference.ordering import ORDERING
from ncc_compiler.reference.step import Meaning, OpStep, Ranks, Value, leaves


class DivergenceError(Exception):
    """Ranks that take part in one collective have different predicates."""


def _convergent_ranks(step: OpStep, names: Iterable[str]) -> list[tuple[int, ...]]:
    """The step's ranks, united where they take part in one collective of the computations."""
    set_of: dict[int, tuple[int, ...]] = {rank: (rank,) for rank in step.ranks}
    for node in collectives_in(step.module, names):
        permutes = pairs_attribute(node) is not None
        module = step.module
        participants = rank_pairs(module, node) if permutes else rank_groups(module, node)
        for group in participants:
            ranks = [rank for rank in group if rank in set_of]
            union = tuple(sorted({member for rank in ranks for member in set_of[rank]}))
            set_of.update(dict.fromkeys(union, union))
    return sorted(set(set_of.values()))


def _check_agreement(
    step: OpStep, groups: Sequence[tuple[int, ...]], predicates: Mapping[int, object]
) -> None:
    """Raises DivergenceError where ranks of a group have different predicates."""
    for group in groups:
        values = {rank: predicates[rank] for rank in group if rank in predicates}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{value} on rank {rank}" for rank, value in values.items())
            raise DivergenceError(
                f"{step.node.name}: the predicate guards a collective of ranks "
                f"{', '.join(map(str, group))} and is {shown}"
            )


def _run(
    step: OpStep, computation: Computation, states: Mapping[int, Value], ranks: Sequence[int]
) -> dict[int, Value]:
    """A computation of one argument on some ranks."""
    arguments = [(states[rank],) for rank in ranks]
    results = step.evaluate(computation, tuple(ranks), arguments)
    return dict(zip(ranks, results, strict=True))


def _while(step: OpStep) -> list[Value]:
    names = [step.node.callee(key) for key in ("condition", "body")]
    condition, body = (step.module.computations[name] for name in names)
    groups = _convergent_ranks(step, names)
    states = {rank: operands[0] for rank, operands in zip(step.ranks, step.operands, strict=True)}
    active = list(step.ranks)
    while active:
        results = _run(step, condition, states, active)
        predicates = {rank: bool(np.asarray(result)) for rank, result in results.items()}
        _check_agreement(step, groups, predicates)
        active = [rank for rank in active if predicates[rank]]
        if active:
            states.update(_run(step, body, states, active))
    return [states[rank] for rank in step.ranks]


def _conditional(step: OpStep) -> list[Value]:
    names = branch_names(step.node)
    operands = dict(zip(step.ranks, step.operands, strict=True))
    branches = {}
    for rank, (predicate, *_) in operands.items():
        assert isinstance(predicate, np.ndarray), predicate
        index = int(predicate)
        if predicate.dtype == np.bool_:  # true is the first branch
            index = 1 - index
        branches[rank] = index if 0 <= index < len(names) else len(names) - 1
    _check_agreement(step, _convergent_ranks(step, names), branches)
    results: dict[int, Value] = {}
    for index, name in enumerate(names):
        ranks = [rank for rank in step.ranks if branches[rank] == index]
        if ranks:
            arguments = {rank: operands[rank][index + 1] for rank in ranks}
            results.update(_run(step, step.module.computations[name], arguments, ranks))
    return [results[rank] for rank in step.ranks]


def _scan(step: OpStep) -> list[Value]:
    node, body = step.node, step.module.computations[step.node.callee()]
    assert isinstance(node.type, TupleType), node.name
    (dimension,) = node.integers("dimensions")
    carried = node.integer("num_carries")
    arrays = len(step.operands[0]) - carried
    outputs = [kind for kind in node.type.elements if isinstance(kind, ArrayType)]
    outputs = outputs[: len(outputs) - carried]
    first = step.operands[0][0] if arrays else np.empty(outputs[0].shape)
    length = np.asarray(first).shape[dimension]
    indices = range(length)[::-1] if node.attributes["is_reverse"] else range(length)
    carries = [operands[arrays:] for operands in step.operands]
    results = [[np.zeros(kind.shape, kind.dtype.numpy) for kind in outputs] for _ in step.ranks]
    for index in indices:
        arguments = [
            (*(np.take(np.asarray(x), index, axis=dimension) for x in operands[:arrays]), *carry)
            for operands, carry in zip(step.operands, carries, strict=True)
        ]
        for k, value in enumerate(step.evaluate(body, step.ranks, arguments)):
            values = value if isinstance(value, tuple) else (value,)
            for array, row in zip(results[k], values, strict=False):
                array[(slice(None),) * dimension + (index,)] = np.asarray(row)
            carries[k] = values[len(outputs) :]
    return [(*arrays, *carry) for arrays, carry in zip(results, carries, strict=True)]


def _call(key: str) -> Meaning:
    def meaning(step: OpStep) -> list[Value]:
        callee = step.module.computations[step.node.callee(key)]
        return step.evaluate(callee, step.ranks, step.operands)

    return meaning


def _same(step: OpStep) -> list[Value]:
    return [operands[0] for operands in step.operands]


def _start(inner: Meaning) -> Meaning:
    """The result with the operands before it and contexts behind it."""

    def meaning(step: OpStep) -> list[Value]:
        kind = step.node.type
        assert isinstance(kind, TupleType), step.node.name
        contexts = []  # the program may not read them
        for context in kind.elements[2:]:
            assert isinstance(context, ArrayType), context
            contexts.append(np.zeros(context.shape, context.dtype.numpy))
        plain = attrs.evolve(step, node=attrs.evolve(step.node, type=kind.elements[1]))
        is_single = isinstance(kind.elements[0], ArrayType) or "slice_sizes" in step.node.attributes
        return [
            (operands[0] if is_single else operands, result, *contexts)
            for operands, result in zip(step.operands, inner(plain), strict=True)
        ]

    return meaning


def _element(index: int) -> Meaning:
    def meaning(step: OpStep) -> list[Value]:
        return [operands[0][index] for operands in step.operands]

    return meaning


_RAGGED = "ragged-all-to-all"
_ASYNCHRONOUS = {**COLLECTIVES, _RAGGED: VARIABLE_SIZE[_RAGGED]}

CONTROL_FLOW: Mapping[str, Meaning] = {
    "call": _call("to_apply"),
    "fusion": _call("calls"),
    "while": _while,
    "conditional": _conditional,
    "scan": _scan,
    "add-dependency": _same,
    "after-all": lambda step: [() for _ in step.ranks],  # a token holds no data
    "domain": _same,
    "opt-barrier": _same,
    "optimization-barrier": _same,
    **{f"{op}-start": _start(meaning) for op, meaning in _ASYNCHRONOUS.items()},
    **{f"{op}-done": _element(1) for op in _ASYNCHRONOUS},
    "all-reduce-start": COLLECTIVES["all-reduce"],
    "all-reduce-done": _same,
    "copy-start": _start(_same),
    "copy-done": _element(0),
    "async-start": _start(_call("calls")),
    "async-update": _same,
    "async-done": _element(1),
}
"""What each of these ops means, by name."""


def _one_rank_at_a_time(compute: Callable[[Node, Sequence[np.ndarray]], Value]) -> Meaning:
    def meaning(step: OpStep) -> list[Value]:
        return [compute(step.node, step.arrays(k)) for k in range(len(step.ranks))]

    return meaning


def _parameter(step: OpStep) -> list[Value]:
    return [arguments[step.node.integer("parameter_number")] for arguments in step.arguments]


def _constant(step: OpStep) -> list[Value]:
    return [step.node.literal().array for _ in step.ranks]


def _partition_id(step: OpStep) -> list[Value]:
    return [np.asarray(rank % step.module.num_partitions, np.uint32) for rank in step.ranks]


def _replica_id(step: OpStep) -> list[Value]:
    return [np.asarray(rank // step.module.num_partitions, np.uint32) for rank in step.ranks]


def _tuple(step: OpStep) -> list[Value]:
    return list(step.operands)


def _get_tuple_element(step: OpStep) -> list[Value]:
    return [operands[0][step.node.integer("index")] for operands in step.operands]


MEANINGS: Mapping[str, Meaning] = {
    "parameter": _parameter,
    "constant": _constant,
    "partition-id": _partition_id,
    "replica-id": _replica_id,
    "tuple": _tuple,
    "get-tuple-element": _get_tuple_element,
    "dot": _one_rank_at_a_time(dot),
    "ragged-dot": _one_rank_at_a_time(ragged_dot),
    "map": map_,
    "reduce": reduce,
    "convolution": _one_rank_at_a_time(convolution),
    "reduce-window": reduce_window,
    "select-and-scatter": select_and_scatter,
    "rng": rng,
    "rng-bit-generator": _one_rank_at_a_time(rng_bit_generator),
    **{name: _one_rank_at_a_time(compute) for name, compute in METHODS.items()},
    **{name: _one_rank_at_a_time(compute) for name, compute in ELEMENTWISE.items()},
    **{name: _one_rank_at_a_time(compute) for name, compute in MOVEMENT.items()},
    "scatter": scatter,
    **{name: _one_rank_at_a_time(compute) for name, compute in INDEXING.items()},
    **ORDERING,
    **COLLECTIVES,
    **NCC_COLLECTIVES,
    **VARIABLE_SIZE,
    **TRANSFERS,
    **CONTROL_FLOW,
}
"""What every op of the graph means, by name."""


def _evaluate(
    module: Module,
    computation: Computation,
    ranks: Ranks,
    arguments: Sequence[Sequence[Value]],
) -> list[Value]:
    """The root's value on each rank."""
    evaluate = functools.partial(_evaluate, module)
    values: list[list[Value]] = []
    for node in computation.nodes:
        operands = tuple(
            tuple(values[operand][k] for operand in node.operands) for k in range(len(ranks))
        )
        results = MEANINGS[node.op](OpStep(module, node, ranks, operands, arguments, evaluate))
        if isinstance(node.type, ArrayType):
            wrong = {getattr(x, "dtype", None) for x in results} - {node.type.dtype.numpy}
            assert not wrong, f"{node.name} is {node.type} and came out as {wrong}"
        values.append(results)
    return values[computation.root]


def _nested(kind: Type, arrays: Iterator[np.ndarray]) -> Value:
    """The next arrays, nested as the type says; a token holds none."""
    if isinstance(kind, ArrayType):
        return np.asarray(next(arrays))
    elements = kind.elements if isinstance(kind, TupleType) else ()
    return tuple(_nested(element, arrays) for element in elements)


def run_module(module: Module, inputs: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """What each rank returns for its inputs[rank]; tuples are flattened on both sides."""
    assert len(inputs) == module.ranks, f"inputs of {len(inputs)} ranks for {module.ranks}"
    module = match_transfers(module)
    entry = module.entry_computation
    kinds = [entry.nodes[position].type for position in entry.parameters()]
    arguments = []
    for rank_inputs in inputs:
        arrays = iter(rank_inputs)
        arguments.append([_nested(kind, arrays) for kind in kinds])
    with np.errstate(all="ignore"):
        results = _evaluate(module, entry, tuple(range(module.ranks)), arguments)
    return [list(leaves(result)) for result in results]
