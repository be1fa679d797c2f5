"""Makes a loop of each scan.

An iteration takes a slice of each input and the carries (the loop-carried values), and writes a
slice of each output.
"""

from collections.abc import Sequence
from typing import ClassVar

import attrs
import numpy as np

from ncc_compiler.ir.graph import Attribute, Callee, Computation, Literal, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, provenance, rewrite_computation
from ncc_runtime.neff.shared.dtypes import DType

_COUNT = ArrayType(DType.S32)
_TRUTH = ArrayType(DType.PRED)


@attrs.frozen
class ExpandScans(Pass):
    """Afterwards there is no scan; the steps of one that is associative are taken one by one too.

    The state of the loop is how many steps were taken, the inputs, the outputs so far, the carries.
    """

    name: ClassVar[str] = "expand-scans"

    def run(self, module: Module) -> Module:
        computations: dict[str, Computation] = {}

        def expanded(rebuild: Rebuild, node: Node) -> NodeId:
            if node.op != "scan":
                return rebuild.add(node)
            scan = _read(module, rebuild, node)
            outputs = [_zeros(rebuild, node, kind) for kind in scan.outputs]
            arrays = len(scan.inputs)
            if not scan.length:  # no step, and no slice that one could take
                return _tuple(rebuild, node, [*outputs, *node.operands[arrays:]])
            called: dict[str, Attribute] = {}
            for key, make in (("condition", _condition), ("body", _body)):
                name = _unused(f"{node.name}.{key}", {*module.computations, *computations})
                computations[name] = make(name, scan)
                called[key] = Callee(name)
            zero = _constant(rebuild, node, _COUNT, 0)
            first = [zero, *node.operands[:arrays], *outputs, *node.operands[arrays:]]
            state = rebuild.derived(node, "tuple", scan.state, first)
            last = rebuild.derived(node, "while", scan.state, [state], **called)
            kept = [
                rebuild.derived(node, "get-tuple-element", kind, [last], index=1 + arrays + k)
                for k, kind in enumerate((*scan.outputs, *scan.carries))
            ]
            return _tuple(rebuild, node, kept)

        for name, computation in module.computations.items():
            if any(node.op == "scan" for node in computation.nodes):
                computation = rewrite_computation(computation, expanded)
            computations[name] = computation  # what its scans became stands before it
        return attrs.evolve(module, computations=computations)


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
    results = tuple(kind for kind in node.type.elements if isinstance(kind, ArrayType))
    carried = node.integer("num_carries")
    inputs, outputs = kinds[: len(kinds) - carried], results[: len(results) - carried]
    (dimension,) = node.integers("dimensions")
    length = (*inputs, *outputs)[0].shape[dimension]
    carries = results[len(outputs) :]
    step = module.computations[node.callee()]
    return _Scan(node, step, dimension, length, inputs, outputs, carries)


def _condition(name: str, scan: _Scan) -> Computation:
    made = Rebuild(Computation(name, (), NodeId(0)))
    state = _parameter(made, scan)
    taken = made.derived(scan.node, "get-tuple-element", _COUNT, [state], index=0)
    length = _constant(made, scan.node, _COUNT, scan.length)
    root = made.derived(scan.node, "compare", _TRUTH, [taken, length], direction="LT")
    return Computation(name, tuple(made.nodes), root)


def _body(name: str, scan: _Scan) -> Computation:
    made = Rebuild(Computation(name, (), NodeId(0)))
    node, step = scan.node, scan.step
    state = _parameter(made, scan)
    taken, *values = (
        made.derived(node, "get-tuple-element", kind, [state], index=k)
        for k, kind in enumerate(scan.state.elements)
    )
    inputs, outputs = values[: len(scan.inputs)], values[len(scan.inputs) :][: len(scan.outputs)]
    carries = values[len(inputs) + len(outputs) :]
    place, zero = taken, _constant(made, node, _COUNT, 0)
    if node.attributes["is_reverse"]:
        last = _constant(made, node, _COUNT, scan.length - 1)
        place = made.derived(node, "subtract", _COUNT, [last, taken])

    def starts(kind: ArrayType) -> list[NodeId]:
        return [place if d == scan.dimension else zero for d in range(kind.rank)]

    arguments = []
    for array, kind in zip(inputs, scan.inputs, strict=True):
        window = scan.slice_of(kind, 1)
        sizes = window.shape
        cut = made.derived(
            node, "dynamic-slice", window, [array, *starts(kind)], dynamic_slice_sizes=sizes
        )
        arguments.append(made.derived(node, "reshape", scan.slice_of(kind, None), [cut]))
    gives = step.nodes[step.root].type
    callee = Callee(step.name)
    called = made.derived(node, "call", gives, [*arguments, *carries], to_apply=callee)
    results = [called]
    if isinstance(gives, TupleType):
        results = [
            made.derived(node, "get-tuple-element", kind, [called], index=k)
            for k, kind in enumerate(gives.elements)
        ]
    written = []
    for array, kind, part in zip(outputs, scan.outputs, results, strict=False):
        put = made.derived(node, "reshape", scan.slice_of(kind, 1), [part])
        written.append(
            made.derived(node, "dynamic-update-slice", kind, [array, put, *starts(kind)])
        )
    one = _constant(made, node, _COUNT, 1)
    more = made.derived(node, "add", _COUNT, [taken, one])
    behind = [more, *inputs, *written, *results[len(written) :]]
    root = made.derived(node, "tuple", scan.state, behind)
    return Computation(name, tuple(made.nodes), root)


def _parameter(made: Rebuild, scan: _Scan) -> NodeId:
    return made.derived(scan.node, "parameter", scan.state, [], parameter_number=0)


def _constant(made: Rebuild, node: Node, kind: ArrayType, value: int) -> NodeId:
    array = np.array(value).astype(kind.dtype.numpy)
    array.setflags(write=False)
    return made.derived(node, "constant", kind, [], literal=Literal(array))


def _tuple(rebuild: Rebuild, node: Node, elements: Sequence[NodeId]) -> NodeId:
    """What takes the place of the scan, under its name."""
    attributes = provenance(node)
    return rebuild.add(
        attrs.evolve(node, op="tuple", operands=tuple(elements), attributes=attributes)
    )


def _zeros(made: Rebuild, node: Node, kind: ArrayType) -> NodeId:
    zero = _constant(made, node, ArrayType(kind.dtype), 0)
    return made.derived(node, "broadcast", kind, [zero], dimensions=())


def _unused(stem: str, taken: set[str]) -> str:
    name, number = stem, 0
    while name in taken:
        number += 1
        name = f"{stem}.{number}"
    return name
