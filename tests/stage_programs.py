"""Texts of pipeline stages, and programs cut into stages."""

from collections.abc import Sequence

import attrs

import ncc_compiler
from ncc_runtime.neff.program import ALIGNMENT, Program
from ncc_runtime.runtime import program_of

SUM = """sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}
"""


def stage(body: str, *, ranks: int = 8, before: str = "", name: str = "stage") -> Program:
    """The program of an entry's body; computations of its own may stand before it."""
    head = f"HloModule {name}, num_partitions={ranks}\n"
    return program_of(
        ncc_compiler.compile_text(f"{head}{SUM}{before}\nENTRY {name} {{\n{body}\n}}\n")
    )


def cut(program: Program, parts: Sequence[Sequence[int]]) -> list[tuple[Program, Sequence[int]]]:
    """The program once for every part of its ranks, each time at other addresses."""
    return [(_moved(program, 1000 * number), part) for number, part in enumerate(parts)]


def _moved(program: Program, lines: int) -> Program:
    by = lines * ALIGNMENT
    buffers = (attrs.evolve(one, address=one.address + by) for one in program.buffers)
    return attrs.evolve(
        program, hbm_bytes=program.hbm_bytes + by, buffers=tuple(buffers), name=f"cut{lines}"
    )
