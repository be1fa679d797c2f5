"""`ncc.work`: work of which only sizes are known, from the text to its time."""

import math
import re

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import CompileError
from ncc_compiler.driver import load_text
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.options import CompileOptions
from ncc_compiler.reference import run_module
from ncc_runtime.errors import ControlError, InputError
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff import container
from ncc_runtime.neff.isa import ENGINES, WORK, Engine
from ncc_runtime.neff.listing import print_program
from ncc_runtime.neff.listing_parse import parse_program
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.work.instructions import works_of
from ncc_runtime.neff.work.work import Mode
from ncc_runtime.topology.graph import build

LAUNCH_US = 15.0
START = np.zeros(1, np.int32)

WRONG_WORK = (
    ("(u8[1], u8[1])", "", "ncc.work-C1"),
    ("u8[1]", '"engine":"Turbo"', "ncc.work-C2"),
    ("u8[1]", '"flops":-1', "ncc.work-C3"),
    ("u8[1]", f'"bytes_read":{2**60 + 1}', "ncc.work-C3"),
    ("u8[1]", '"duration_ps":-5', "ncc.work-C3"),
    ("u8[1]", '"dtype":"f31"', "ncc.work-C4"),
    ("u8[1]", '"cycles":1', "custom-call-C3"),
)
"""Type, configuration, and the rule that they break."""


def text(rows: str, ranks: int = 1) -> str:
    """A program of rows; `work(…)` stands for the custom call."""
    call = 'custom-call(\\1), custom_call_target="ncc.work", backend_config={\\2}'
    lines = re.sub(r"work\(([^;)]*);?([^)]*)\)", call, rows)
    head = f"HloModule m, replica_count={ranks}\n"
    add = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"
    return f"{head}{add}ENTRY main {{\n{lines}\n}}\n"


def compiled(rows: str, ranks: int = 1, level: int = 1) -> Program:
    return ncc_compiler.compile_text(text(rows, ranks), CompileOptions(level=level)).program


def time_us(program: Program) -> float:
    run = ncc_runtime.load(program, "trn2").run(values=False)
    assert run.time_us is not None
    return run.time_us - LAUNCH_US


def test_the_text_is_a_custom_call_and_prints_as_it_was_read() -> None:
    module = load_text(text('ROOT w = u8[8] work(;"engine":"Vector","elements":3,"dtype":"f32")'))
    printed = print_module(module)
    assert 'custom_call_target="ncc.work"' in printed
    assert print_module(load_text(printed)) == printed


@pytest.mark.parametrize("engine", [engine.value for engine in ENGINES])
def test_it_stands_in_the_queue_that_it_says(engine: str) -> None:
    program = compiled(f'ROOT w = u8[1] work(;"engine":"{engine}")')
    found = {one.value for one in ENGINES if WORK in program.queues[one].opcode_names}
    assert found == {engine}


@pytest.mark.parametrize(("kind", "config", "rule"), WRONG_WORK)
def test_a_wrong_one_is_refused(kind: str, config: str, rule: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(f"ROOT w = {kind} work(;{config})")
    assert [one.code for one in caught.value.diagnostics] == [rule]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_equal_ones_and_those_that_nobody_reads_stay(level: int) -> None:
    program = compiled(
        'a = u8[1] work(;"duration_ps":7)\nb = u8[1] work(;"duration_ps":7)\n'
        "ROOT c = u8[1] work(a;)",
        level=level,
    )
    assert program.queues[Engine.TENSOR].names() == [WORK] * 3


def test_an_instruction_waits_for_its_operands() -> None:
    rows = 'a = u8[1] work(;"duration_ps":40000000)\n'
    after = rows + 'ROOT b = u8[1] work(a;"engine":"Vector","duration_ps":30000000)'
    beside = rows + (
        'b = u8[1] work(;"engine":"Vector","duration_ps":30000000)\nROOT c = u8[1] work(a, b;)'
    )
    assert time_us(compiled(after)) == pytest.approx(70, abs=0.2)
    assert time_us(compiled(beside)) == pytest.approx(40, abs=0.3)


def test_a_duration_includes_what_every_instruction_takes() -> None:
    topology = build("trn2")
    least_us = TimingModel.from_topology(topology).instruction_ps(Engine.TENSOR) / 1e6
    of = {ps: time_us(compiled(f'ROOT w = u8[1] work(;"duration_ps":{ps})')) for ps in (0, 10**6)}
    assert of[10**6] == pytest.approx(1.0)
    assert of[0] == 0.0 < least_us


def test_without_a_duration_sizes_say_it_as_a_roofline() -> None:
    model = TimingModel.from_topology(build("trn2"))
    flops, size = 10**10, 10**8
    program = compiled(f'ROOT w = u8[1] work(;"flops":{flops},"bytes_read":{size},"dtype":"f32")')
    by_engine_us = flops / model.speeds.flops_per_s[DType.F32] * 1e6
    by_dma_us = size / model.speeds.dma_bytes_per_s * 1e6
    before_us = (
        model.instruction_ps(Engine.TENSOR)
        + model.speeds.step_ps[Engine.TENSOR]
        + model.dma_start_ps
    ) / 1e6
    assert time_us(program) == pytest.approx(before_us + max(by_engine_us, by_dma_us), rel=1e-3)
    assert by_engine_us != pytest.approx(by_dma_us, rel=0.2)


def test_elements_are_walked_over_by_the_engine_of_the_queue_and_by_vector_for_tensor() -> None:
    for engine, walks in ((Engine.SCALAR, Engine.SCALAR), (Engine.TENSOR, Engine.VECTOR)):
        program = compiled(f'ROOT w = u8[1] work(;"engine":"{engine.value}","elements":1000)')
        (work,), _ = works_of(program, engine, program.queues[engine])
        assert work.phases[0].lanes == {(walks, Mode.FULL): 1000}


def test_sync_moves_bytes_and_computes_nothing() -> None:
    program = compiled('ROOT w = u8[1] work(;"engine":"Sync","elements":1000,"bytes_written":64)')
    (work,), _ = works_of(program, Engine.SYNC, program.queues[Engine.SYNC])
    assert (work.phases, work.bytes_written, work.starts) == ((), 64, 1)


def test_its_bytes_compete_for_memory_while_it_takes_its_time() -> None:
    alone = compiled('ROOT w = u8[1] work(;"duration_ps":100000000,"bytes_read":1000000)')
    assert time_us(alone) == pytest.approx(100)
    crowded = compiled('ROOT w = u8[1] work(;"duration_ps":1000000,"bytes_read":1000000000)')
    assert time_us(crowded) > 1000


def test_a_slow_core_takes_longer_for_a_duration_too() -> None:
    program = compiled('ROOT w = u8[1] work(;"duration_ps":100000000)')
    slow = ncc_runtime.load(program, "trn2", slow=["c0.core0=50%"]).run(values=False)
    assert slow.time_us == pytest.approx(LAUNCH_US + 200)


def test_values_are_refused_by_the_name_of_the_first() -> None:
    model = ncc_runtime.load(compiled("first = u8[1] work(;)\nROOT b = u8[1] work(first;)"))
    with pytest.raises(InputError, match=r"only sizes are known, the first is first.*--no-values"):
        model.run(seed=0)


def test_a_loop_that_follows_from_it_asks_for_a_trip_count() -> None:
    rows = """
      x = s32[] parameter(0)
      w = s32[] work(x;)
      ROOT l = s32[] while(w), condition=less, body=next
    """
    loop = (
        "less { s = s32[] parameter(0) k = s32[] constant(3) "
        "ROOT p = pred[] compare(s, k), direction=LT }\n"
        "next { s = s32[] parameter(0) one = s32[] constant(1) ROOT n = s32[] add(s, one) }\n"
    )
    source = text(rows).replace("ENTRY", loop + "ENTRY")
    model = ncc_runtime.load(ncc_compiler.compile_text(source))
    with pytest.raises(ControlError, match=r"w, of which only sizes are known"):
        model.run([START], values=False)
    assert model.run([START], values=False, trip_counts={"l": 2}).time_us is not None


def test_the_reference_does_not_know_what_it_computes_either() -> None:
    with pytest.raises(ValueError, match="only sizes are known"):
        run_module(load_text(text("ROOT w = u8[1] work(;)")), [[]])


def test_it_is_never_fused_nor_kept_in_sbuf() -> None:
    rows = """
      x = f32[128,512] parameter(0)
      a = f32[128,512] exponential(x)
      w = f32[128,512] work(a;)
      b = f32[128,512] negate(w)
      ROOT c = f32[128,512] add(b, b)
    """
    program = compiled(rows)
    assert WORK in program.queues[Engine.TENSOR].names()
    assert all(row.opcode != WORK for fusion in program.fusions for row in fusion.body)
    size = math.prod((128, 512)) * 4
    (work,), _ = works_of(program, Engine.VECTOR, program.queues[Engine.VECTOR])
    assert work.bytes_read == size


def test_thorough_compilation_knows_how_long_it_takes() -> None:
    # the sum of a long product hides behind other work if the order is made for it
    rows = """
      a = f32[1048576] work(;"duration_ps":1000000)
      long = u8[1] work(;"duration_ps":90000000)
      other = u8[1] work(long;"duration_ps":90000000)
      s = f32[1048576] all-reduce(a), replica_groups={{0,1,2,3}}, to_apply=add
      ROOT end = u8[1] work(s, other;)
    """
    plain, thorough = (compiled(rows, ranks=4, level=level) for level in (0, 2))
    assert time_us(thorough) <= time_us(plain)


def test_a_file_and_a_listing_hold_it() -> None:
    rows = 'a = bf16[8] work(;"flops":5,"bytes_read":3,"duration_ps":77)\nROOT b = u8[1] work(a;)'
    program = compiled(rows)
    assert container.unpack(container.pack(program), "here") == program
    assert parse_program(print_program(program)) == program
