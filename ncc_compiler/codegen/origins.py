"""Where an instruction comes from: the graph node, and the line of the user's own code."""

from pathlib import PurePath

from ncc_compiler.ir.frames import source_frame
from ncc_compiler.ir.graph import Module, Node
from ncc_runtime.neff.program import Origin


def origin_of(module: Module, node: Node) -> Origin:
    """The node's name and, where its metadata says so, `file:line`."""
    frame = source_frame(module, node)
    if frame is None:
        return Origin(node.name)
    return Origin(node.name, f"{frame.file}:{frame.line}" if frame.line else frame.file)


def text_origin(module: Module, node: Node) -> Origin:
    """Like `origin_of`; where the metadata says nothing, `file:line` of the model's text."""
    origin = origin_of(module, node)
    if origin.place or node.span is None:
        return origin
    source = node.span.source
    line, _ = source.position(node.span.start)
    return Origin(node.name, f"{PurePath(source.name).name}:{line}")
