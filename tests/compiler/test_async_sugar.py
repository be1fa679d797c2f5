"""`<op>-start`, `-update` and `-done` of any op, as XLA prints an async-start of that op alone."""

import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.driver import compile_text
from ncc_compiler.ir.text.printer import print_module
from tests.compiler.reading import SUM, complaints, load
from tests.reference_runs import run_text

PLAIN = """HloModule m, num_partitions=2
wrapped_slice {
  x = f32[8] parameter(0)
  ROOT s = f32[4] slice(x), slice={[2:6]}
}
ENTRY main {
  x = f32[8] parameter(0)
  s = ((f32[8]), f32[4], s32[]) async-start(x), calls=wrapped_slice
  u = ((f32[8]), f32[4], s32[]) async-update(s)
  ROOT d = f32[4] async-done(u)
}
"""
SUGARED = """HloModule m, num_partitions=2
ENTRY main {
  x = f32[8] parameter(0)
  s = ((f32[8]), f32[4], s32[]) slice-start(x), slice={[2:6]}
  u = ((f32[8]), f32[4], s32[]) slice-update(s)
  ROOT d = f32[4] slice-done(u)
}
"""
PREAMBLE = "HloModule m, num_partitions=4\n" + SUM + "x = f32[8] parameter(0)\n"
LINE = PREAMBLE.count("\n") + 1


def test_a_sugared_start_is_an_async_start_of_the_op() -> None:
    assert print_module(load(SUGARED)) == print_module(load(PLAIN))


def test_reference_and_runtime_compute_a_sugared_start() -> None:
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    (found,) = ncc_runtime.load(compile_text(SUGARED)).run([x]).outputs
    np.testing.assert_array_equal(found, x[:, 2:6])
    np.testing.assert_array_equal(run_text(SUGARED, x)[0], x[:, 2:6])


def test_a_text_without_header_has_the_ranks_of_a_wrapped_collective() -> None:
    config = 'custom_call_target="ncc.reduce"'
    groups = '{"replica_groups":[[0,1],[2,3]],"root":1,"reduction":"add"}'
    start = f"((f32[]), f32[]) custom-call-start(x), {config}, backend_config={groups}"
    assert load(f"x = f32[] parameter(0)\nROOT s = {start}\n").ranks == 4


RIGHT = (
    "((f32[8]), f32[8]) negate-start(x), async_execution_thread=\"other\"",
    "((f32[8], f32[8]), f32[8], u32[]) add-start(x, x)",
    "((f32[8]), (f32[2], s32[2]), u32[]) topk-start(x), k=2, largest=true",
    "((), u32[]) partition-id-start()",
    "((f32[8], f32[]), f32[]) reduce-start(x, constant), dimensions={0}, to_apply=sum",
)  # fmt: skip


@pytest.mark.parametrize("line", RIGHT)
def test_a_program_reads_back_as_it_is_printed(line: str) -> None:
    module = load(f"{PREAMBLE}constant = f32[] constant(0)\nROOT r = {line}\n")
    assert load(print_module(module)) == module


def test_a_custom_call_may_start() -> None:
    config = 'custom_call_target="ncc.reduce", backend_config={"root":0,"reduction":"add"}'
    module = load(f"{PREAMBLE}ROOT r = ((f32[8]), f32[8]) custom-call-start(x), {config}\n")
    ops = [node.op for node in module.computations["wrapped_custom-call"].nodes]
    assert ops == ["parameter", "ncc.reduce"]


def test_an_update_of_a_collective_gives_what_its_start_gave() -> None:
    kind = "((f32[8]), f32[8], s32[])"
    start = f"s = {kind} all-to-all-start(x), replica_groups={{}}, dimensions={{0}}\n"
    text = f"{PREAMBLE}{start}u = {kind} all-to-all-update(s)\nROOT d = f32[8] all-to-all-done(u)\n"
    assert complaints(text) == []


WRONG = (
    ("f32[8] negate-start(x)", "1:10 op-C5"),
    ("((f32[8]), f32[4]) slice-start(x), slice={[2:9]}", "1:45 slice-C2"),
    ("((f32[8]), f32[4]) slice-start(x)", "1:29 op-C3"),
    ("((f32[8]), f32[5]) slice-start(x), slice={[2:6]}", "1:21 op-C5"),
    ("((f32[8]), f32[4]) slice-start(y), slice={[2:6]}", "1:41 name-C1"),
    ("((f32[8]), f32[4]) constant-start(x)", "1:29 op-C1"),
    ("((f32[8]), f32[8]) fly-start(x)", "1:29 op-C1"),
)


@pytest.mark.parametrize(("line", "told"), WRONG)
def test_what_is_wrong_with_the_op_is_found_at_its_place(line: str, told: str) -> None:
    row, _, rest = told.partition(":")
    assert complaints(f"{PREAMBLE}ROOT r = {line}\n") == [f"{LINE + int(row) - 1}:{rest}"]


def test_a_done_belongs_to_the_start_of_its_op() -> None:
    start = "s = ((f32[8]), f32[8]) negate-start(x)\n"
    text = f"{PREAMBLE}{start}ROOT d = f32[8] sine-done(s)\n"
    assert complaints(text) == [f"{LINE + 1}:27 op-C6"]
