"""The driver and the Python interface: text and files in, `.neff` out."""

import subprocess
import sys

import pytest

import ncc_compiler
from ncc_compiler import CompileError, CompileOptions, compile_file, compile_text
from ncc_compiler.driver import LOADED
from ncc_runtime.neff.container import load, unpack

MODEL = """HloModule tiny, num_partitions=2
%sum { %a = f32[] parameter(0) %b = f32[] parameter(1) ROOT %r = f32[] add(%a, %b) }
ENTRY %main {
  %x = f32[4] parameter(0)
  %c = f32[4] copy(%x)
  ROOT %y = f32[4] all-reduce(%c), channel_id=1, replica_groups={{0,1}}, to_apply=%sum, \
use_global_device_ids=true
}
"""


def test_the_bytes_hold_the_program():
    neff = compile_text(MODEL)
    assert unpack(neff.data, "m.neff") == neff.program


def test_two_compilations_give_the_same_bytes():
    assert compile_text(MODEL).data == compile_text(MODEL).data


def test_a_file_is_compiled_and_saved(tmp_path):
    (tmp_path / "m.ir").write_text(MODEL)
    neff = compile_file(tmp_path / "m.ir")
    neff.save(tmp_path / "m.neff")
    assert load(tmp_path / "m.neff") == neff.program


def test_the_file_is_named_in_its_errors(tmp_path):
    (tmp_path / "m.ir").write_text(MODEL.replace("copy", "kopy"))
    with pytest.raises(CompileError, match=r"m\.ir:5:15: error\[op-C1\]"):
        compile_file(tmp_path / "m.ir")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_level_compiles_and_verifies_between_passes(level):
    neff = compile_text(MODEL, CompileOptions(level=level, verify_each_pass=True))
    copies = sum(row.opcode == "copy" for table in neff.program.queues.values() for row in table)
    assert copies == (1 if level == 0 else 0)


def test_ranks_come_from_the_options_where_the_text_has_none():
    text = "ENTRY %main { ROOT %x = f32[4] parameter(0) }"
    assert compile_text(text, CompileOptions(ranks=4)).program.ranks == 4


def test_observers_see_the_loaded_module_first():
    seen = []
    compile_text(MODEL, observe=lambda *what: seen.append(what[0]))
    assert seen[:3] == [LOADED, "join-transfers", "join-halves"]


@pytest.mark.parametrize("level", [-1, 3])
def test_levels_that_do_not_exist_are_refused(level):
    with pytest.raises(ValueError, match="level"):
        CompileOptions(level=level)


def test_line_ends_of_windows_and_a_mark_in_front_are_read(tmp_path):
    (tmp_path / "m.ir").write_bytes(b"\xef\xbb\xbf" + MODEL.replace("\n", "\r\n").encode())
    assert compile_file(tmp_path / "m.ir").data == compile_text(MODEL).data


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, ncc_compiler; print(*sorted({'numpy', 'lark', 'attrs'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_what_the_package_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        ncc_compiler.nothing  # noqa: B018


def test_the_package_lists_its_names():
    assert {"CompileOptions", "compile_file", "compile_text"} <= set(dir(ncc_compiler))
