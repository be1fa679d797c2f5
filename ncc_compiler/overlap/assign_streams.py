"""Puts collectives that can be deferred on a stream of their own.

A stream runs its collectives one after the other, on CC-cores of its own. Collectives between two
steps of compute (tensor parallelism) stay on stream 0; on stream 1 they would wait behind long
ones that have time:

- those whose results feed no later compute: gradients on their way into an update, updated shards;
- gathers of values that no compute has made: weights of a sharded model, which can be prefetched.
"""

from collections.abc import Container, Mapping, Sequence
from typing import ClassVar

import attrs

from ncc_compiler.codegen.trip_count import invariants
from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Computation, Module, Node, Raw
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.types import TupleType
from ncc_compiler.overlap.analyses import ancestors_among, descendants_among, feeds_compute
from ncc_compiler.overlap.cost_model import CONTROL_FLOW, SPEEDS, is_heavy, larger_side
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import with_computations

TENSOR_PARALLEL, DATA_PARALLEL = 0, 1
"""Streams."""

_BARRIER = "ncc.barrier"


@attrs.frozen
class AssignStreams(Pass):
    """Collectives that name a stream keep it, and without both kinds all stay on stream 0.

    So they do where a barrier orders them with each other.
    """

    name: ClassVar[str] = "assign-streams"

    def run(self, module: Module) -> Module:
        nodes = [node for body in module.computations.values() for node in body.nodes]
        fed = feeds_compute(module)
        bodies = {node.callee("body") for node in nodes if node.op == "while"}
        deferrable = {
            name: _beside_others(
                module.computations[name],
                _deferrable_in(module, module.computations[name], fed[name], name in bodies),
            )
            for name in fed
        }
        if any(node.op == _BARRIER for node in nodes) or not _has_both(module, deferrable):
            return module
        if not _take_long(module, deferrable):
            return module
        computations = {
            name: attrs.evolve(
                body,
                nodes=tuple(
                    _on_stream(node, DATA_PARALLEL) if position in deferrable[name] else node
                    for position, node in enumerate(body.nodes)
                ),
            )
            if deferrable.get(name)
            else body
            for name, body in module.computations.items()
        }
        return with_computations(module, computations)


def _deferrable_in(
    module: Module, body: Computation, fed: Sequence[bool], is_repeated: bool
) -> frozenset[int]:
    """The collectives without a stream whose results are not waited for soon."""
    invariant: frozenset[int] | None = frozenset()
    if body.name == module.entry:
        invariant = None  # all parameters are there before any compute
    elif is_repeated:
        invariant = _invariant_elements(body)
    early = _are_before_compute(module, body, invariant)
    return frozenset(
        position
        for position, node in enumerate(body.nodes)
        if OPS[node.op].collective and written_stream(node) is None
        if not fed[position]
        or (node.op == "all-gather" and all(early[operand] for operand in node.operands))
    )


def _beside_others(body: Computation, deferrable: frozenset[int]) -> frozenset[int]:
    """Those that a collective that stays could wait behind: it comes later and needs them not.

    One that waits for all of those, or they for it, gains nothing by a stream of its own. Neither
    does one whose operands come later than all of them.
    """
    collectives = [position for position, node in enumerate(body.nodes) if OPS[node.op].collective]
    staying = [position for position in collectives if position not in deferrable]
    before, behind = ancestors_among(body, staying), descendants_among(body, staying)
    all_staying = (1 << len(staying)) - 1
    last = max(staying, default=-1)
    return frozenset(
        position
        for position in deferrable
        if before[position] | behind[position] != all_staying
        and max(body.nodes[position].operands, default=0) < last
    )


def _has_both(module: Module, deferrable: Mapping[str, frozenset[int]]) -> bool:
    """Whether some collectives would move, and others stay on stream 0."""
    stays = (
        OPS[node.op].collective and position not in deferrable[name] and not written_stream(node)
        for name in deferrable
        for position, node in enumerate(module.computations[name].nodes)
    )
    return any(deferrable.values()) and any(stays)


def _take_long(module: Module, deferrable: Mapping[str, frozenset[int]]) -> bool:
    """Whether deferred collectives hold up others for longer than two starts, at the quickest.

    A second stream takes CC-cores from the first one, for as long as the program runs.
    """
    quickest = SPEEDS[0]
    sizes = (
        larger_side(body.nodes[position], list(body.operands_of(body.nodes[position])))
        for name, positions in deferrable.items()
        for body in (module.computations[name],)
        for position in positions
    )
    return sum(map(quickest.latency, sizes)) > 2 * quickest.start


def _are_before_compute(
    module: Module, body: Computation, invariant: Container[int] | None
) -> list[bool]:
    """Whether each value comes from constants and parameters, and is computed with little work.

    Of the parameter of a loop or branch, only the elements `invariant` count; None: all of it.
    """
    early: list[bool] = []
    for node in body.nodes:
        # A scan slices weights at the number of its iteration, which takes no compute to know.
        operands = node.operands[:1] if node.op == "dynamic-slice" else node.operands
        is_early = all(early[operand] for operand in operands)
        if node.op == "parameter":
            is_early = invariant is None
        elif node.op == "get-tuple-element" and body.nodes[operands[0]].op == "parameter":
            is_early = invariant is None or node.integer("index") in invariant
        elif is_heavy(module, node) or node.op in CONTROL_FLOW or OPS[node.op].collective:
            is_early = False
        early.append(is_early)
    return early


def _invariant_elements(body: Computation) -> frozenset[int]:
    """Loop-invariant elements of the state; none if it nests, since `invariants` counts arrays."""
    (parameter,) = body.parameters()
    kind = body.nodes[parameter].type
    if not isinstance(kind, TupleType) or any(isinstance(e, TupleType) for e in kind.elements):
        return frozenset()
    return invariants(body)


def _on_stream(node: Node, stream: int) -> Node:
    """The node with a stream among its attributes for the compiler."""
    frontend = node.attributes.get("frontend_attributes")
    others = frontend.text.strip().strip("{}").strip() if isinstance(frontend, Raw) else ""
    text = ",".join(filter(None, (others, f'stream_id="{stream}"')))
    return attrs.evolve(
        node, attributes={**node.attributes, "frontend_attributes": Raw(f"{{{text}}}")}
    )
