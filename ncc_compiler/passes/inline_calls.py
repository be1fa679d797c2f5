"""Inlining: the bodies of called and fused computations take the place of the calls."""

from typing import ClassVar

import attrs

from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.options import INLINE_LIMIT_NODES
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, reachable, rewrite_computation, with_computations

_CALLS = {"call": "to_apply", "fusion": "calls"}
_CONTROL_FLOW = frozenset({"while", "conditional"})


@attrs.frozen
class InlineCalls(Pass):
    """No `call` or `fusion` is left, nor a computation that only they needed.

    Loops and branches keep their computations; code generation repeats one for each that runs it,
    so they count for the limit too.
    """

    name: ClassVar[str] = "inline-calls"

    limit_nodes: int = INLINE_LIMIT_NODES

    def run(self, module: Module) -> Module:
        self._refuse_explosion(module)
        done: dict[str, Computation] = {}
        for name, computation in module.computations.items():

            def inline(rebuild: Rebuild, node: Node) -> NodeId:
                if node.op not in _CALLS:
                    return rebuild.add(node)
                return _insert(rebuild, done[node.callee(_CALLS[node.op])], node)

            has_calls = any(node.op in _CALLS for node in computation.nodes)
            done[name] = rewrite_computation(computation, inline) if has_calls else computation
        return with_computations(module, reachable(done, module.entry))

    def _refuse_explosion(self, module: Module) -> None:
        sizes: dict[str, int] = {}
        for name, computation in module.computations.items():
            copies = (  # each of these nodes repeats its callees in the program
                callee
                for node in computation.nodes
                if node.op in _CALLS or node.op in _CONTROL_FLOW
                for _, callee in node.callees()
            )
            sizes[name] = len(computation.nodes) + sum(sizes[callee] for callee in copies)
        if sizes[module.entry] > self.limit_nodes:
            text = (
                f"calls expand %{module.entry} to {sizes[module.entry]} operations, "
                f"the limit is {self.limit_nodes}"
            )
            option = f"--pass-option {self.name}.limit_nodes=N raises the limit"
            raise CompileError([Diagnostic("inline-calls-C1", text, help=option)])


def _insert(rebuild: Rebuild, body: Computation, call: Node) -> NodeId:
    """Append a body whose parameters are the operands of the call; returns its result."""
    values: list[NodeId] = [NodeId(0)] * len(body.nodes)
    for operand, parameter in zip(call.operands, body.parameters(), strict=True):
        values[parameter] = operand
    for position, node in enumerate(body.nodes):
        if node.op != "parameter":
            operands = tuple(values[operand] for operand in node.operands)
            inner = attrs.evolve(node, name=rebuild.fresh(node.name), operands=operands)
            values[position] = rebuild.add(inner)
    return values[body.root]
