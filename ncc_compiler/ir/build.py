"""Syntax tree to graph: computations found, the entry chosen, ranks counted.

Instructions that are wrong leave holes (build_body.py), so that everything is complained about at
once; a module with holes never leaves `load`.
"""

from collections.abc import Mapping

from ncc_compiler.diagnostics import Diagnostic
from ncc_compiler.ir.async_sugar import spelt_out
from ncc_compiler.ir.bitcasts import with_row_by_row_bitcasts
from ncc_compiler.ir.build_body import Body, complain_twice
from ncc_compiler.ir.frames import read_frames
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.header import check_header, read_header
from ncc_compiler.ir.inline_text import with_names
from ncc_compiler.ir.left_out import HOLE, check_types_said_twice, with_types
from ncc_compiler.ir.order import call_order
from ncc_compiler.ir.places import InstructionSpan
from ncc_compiler.ir.ranks import with_ranks
from ncc_compiler.ir.reading import Reading
from ncc_compiler.ir.tuple_constants import without_tuple_constants
from ncc_compiler.syntax import tree

ENTRY_NAME = "main"
"""The entry computation of a text that has no braces around its instructions."""


def build_module(
    file: tree.File, ranks: int | None
) -> tuple[Module | None, tuple[Diagnostic, ...]]:
    """The graph with holes, and the diagnostics; no graph without computation or ranks."""
    reading = Reading(file.source)
    file = without_tuple_constants(spelt_out(with_names(file, reading), reading))
    file = with_row_by_row_bitcasts(file)
    written = _named(file, reading)
    bodies = {
        name: Body(reading, file, computation, written) for name, computation in written.items()
    }
    computations = {name: body.build(name) for name, body in bodies.items()}
    entry = _entry(file, written, computations, reading)
    if entry is None:
        return None, tuple(reading.found)
    order = call_order(computations)
    for cycle, node in order.cycles:
        assert isinstance(node.span, InstructionSpan)
        at = _attribute_place(node.span.instruction, _key_of(node, cycle[-1]))
        loop = " -> ".join(f"%{name}" for name in cycle)
        reading.complain("computation-C3", f"computation calls itself: {loop}", at)
    module = Module(
        name=file.name.removeprefix("%") if file.name else ENTRY_NAME,
        computations={name: computations[name] for name in order.names},
        entry=entry,
        frames=read_frames(file.tables, reading),
    )
    module = read_header(module, file.header, reading)
    counted = with_ranks(module, file.header, ranks, reading)
    if counted is not None:
        counted = with_types(counted, {n: body.left_out for n, body in bodies.items()}, reading)
        for name, computation in counted.computations.items():
            bodies[name].check_signature(computation)
            check_types_said_twice(computation, reading)
        nodes = counted.entry_computation.nodes
        if file.is_whole and nodes and all(node.op != HOLE for node in nodes):
            check_header(counted, file.header, reading)
    return counted, tuple(reading.found)


def _named(file: tree.File, reading: Reading) -> Mapping[str, tree.Computation]:
    """The computations by name; of two with one name the first counts."""
    named: dict[str, tree.Computation] = {}
    for computation in file.computations:
        name = computation.name.text if computation.name else ENTRY_NAME
        first = named.setdefault(name, computation)
        if first is not computation:
            complain_twice(reading, f"computation %{name}", computation.name, first.name)
    return named


def _key_of(node: Node, callee: str) -> str:
    return next(key for key, name in node.callees() if name == callee)


def _entry(
    file: tree.File,
    written: Mapping[str, tree.Computation],
    computations: Mapping[str, Computation],
    reading: Reading,
) -> str | None:
    """The computation marked ENTRY, else the only one that nobody calls, or as in XLA the last."""
    start = (0, 1)
    marked = [name for name, computation in written.items() if computation.is_entry]
    if len(marked) > 1:
        second, first = written[marked[1]].name, written[marked[0]].name
        place = second or first
        assert place
        reading.complain(
            "computation-C1",
            f"{' and '.join(f'%{name}' for name in marked)} are both the entry",
            (place.start, place.end),
            "instructions outside of braces are the entry too" if not second else "",
        )
    if marked:
        return marked[0]
    if not computations:
        if file.is_whole:
            reading.complain("computation-C1", "the text holds no computation", start)
        return None
    nodes = (node for body in computations.values() for node in body.nodes)
    called = {callee for node in nodes for _, callee in node.callees()}
    free = [name for name in computations if name not in called]
    last = list(written)[-1]
    if last in free:
        return last
    if len(free) > 1 and file.is_whole:
        which = " or ".join(f"%{name}" for name in free)
        reading.complain(
            "computation-C1",
            f"no computation is marked ENTRY, and {which} could be it",
            start,
            "write ENTRY before the computation that runs",
        )
    return free[0] if free else next(iter(computations))


def _attribute_place(written: tree.Instruction, key: str) -> tuple[int, int]:
    for attribute in written.attributes:
        if attribute.key == key:
            return attribute.value_start, attribute.end
    return written.op.start, written.op.end
