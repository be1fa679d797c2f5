"""Makes a loop of each scan.

An iteration takes a slice of each input and the carries (the loop-carried values), and writes a
slice of each output.
"""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Attribute, Callee, Computation, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import (
    Rebuild,
    array_types,
    provenance,
    rewrite_computation,
    unused_name,
    with_computations,
)
from ncc_runtime.neff.shared.dtypes import DType

_COUNT = ArrayType(DType.S32)


@attrs.frozen
class ExpandScans(Pass):
    """Afterwards there is no scan; the steps of one that is associative are taken one by one too.

    The state of the loop is how many steps were taken, the inputs, the outputs so far, the carries.
    """

    name: ClassVar[str] = "expand-scans"

    def run(self, module: Module) -> Module:
        computations: dict[str, Computation] = {}

        def expand(rebuild: Rebuild, node: Node) -> NodeId:
            if node.op != "scan":
                return rebuild.add(node)
            scan = _read(module, rebuild, node)
            inputs, carries = node.operands[: len(scan.inputs)], node.operands[len(scan.inputs) :]
            outputs = []
            for kind in scan.outputs:
                zero = rebuild.constant(node, ArrayType(kind.dtype), 0)
                outputs.append(rebuild.derived(node, "broadcast", kind, [zero], dimensions=()))
            if not scan.length:  # there is no step, and no slice that it could take
                return _tuple(rebuild, node, [*outputs, *carries])
            callees: dict[str, Attribute] = {}
            for key, make in (("condition", _condition), ("body", _body)):
                name = unused_name(f"{node.name}.{key}", {*module.computations, *computations})
                computations[name] = make(name, scan)
                callees[key] = Callee(name)
            zero = rebuild.constant(node, _COUNT, 0)
            initial = [zero, *inputs, *outputs, *carries]
            state = rebuild.derived(node, "tuple", scan.state, initial)
            final = rebuild.derived(node, "while", scan.state, [state], **callees)
            results = [
                rebuild.derived(node, "get-tuple-element", kind, [final], index=k)
                for k, kind in enumerate((*scan.outputs, *scan.carries), start=1 + len(inputs))
            ]
            return _tuple(rebuild, node, results)

        for name, computation in module.computations.items():
            if any(node.op == "scan" for node in computation.nodes):
                computation = rewrite_computation(computation, expand)
            computations[name] = computation  # callees first: behind the loops of its scans
        return with_computations(module, computations)


@attrs.frozen
class _Scan:
    """A scan with its types taken apart."""

    node: Node
    step: Computation
    dimension: int
    length: int
    inputs: tuple[ArrayType, ...]
    outputs: tuple[ArrayType, ...]
    carries: tuple[ArrayType, ...]

    @property
    def state(self) -> TupleType:
        return TupleType((_COUNT, *self.inputs, *self.outputs, *self.carries))

    def slice_of(self, kind: ArrayType, size: int | None) -> ArrayType:
        """The type of an array's slice of a size along the dimension; None: without it."""
        before, behind = kind.shape[: self.dimension], kind.shape[self.dimension + 1 :]
        return attrs.evolve(kind, shape=(*before, *(() if size is None else (size,)), *behind))


def _read(module: Module, rebuild: Rebuild, node: Node) -> _Scan:
    assert isinstance(node.type, TupleType), node.name
    kinds = tuple(rebuild.type_of(operand) for operand in node.operands)
    results = tuple(array_types(node.type))
    carried = node.integer("num_carries")
    inputs, outputs = kinds[: len(kinds) - carried], results[: len(results) - carried]
    (dimension,) = node.integers("dimensions")
    length = (*inputs, *outputs)[0].shape[dimension]
    carries = results[len(outputs) :]
    step = module.computations[node.callee()]
    return _Scan(node, step, dimension, length, inputs, outputs, carries)


def _condition(name: str, scan: _Scan) -> Computation:
    """The loop goes on while fewer steps were taken than the scan has."""
    made, node = Rebuild(Computation(name, (), NodeId(0))), scan.node
    state = made.derived(node, "parameter", scan.state, [], parameter_number=0)
    count = made.derived(node, "get-tuple-element", _COUNT, [state], index=0)
    length = made.constant(node, _COUNT, scan.length)
    root = made.derived(node, "compare", ArrayType(DType.PRED), [count, length], direction="LT")
    return Computation(name, tuple(made.nodes), root)


def _body(name: str, scan: _Scan) -> Computation:
    """Slices of the inputs go into the step, its results into slices of the outputs."""
    made = Rebuild(Computation(name, (), NodeId(0)))
    node, step = scan.node, scan.step
    state = made.derived(node, "parameter", scan.state, [], parameter_number=0)
    count, *values = (
        made.derived(node, "get-tuple-element", kind, [state], index=k)
        for k, kind in enumerate(scan.state.elements)
    )
    inputs, outputs = values[: len(scan.inputs)], values[len(scan.inputs) :][: len(scan.outputs)]
    carries = values[len(inputs) + len(outputs) :]
    index, zero = count, made.constant(node, _COUNT, 0)
    if node.attributes["is_reverse"]:
        last = made.constant(node, _COUNT, scan.length - 1)
        index = made.derived(node, "subtract", _COUNT, [last, count])

    def starts(kind: ArrayType) -> list[NodeId]:
        return [index if d == scan.dimension else zero for d in range(kind.rank)]

    arguments = []
    for array, kind in zip(inputs, scan.inputs, strict=True):
        window = scan.slice_of(kind, 1)
        sizes = window.shape
        part = made.derived(
            node, "dynamic-slice", window, [array, *starts(kind)], dynamic_slice_sizes=sizes
        )
        arguments.append(made.derived(node, "reshape", scan.slice_of(kind, None), [part]))
    step_type = step.nodes[step.root].type
    callee = Callee(step.name)
    called = made.derived(node, "call", step_type, [*arguments, *carries], to_apply=callee)
    results = [called]
    if isinstance(step_type, TupleType):
        results = [
            made.derived(node, "get-tuple-element", kind, [called], index=k)
            for k, kind in enumerate(step_type.elements)
        ]
    written = []
    for array, kind, part in zip(outputs, scan.outputs, results, strict=False):
        update = made.derived(node, "reshape", scan.slice_of(kind, 1), [part])
        written.append(
            made.derived(node, "dynamic-update-slice", kind, [array, update, *starts(kind)])
        )
    one = made.constant(node, _COUNT, 1)
    next_count = made.derived(node, "add", _COUNT, [count, one])
    next_state = [next_count, *inputs, *written, *results[len(written) :]]
    root = made.derived(node, "tuple", scan.state, next_state)
    return Computation(name, tuple(made.nodes), root)


def _tuple(rebuild: Rebuild, node: Node, elements: Sequence[NodeId]) -> NodeId:
    """What takes the place of the scan, under its name."""
    attributes = provenance(node)
    return rebuild.add(
        attrs.evolve(node, op="tuple", operands=tuple(elements), attributes=attributes)
    )
