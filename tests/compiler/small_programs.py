"""Small programs compiled from text, and questions about them, for the tests of codegen."""

from ncc_compiler.codegen.generate import generate
from ncc_compiler.options import CompileOptions
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.pipelines import pipeline
from ncc_runtime.neff.check import check
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import BufferKind, Program
from ncc_runtime.neff.table import Instr
from tests.compiler.small_modules import SUM, load

REDUCED = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%sum"


def compiled(*lines: str, level: int = 0, before: str = SUM) -> Program:
    passes = pipeline(CompileOptions(level=level))
    program = generate(run_passes(load(*lines, before=before), passes, verify_each=True))
    assert check(program) == ()
    return program


def rows(program: Program, engine: Engine) -> list[Instr]:
    return list(program.queues[engine])


def kinds(program: Program) -> list[BufferKind]:
    return [buffer.kind for buffer in program.buffers]
