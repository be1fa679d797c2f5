"""Texts to modules and complaints, for tests of the front end."""

from ncc_compiler.diagnostics import CompileError, Source
from ncc_compiler.ir.graph import Module, Node
from ncc_compiler.ir.load import load_module

SUM = """sum (a: f32[], b: f32[]) -> f32[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""


def load(text: str, ranks: int | None = None) -> Module:
    return load_module(Source("t.ir", text), ranks)


def complaints(text: str, ranks: int | None = None) -> list[str]:
    """Each complaint as `line:column code`; the message itself is the goldens' business."""
    try:
        load(text, ranks)
    except CompileError as error:
        return [f"{str(d.span).removeprefix('t.ir:')} {d.code}" for d in error.diagnostics]
    return []


def messages(text: str, ranks: int | None = None) -> str:
    """Everything that is printed for a wrong text."""
    try:
        load(text, ranks)
    except CompileError as error:
        return str(error)
    return ""


def node(module: Module, name: str) -> Node:
    """A node of the entry computation."""
    return next(node for node in module.entry_computation.nodes if node.name == name)
