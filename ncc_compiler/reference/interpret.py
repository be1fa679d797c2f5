"""The meaning of a module: its nodes in order, each on every rank, collectives over all of them.

Slow and obvious on purpose: this is the oracle that the compiler, the runtime and their tests are
held against. It shares no code with the executor.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.transfers import match_transfers
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_compiler.reference.collectives import COLLECTIVES, TRANSFERS
from ncc_compiler.reference.contraction import dot, ragged_dot
from ncc_compiler.reference.control_flow import CONTROL_FLOW
from ncc_compiler.reference.counted import COUNTED
from ncc_compiler.reference.elementwise import ELEMENTWISE
from ncc_compiler.reference.folding import map_, reduce
from ncc_compiler.reference.indexing import INDEXING, scatter
from ncc_compiler.reference.movement import MOVEMENT
from ncc_compiler.reference.ncc_collectives import NCC_COLLECTIVES
from ncc_compiler.reference.numeric import METHODS
from ncc_compiler.reference.ordering import ORDERING
from ncc_compiler.reference.random_bits import rng, rng_bit_generator
from ncc_compiler.reference.step import Meaning, Ranks, Step, Value, leaves
from ncc_compiler.reference.windows import convolution, reduce_window, select_and_scatter


def _one_rank_at_a_time(compute: Callable[[Node, Sequence[np.ndarray]], Value]) -> Meaning:
    def meaning(step: Step) -> list[Value]:
        return [compute(step.node, step.arrays(k)) for k in range(len(step.ranks))]

    return meaning


def _parameter(step: Step) -> list[Value]:
    return [given[step.node.integer("parameter_number")] for given in step.arguments]


def _constant(step: Step) -> list[Value]:
    return [step.node.literal().array for _ in step.ranks]


def _partition_id(step: Step) -> list[Value]:
    return [np.asarray(rank % step.module.num_partitions, np.uint32) for rank in step.ranks]


def _replica_id(step: Step) -> list[Value]:
    return [np.asarray(rank // step.module.num_partitions, np.uint32) for rank in step.ranks]


def _tuple(step: Step) -> list[Value]:
    return list(step.operands)


def _get_tuple_element(step: Step) -> list[Value]:
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
    **COUNTED,
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
        results = MEANINGS[node.op](Step(module, node, ranks, operands, arguments, evaluate))
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
    for given in inputs:
        arrays = iter(given)
        arguments.append([_nested(kind, arrays) for kind in kinds])
    with np.errstate(all="ignore"):
        results = _evaluate(module, entry, tuple(range(module.ranks)), arguments)
    return [list(leaves(result)) for result in results]
