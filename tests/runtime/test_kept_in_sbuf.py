"""What stays in SBUF between instructions of a queue: neither loaded nor stored."""

import pytest

import ncc_compiler
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.work.instructions import works_of
from ncc_runtime.neff.work.work import SBUF_BYTES

BYTES = 4096
ADD = "add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT z = f32[] add(x, y) }"
HELD = f"f32[{SBUF_BYTES // 2 // 4}]"
TOO_LARGE = f"f32[{SBUF_BYTES // 2 // 4 + 1}]"


def program(rows: str, kind: str = "f32[1024]") -> Program:
    """Instructions as they are written, without fusion."""
    parameters = "a = KIND parameter(0)\n  b = KIND parameter(1)"
    text = f"HloModule m\n\n{ADD}\n\nENTRY main {{\n  {parameters}\n{rows}\n}}"
    return ncc_compiler.compile_text(text.replace("KIND", kind), CompileOptions(level=0)).program


def traffic(found: Program, engine: Engine = Engine.VECTOR) -> list[tuple[str, int, int, int]]:
    """Of each instruction its name, the bytes loaded and stored, and how many DMAs that takes."""
    works, index = works_of(found, engine, found.queues[engine])
    rows = zip(found.queues[engine].names(), [works[number] for number in index], strict=True)
    return [
        (name, work.bytes_read, work.bytes_written, work.starts)
        for name, work in rows
        if work.phases
    ]


def test_what_only_the_next_instruction_reads_never_leaves_the_core() -> None:
    found = program("  s = KIND add(a, b)\n  p = KIND negate(s)\n  ROOT r = KIND add(p, p)")
    assert traffic(found) == [
        ("add", 2 * BYTES, 0, 1),
        ("negate", 0, 0, 0),
        ("add", 0, BYTES, 1),
    ]


def test_what_others_read_later_is_stored_and_not_loaded_next() -> None:
    found = program("  s = KIND add(a, b)\n  p = KIND multiply(s, a)\n  ROOT r = KIND add(p, s)")
    assert traffic(found) == [
        ("add", 2 * BYTES, BYTES, 2),
        ("multiply", BYTES, 0, 1),
        ("add", BYTES, BYTES, 2),
    ]


def test_outputs_are_stored() -> None:
    found = program(
        "  s = KIND add(a, b)\n  p = KIND multiply(s, s)\n  ROOT r = (KIND, KIND) tuple(s, p)"
    )
    assert traffic(found) == [("add", 2 * BYTES, BYTES, 2), ("multiply", 0, BYTES, 1)]


def test_what_a_collective_reads_is_stored() -> None:
    found = program(
        "  s = KIND add(a, b)\n  r = KIND all-reduce(s), to_apply=add\n"
        "  p = KIND multiply(s, s)\n  ROOT t = (KIND, KIND) tuple(r, p)"
    )
    assert traffic(found) == [("add", 2 * BYTES, BYTES, 2), ("multiply", 0, BYTES, 1)]


@pytest.mark.parametrize(("kind", "is_held"), [(HELD, True), (TOO_LARGE, False)])
def test_half_of_sbuf_holds_it(kind: str, is_held: bool) -> None:
    found = program("  s = KIND add(a, b)\n  ROOT p = KIND multiply(s, s)", kind)
    (first, second) = traffic(found)
    assert (first[2] == 0, second[1] == 0) == (is_held, is_held)


def test_moves_go_from_hbm_to_hbm() -> None:
    found = program(
        "  s = KIND add(a, b)\n  p = KIND reverse(s), dimensions={0}\n  ROOT r = KIND add(p, p)"
    )
    assert all(
        loaded >= BYTES and stored == BYTES
        for engine in Engine
        for _, loaded, stored, _ in traffic(found, engine)
    )
