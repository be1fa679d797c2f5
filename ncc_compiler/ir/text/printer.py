"""A module as canonical HLO text; reading the text gives an equal module."""

from collections.abc import Iterator, Mapping

from ncc_compiler.ir.attributes import spell_attribute
from ncc_compiler.ir.graph import Computation, Elided, Literal, Module, Node, SourceFrame
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.text.backend_config import spelled
from ncc_compiler.ir.text.literals import spell_literal


def print_module(module: Module) -> str:
    """The whole module: header, source locations, computations with callees first."""
    counts = {"replica_count": module.replica_count, "num_partitions": module.num_partitions}
    attributes = {**module.attributes, **counts}
    fields = "".join(f", {key}={spell_attribute(value)}" for key, value in attributes.items())
    parts = [f"HloModule {module.name}{fields}"]
    if module.frames:
        parts.append("\n".join(_tables(module.frames)))
    parts += [
        print_computation(computation, is_entry=name == module.entry)
        for name, computation in module.computations.items()
    ]
    return "\n\n".join(parts) + "\n"


def print_computation(computation: Computation, *, is_entry: bool = False) -> str:
    """One computation with its signature."""
    nodes = computation.nodes
    parameters = ", ".join(
        f"{nodes[position].name}: {nodes[position].type}" for position in computation.parameters()
    )
    entry = "ENTRY " if is_entry else ""
    result = nodes[computation.root].type
    lines = [f"{entry}%{computation.name} ({parameters}) -> {result} {{"]
    for position, node in enumerate(nodes):
        root = "ROOT " if position == computation.root else ""
        lines.append(f"  {root}{print_node(computation, node)}")
    return "\n".join([*lines, "}"])


_SPELLED_OUT = frozenset(
    {
        "collapsed_slice_dims",
        "dimensions",
        "inserted_window_dims",
        "offset_dims",
        "scatter_dims_to_operand_dims",
        "start_index_map",
        "transpose_a",
        "update_window_dims",
    }
)
"""XLA's parser knows no default of these, or not for every operand."""


def print_node(computation: Computation, node: Node) -> str:
    """One instruction: name, type, op, operands, attributes."""
    row = OPS.get(node.op)
    payload = row.payload.name if row and row.payload else None
    inside = ", ".join(f"%{operand.name}" for operand in computation.operands_of(node))
    if payload:
        value = node.attributes[payload]
        if isinstance(value, Literal | Elided):
            inside = spell_literal(value, node.array.dtype)
        else:
            inside = spell_attribute(value)
    kept = {}
    for key, value in node.attributes.items():
        definition = row.attribute(key) if row else None
        default = definition.default if definition else None
        is_default = default is not None and value == default
        if key != payload and (key in _SPELLED_OUT or not is_default):
            kept[key] = value
    op, texts = spelled(node.op, kept)
    attributes = "".join(f", {key}={text}" for key, text in texts.items())
    return f"%{node.name} = {node.type} {op}({inside}){attributes}"


def _tables(frames: Mapping[int, SourceFrame]) -> Iterator[str]:
    """The four tables of source locations, without duplicates."""
    files = _numbered(frame.file for frame in frames.values())
    functions = _numbered(frame.function for frame in frames.values())
    places = [(files[f.file], functions[f.function], f.line, f.column) for f in frames.values()]
    locations = {place: number for number, place in enumerate(dict.fromkeys(places), 1)}
    yield "FileNames"
    yield from (f"{number} {_quoted(name)}" for name, number in files.items())
    yield "\nFunctionNames"
    yield from (f"{number} {_quoted(name)}" for name, number in functions.items())
    yield "\nFileLocations"
    for (file, function, line, column), number in locations.items():
        ids = f"file_name_id={file} function_name_id={function}"
        yield f"{number} {{{ids} line={line} end_line={line} column={column} end_column={column}}}"
    yield "\nStackFrames"
    for (number, frame), place in zip(frames.items(), places, strict=True):
        location = f"file_location_id={locations[place]}"
        yield f"{number} {{{location} parent_frame_id={frame.parent + 1}}}"


def _numbered(names: Iterator[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names), 1)}


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
