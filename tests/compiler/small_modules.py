"""Small modules written as text, and questions about them, for the tests of the compiler."""

from collections.abc import Sequence

import numpy as np

from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.graph import Module, Node
from ncc_compiler.ir.load import load_module
from ncc_compiler.passes.manager import Pass, run_passes
from tests.reference_runs import reference_outputs

SUM = "%sum { %a = f32[] parameter(0) %b = f32[] parameter(1) ROOT %r = f32[] add(%a, %b) }\n"


def load(*lines: str, header: str = "HloModule m, num_partitions=4", before: str = "") -> Module:
    """A module whose entry has these lines; the last one is the root."""
    body = "\n".join(f"  {line}" for line in (*lines[:-1], f"ROOT {lines[-1]}"))
    return load_module(Source("test.ir", f"{header}\n{before}ENTRY %main {{\n{body}\n}}\n"))


def entry_ops(module: Module) -> list[str]:
    return [node.op for node in module.entry_computation.nodes]


def entry_node(module: Module, op: str) -> Node:
    (found,) = [node for node in module.entry_computation.nodes if node.op == op]
    return found


def assert_same_bits(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.tobytes() == theirs.tobytes()


def with_same_bits(before: Module, passes: Sequence[Pass]) -> Module:
    """The module after the passes, whose values for drawn float32 inputs are those of before."""
    after = run_passes(before, passes, verify_each=True)
    entry = before.entry_computation
    draw = np.random.default_rng(0)
    inputs = [
        draw.standard_normal((before.ranks, *entry.nodes[p].array.shape)).astype(np.float32)
        for p in entry.parameters()
    ]
    assert_same_bits(reference_outputs(after, inputs), reference_outputs(before, inputs))
    return after
