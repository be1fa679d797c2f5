"""Counts, attributes and types of every instruction; equal signatures are checked once."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from ncc_runtime.neff.isa import ENGINES, OPCODES, PTC2, Engine, Shape
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.rules import elementwise, indexing, numeric, structural
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.rules.signature import Signature
from ncc_runtime.neff.table import NONE

TypeRule = Callable[[Signature], Iterator[str]]

ATTRIBUTE_KINDS: Mapping[str, type] = {
    "algorithm": str,
    "batch_groups": int,
    "block": int,
    "bytes_read": int,
    "bytes_written": int,
    "collapsed_slice_dims": tuple,
    "dim_labels": str,
    "dimension": int,
    "dimensions": tuple,
    "direction": str,
    "dtype": str,
    "duration_ps": int,
    "elements": int,
    "exponent_bits": int,
    "feature_groups": int,
    "fft_length": tuple,
    "fft_type": str,
    "flops": int,
    "fusion": int,
    "high": tuple,
    "ihi": int,
    "ilo": int,
    "index_vector_dim": int,
    "input_batching_dims": tuple,
    "inserted_window_dims": tuple,
    "interior": tuple,
    "iota_dimension": int,
    "jobvl": str,
    "jobvr": str,
    "jobvs": str,
    "jobz": str,
    "k": int,
    "largest": bool,
    "left_side": bool,
    "lhs_batch": tuple,
    "lhs_contracting": tuple,
    "lhs_ragged": int,
    "limit": tuple,
    "low": tuple,
    "lower": bool,
    "mantissa_bits": int,
    "offset_dims": tuple,
    "operand_batching_dims": tuple,
    "region": int,
    "rhs_batch": tuple,
    "rhs_contracting": tuple,
    "rhs_group": tuple,
    "routine": str,
    "scatter_dims_to_operand_dims": tuple,
    "scatter_indices_batching_dims": tuple,
    "scatter_region": int,
    "select_region": int,
    "side": str,
    "slice_sizes": tuple,
    "start": tuple,
    "start_index_map": tuple,
    "start_indices_batching_dims": tuple,
    "stride": tuple,
    "trans": str,
    "transpose_a": str,
    "type": str,
    "unit_diagonal": bool,
    "update_window_dims": tuple,
    "uplo": str,
    "window": str,
}
"""The type of each attribute of the instruction set."""

_ELEMENTWISE = (Shape.UNARY, Shape.BINARY)
TYPE_RULES: Mapping[str, TypeRule] = {
    **{name: elementwise.same_types for name, row in OPCODES.items() if row.shape in _ELEMENTWISE},
    "abs": elementwise.absolute,
    "bitcast-convert": elementwise.bitcast_convert,
    "broadcast": structural.broadcast,
    "cholesky": numeric.cholesky,
    "clamp": elementwise.clamp,
    "compare": elementwise.compare,
    "complex": elementwise.complex_,
    "concatenate": structural.concatenate,
    "convert": elementwise.convert,
    "convolution": numeric.convolution,
    "dot": structural.dot,
    "ragged-dot": structural.ragged_dot,
    "dynamic-slice": indexing.dynamic_slice,
    "dynamic-update-slice": indexing.dynamic_update_slice,
    "gather": indexing.gather,
    "pad": indexing.pad,
    "reverse": indexing.reverse,
    "scatter": indexing.scatter,
    "sort": indexing.sort,
    "topk": indexing.topk,
    "fft": numeric.fft,
    "fusion": structural.fusion,
    "imag": elementwise.part,
    "iota": structural.iota,
    "is-finite": elementwise.is_finite,
    "lapack": numeric.lapack,
    "map": elementwise.map_,
    "partition-id": structural.device_id,
    "real": elementwise.part,
    "reduce": structural.reduce,
    "reduce-precision": elementwise.reduce_precision,
    "reduce-window": numeric.reduce_window,
    "replica-id": structural.device_id,
    "reshape": structural.reshape,
    "rng-bit-generator": numeric.rng_bit_generator,
    "select": elementwise.select,
    "select-and-scatter": numeric.select_and_scatter,
    "slice": structural.slice_,
    "stochastic-convert": elementwise.stochastic_convert,
    "transpose": structural.transpose,
    "triangular-solve": numeric.triangular_solve,
    "work": structural.work,
}
"""How the types of an opcode must agree; control opcodes have no tensors."""


@attrs.frozen
class _Place:
    """Where a signature occurs first."""

    text: str
    signature: Signature


def _places(program: Program) -> Iterator[_Place]:
    """Each different signature once, at its first place."""
    kinds: dict[tuple[object, ...], int] = {}
    kind_of = [
        kinds.setdefault((tensor.dtype, tensor.shape), len(kinds)) for tensor in program.tensors
    ]
    known = set()
    for engine in ENGINES:
        table = program.queues[engine]
        start = table.start.tolist()
        tensors = table.tensors.tolist()
        kinds_in_rows = [kind_of[tensor] for tensor in tensors]
        columns = (table.names(), table.attribute.tolist(), table.result_count.tolist())
        for pc, facts in enumerate(zip(*columns, strict=True)):
            key = (facts, tuple(kinds_in_rows[start[pc] : start[pc + 1]]))
            if key not in known:
                known.add(key)
                row = tensors[start[pc] : start[pc + 1]]
                yield _place(program, engine, pc, facts, row)


def _place(
    program: Program,
    engine: Engine,
    pc: int,
    facts: tuple[str, int, int],
    tensors: Sequence[int],
) -> _Place:
    opcode, attribute, results = facts
    views = tuple([program.tensors[tensor] for tensor in tensors])
    return _Place(
        f"queue {engine.value}, pc {pc}: {opcode}",
        Signature(
            opcode,
            views[:results],
            views[results:],
            program.attributes[attribute] if attribute != NONE else {},
            program.regions,
            program.fusions,
        ),
    )


def counts(signature: Signature) -> Iterator[str]:
    """Complain of too many or too few tensors."""
    row = OPCODES[signature.opcode]
    results, operands = len(signature.results), len(signature.operands)
    if row.name == PTC2:
        if results or operands:
            yield "lists tensors, its placeholder does that"
        return
    expected = 0 if row.shape is Shape.CONTROL else row.results
    if expected not in (-1, results):
        yield f"{results} results, must be {expected}"
    if row.operands not in (-1, operands):
        yield f"{operands} operands, must be {row.operands}"


def attribute_names(signature: Signature) -> Iterator[str]:
    """Complain of attributes that are missing, unknown, or of another kind."""
    row = OPCODES[signature.opcode]
    for name in row.attributes:
        if name not in signature.attributes:
            yield f"attribute {name} is missing"
    for name, value in sorted(signature.attributes.items()):
        if name not in (*row.attributes, *row.optional):
            names = (*row.attributes, *row.optional)
            known = f", known: {', '.join(names)}" if names else ", there are none"
            yield f"attribute {name} is unknown here{known}"
        elif type(value) is not ATTRIBUTE_KINDS[name]:
            kind, expected = type(value).__name__, ATTRIBUTE_KINDS[name].__name__
            yield f"attribute {name} is {kind}, must be {expected}"


def type_breaches(signature: Signature) -> Iterator[str]:
    """Complain of types that do not agree; only where counts and attributes are right."""
    has_rule = signature.opcode in TYPE_RULES
    if has_rule and not [*counts(signature), *attribute_names(signature)]:
        yield from TYPE_RULES[signature.opcode](signature)


def _everywhere(breaches: TypeRule, program: Program) -> Iterator[str]:
    for place in _places(program):
        for breach in breaches(place.signature):
            yield f"{place.text}: {breach}"


@rule("neff-T1")
def _counts_are_right(program: Program) -> Iterator[str]:
    return _everywhere(counts, program)


@rule("neff-T2")
def _attributes_are_right(program: Program) -> Iterator[str]:
    return _everywhere(attribute_names, program)


@rule("neff-T3")
def _types_agree(program: Program) -> Iterator[str]:
    return _everywhere(type_breaches, program)


RULES = (_counts_are_right, _attributes_are_right, _types_agree)
