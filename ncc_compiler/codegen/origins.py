"""Where an instruction comes from: the graph node, and the line of the user's own code."""

import re

from ncc_compiler.ir.graph import Module, Node, Raw
from ncc_runtime.neff.program import Origin

_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_FILE = re.compile(r'\bsource_file="([^"]*)"')
_LINE = re.compile(r"\bsource_line=(\d+)")


def origin_of(module: Module, node: Node) -> Origin:
    """The node's name and, where its metadata says so, `file:line`."""
    metadata = node.attributes.get("metadata")
    text = metadata.text if isinstance(metadata, Raw) else ""
    return Origin(node.name, _frame_place(module, text) or _written_place(text))


def _frame_place(module: Module, metadata: str) -> str:
    """The innermost frame that `stack_frame_id` names."""
    match = _FRAME.search(metadata)
    frame = module.frames.get(int(match[1])) if match else None
    return f"{frame.file}:{frame.line}" if frame else ""


def _written_place(metadata: str) -> str:
    file, line = _FILE.search(metadata), _LINE.search(metadata)
    if not file:
        return ""
    return f"{file[1]}:{line[1]}" if line else file[1]
