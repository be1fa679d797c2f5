"""Where an instruction comes from: the graph node, and the line of the user's own code."""

from ncc_compiler.ir.frames import source_frame
from ncc_compiler.ir.graph import Module, Node
from ncc_runtime.neff.program import Origin


def origin_of(module: Module, node: Node) -> Origin:
    """The node's name and, where its metadata says so, `file:line`."""
    frame = source_frame(module, node)
    if frame is None:
        return Origin(node.name)
    return Origin(node.name, f"{frame.file}:{frame.line}" if frame.line else frame.file)
