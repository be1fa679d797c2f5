"""Constants whose values XLA left out of the text: compiled, timed, and never made up."""

import re
from pathlib import Path

import attrs
import pytest

import ncc_runtime
from ncc_compiler import cli
from ncc_compiler.codegen.generate import Neff
from ncc_compiler.driver import compile_text, load_text
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.options import CompileOptions
from ncc_runtime.errors import InputError
from ncc_runtime.neff.check import check
from ncc_runtime.neff.container import unpack
from ncc_runtime.neff.listing import parse_program, print_program
from ncc_runtime.neff.program import BufferId, BufferKind, Program

LLAMA = Path(__file__).parent / "data" / "hlo" / "llama_4l_64ranks.hlo"
TWO = """HloModule two, num_partitions=2

%scaled (p: f32[64]) -> f32[64] {
  %p = f32[64] parameter(0)
  %weights = f32[64] constant({...})
  ROOT %s = f32[64] multiply(%p, %weights)
}

ENTRY %main (x: f32[64]) -> (f32[64], f32[2,64]) {
  %x = f32[64] parameter(0)
  %table = f32[64] constant({...})
  %once = f32[64] call(%x), to_apply=%scaled
  %twice = f32[64] call(%once), to_apply=%scaled
  %sum = f32[64] add(%twice, %table)
  %wide = f32[2,64] broadcast(%table), dimensions={1}
  ROOT %both = (f32[64], f32[2,64]) tuple(%sum, %wide)
}
"""


def compiled(text: str = TWO, level: int = 2) -> Neff:
    return compile_text(text, CompileOptions(level=level), "dir/two.hlo")


def elided_names(program: Program) -> list[str]:
    return [buffer.name for buffer in program.buffers if buffer.kind is BufferKind.ELIDED]


def test_constants_without_values_are_not_merged_with_each_other() -> None:
    assert len(elided_names(compiled().program)) == 2


def test_a_computation_called_twice_has_one_buffer_for_its_constant() -> None:
    names = elided_names(compiled(level=0).program)
    assert sum(name.startswith("weights") for name in names) == 1


def test_what_depends_on_them_is_left_to_the_devices() -> None:
    opcodes = {name for table in compiled().program.queues.values() for name in table.names()}
    assert "broadcast" in opcodes


def test_they_are_printed_as_they_were_read() -> None:
    module = load_text(TWO)
    assert print_module(module).count("constant({...})") == 2
    assert load_text(print_module(module)) == module


def test_their_buffers_have_room_and_no_bytes() -> None:
    program = compiled().program
    sizes = [buffer.size_bytes for buffer in program.buffers if buffer.kind is BufferKind.ELIDED]
    assert (sizes, dict(program.constants)) == ([256, 256], {})


def test_the_file_says_so_and_reads_back() -> None:
    neff = compiled()
    assert unpack(neff.data, "two.neff") == neff.program
    assert int.from_bytes(neff.data[544:552], "little") == 1 << 2


def test_the_listing_says_so_and_reads_back() -> None:
    program = compiled().program
    text = print_program(program)
    assert len(re.findall(r"^ +b\d+ +elided ", text, re.MULTILINE)) == 2
    assert parse_program(text) == program


def test_their_place_is_the_line_of_the_text_where_nothing_else_is_known() -> None:
    places = {origin.node: origin.place for origin in compiled().program.elided()}
    assert places["table"] == "two.hlo:11"


def test_bytes_for_one_break_the_contract() -> None:
    program = compiled().program
    number = next(n for n, b in enumerate(program.buffers) if b.kind is BufferKind.ELIDED)
    broken = attrs.evolve(program, constants={BufferId(number): bytes(256)})
    assert [text.split()[0] for text in check(broken)] == ["neff-M4"]


def test_a_run_with_values_is_refused_with_place_and_remedy() -> None:
    model = ncc_runtime.load(compiled())
    facts = r"2 constants have no value.*the first is \S+ \(two.hlo:\d+\).*"
    remedy = r"--xla_dump_large_constants.*print_large_constants=True.*--no-values"
    with pytest.raises(InputError, match=facts + remedy):
        model.run(seed=0)


def test_a_run_without_values_gives_the_time() -> None:
    assert ncc_runtime.load(compiled()).run(values=False).time_us


def test_compiling_warns_once_with_the_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compile", str(LLAMA), "-o", str(tmp_path / "out.neff")]) == 0
    streams = capsys.readouterr()
    assert len(streams.err.splitlines()) == len(streams.out.splitlines()) == 1
    assert "warning" in streams.err
    assert "2 constants have no value" in streams.err
    assert "constant.535 (large.py:37)" in streams.err


def test_a_llama_step_of_64_ranks_has_a_time_on_one_instance() -> None:
    run = ncc_runtime.load(compile_text(LLAMA.read_text()), "trn2").run(values=False)
    assert run.time_us > 1000
