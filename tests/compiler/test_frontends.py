"""Formats that are no HLO text, and programs that were never partitioned; without jaxlib.

What jaxlib makes of files is tested in tests/oracle/test_frontends.py.
"""

import importlib.util
import json
import subprocess

import pytest

from ncc_compiler.cli import main
from ncc_compiler.diagnostics import CompileError, Source
from ncc_compiler.frontends import foreign
from ncc_compiler.frontends.partitioned import check_partitioned, count_of_shardings

HEADER = "HloModule m, num_partitions=4\n"
SHARDED = "%x = f32[8] parameter(0), sharding={devices=[4]<=[4]}\n"
SHARDY = '%x = f32[8] parameter(0), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@m>"}\n'
NEGATED = "ROOT %y = f32[8] negate(%x)\n"
GATHERED = "ROOT %y = f32[32] all-gather(%x), dimensions={0}\n"


def refusal(text: str) -> str:
    with pytest.raises(CompileError) as error:
        check_partitioned(Source("m.hlo", text))
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "%y = f32[8] negate(%x), sharding={devices=[4]<=[4]}\n" + GATHERED,
        HEADER + "%y = (f32[8]) while(%x), sharding={{devices=[4]<=[4]}}\n" + GATHERED,
        HEADER + "%y = f32[8] copy(%x), sharding={manual}\n" + GATHERED,
        HEADER + SHARDY + NEGATED,
    ],
)
def test_annotations_that_nobody_acted_upon_are_refused(text: str) -> None:
    told = refusal(text)
    assert "[input-C3]: the program is annotated with shardings, but was never partitioned" in told
    assert "--xla_dump_hlo_pass_re=spmd-partitioning" in told


UNMARKED = (
    "HloModule m\n" + SHARDED + NEGATED,
    HEADER + SHARDED + NEGATED,
    HEADER + f"ENTRY %main.1 {{\n{SHARDED}{NEGATED}}}\n",
    HEADER + SHARDED + "ROOT %y = f32[8] negate(%x), sharding={devices=[4]<=[4]}\n",
)


@pytest.mark.parametrize("text", UNMARKED)
def test_a_refusal_of_what_may_be_partitioned_says_how_to_say_so(text: str) -> None:
    told = refusal(text)
    assert "annotated with shardings, and nothing shows that it was partitioned" in told
    assert "--ranks N, or give its .pb or its HLO text" in told
    assert "--xla_dump_hlo_pass_re=spmd-partitioning" in told


@pytest.mark.parametrize("text", UNMARKED)
def test_whoever_says_the_number_of_ranks_is_believed(text: str) -> None:
    check_partitioned(Source("m.hlo", text), ranks=4)


def test_annotations_inside_are_refused_whatever_the_number_of_ranks() -> None:
    text = HEADER + SHARDED + NEGATED.replace("(%x)", "(%x), sharding={devices=[4]<=[4]}")
    with pytest.raises(CompileError, match="was never partitioned"):
        check_partitioned(Source("m.hlo", text.replace("ROOT ", "")), ranks=4)


def test_the_refusal_points_at_the_annotation() -> None:
    assert refusal("HloModule m\n" + SHARDED + NEGATED).startswith("m.hlo:2:27: error")


@pytest.mark.parametrize(
    "text",
    [
        HEADER + f"ENTRY %main.1_spmd {{\n{SHARDED}{NEGATED}}}\n",
        HEADER + f"ENTRY main_spmd.clone {{\n{SHARDED}{NEGATED}}}\n",
        HEADER + SHARDED + GATHERED,
        "HloModule m\n" + SHARDED + GATHERED,
        HEADER + SHARDY + GATHERED,
        HEADER + SHARDED + GATHERED.replace("={0}", "={0}, sharding={devices=[4]<=[4]}"),
        HEADER + '%x = f32[8] parameter(0), sharding={replicated}, metadata={op_name="sharding"}\n',
        SHARDED + NEGATED,
    ],
)
def test_annotations_that_xla_leaves_are_accepted(text: str) -> None:
    check_partitioned(Source("m.hlo", text))


FINISHED = (
    "HloModule m, is_scheduled=true, num_partitions=4\n"
    "%fused {\n  %p = f32[8]{0} parameter(0)\n"
    "  ROOT %c = f32[8]{0} negate(%d)\n"
    "  %d = f32[8]{0} copy(%p), sharding={devices=[4]<=[4]}\n}\n"
    "ENTRY %m_spmd {\n  %x = f32[8]{0} parameter(0), sharding={devices=[4]<=[4]}\n"
    "  %f = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused, sharding={devices=[4]<=[4]}\n"
    "  ROOT %y = f32[8] negate(%f)\n}\n"
)


def test_annotations_that_later_passes_gave_on_are_accepted() -> None:
    check_partitioned(Source("m.hlo", FINISHED))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" is_scheduled=true,", ""),
        ("num_partitions=4", "num_partitions=1"),
        ("%m_spmd", "%m"),
        ("kind=kLoop", 'frontend_attributes={xla.sdy.sharding="#sdy.sharding<@m>"}'),
    ],
)
def test_annotations_inside_are_refused_where_a_sign_of_the_end_is_missing(old, new) -> None:
    assert "but was never partitioned" in refusal(FINISHED.replace(old, new))


@pytest.mark.parametrize(
    ("text", "world"),
    [
        ("%x = f32[8] parameter(0), sharding={devices=[4,1,2]<=[8]}", ", num_partitions=8"),
        ('HloModule m, a={mesh = #sdy.mesh<["x"=2, "y"=3]>}\n', ", num_partitions=6"),
        ("%x = f32[8] parameter(0), sharding={devices=[1]<=[1]}", ""),
        ("%x = f32[8] parameter(0)", ""),
    ],
)
def test_shardings_tell_the_number_of_devices(text: str, world: str) -> None:
    assert count_of_shardings(text) == world


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc", ".pb"])
@pytest.mark.parametrize("command", ["check", "compile"])
def test_without_jaxlib_the_extra_is_named(command, suffix, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    path = tmp_path / f"m{suffix}"
    path.write_bytes(b"module {}")
    assert main([command, str(path)]) == 1
    told = capsys.readouterr().err
    assert "takes jaxlib" in told
    assert "pip install 'neuron-ncc[jax]'" in told


def test_a_foreign_file_that_is_missing_is_refused(tmp_path, capsys):
    assert main(["check", str(tmp_path / "m.pb")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'm.pb'}: no such file or directory\n"


def answer(counts: str, text: str) -> bytes:
    """What the child writes for a module with these counts of ranks."""
    return json.dumps({"counts": counts}).encode() + b"\n" + text.encode()


def answered(monkeypatch, *, code: int, output: bytes = b"", errors: bytes = b"") -> None:
    """Let the child end so."""
    done = subprocess.CompletedProcess([], code, output, errors)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)


def read(tmp_path, data: bytes = b"module {\n  nonsense\n}\n") -> str:
    path = tmp_path / "m.mlir"
    path.write_bytes(data)
    return foreign.read_foreign(path, "StableHLO").text


def test_the_header_gets_the_ranks_that_the_text_lacks(tmp_path, monkeypatch):
    answered(monkeypatch, code=0, output=answer(", num_partitions=4", "HloModule m\n\nENTRY"))
    assert read(tmp_path) == "HloModule m, num_partitions=4\n\nENTRY"


TWO = "HloModule m, num_partitions=2\n"


def test_a_header_that_names_ranks_stays_as_it_is(tmp_path, monkeypatch):
    answered(monkeypatch, code=0, output=answer(", num_partitions=4", TWO))
    assert read(tmp_path) == TWO


TWO_OF_FOUR = """HloModule m

ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] all-to-all(x), replica_groups={{0,1}}, dimensions={0}
  ROOT z = f32[4] collective-permute(y), source_target_pairs={{0,3}}
}
"""
LONE = "HloModule m\n\nENTRY main {\n  ROOT x = f32[4] parameter(0)\n}\n"


@pytest.mark.parametrize("command", ["check", "compile"])
def test_a_guess_of_the_number_of_ranks_is_told(command, tmp_path, monkeypatch, capsys):
    answered(monkeypatch, code=0, output=answer("", LONE))
    (tmp_path / "m.pb").write_bytes(b"x")
    assert main([command, str(tmp_path / "m.pb")]) == 0
    told = f"warning: {tmp_path / 'm.pb'}: ranks inferred: 1; say --ranks"
    assert capsys.readouterr().err == f"{told} [ranks-inferred, docs/ir.md#ranks]\n"


@pytest.mark.parametrize(("world", "extra"), [("", ["--ranks", "2"]), (", num_partitions=1", ())])
def test_a_number_of_ranks_that_somebody_says_is_no_guess(
    world, extra, tmp_path, monkeypatch, capsys
):
    answered(monkeypatch, code=0, output=answer(world, LONE))
    (tmp_path / "m.mlir").write_bytes(b"x")
    assert main(["check", str(tmp_path / "m.mlir"), *extra]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["check", "compile"])
def test_groups_that_miss_guessed_ranks_name_the_option(command, tmp_path, monkeypatch, capsys):
    answered(monkeypatch, code=0, output=answer("", TWO_OF_FOUR))
    (tmp_path / "m.pb").write_bytes(b"x")
    assert main([command, str(tmp_path / "m.pb")]) == 1
    told = capsys.readouterr().err
    assert "rank 2, 3 are in no replica group" in told
    assert "the file records no number of ranks: say --ranks N" in told


def test_a_header_of_one_rank_leaves_the_ids_their_say(tmp_path, monkeypatch):
    answered(
        monkeypatch, code=0, output=answer(", replica_count=1, num_partitions=1", "HloModule m\n")
    )
    assert read(tmp_path) == "HloModule m\n"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("UNKNOWN: -:2:3: error: expected ops\n<unknown>:0: error: rest", "m.mlir:2:3: error"),
        ("UNKNOWN: -:0:0: error: too new", "m.mlir: too new"),
        ("UNKNOWN: -:9:9: error: nowhere", "m.mlir: nowhere"),
        ("INVALID_ARGUMENT: Failed to read", "m.mlir: failed to read"),
    ],
)
def test_a_complaint_of_jaxlib_is_one_of_ours(answer, told, tmp_path, monkeypatch):
    answered(monkeypatch, code=foreign.REFUSED, output=answer.encode())
    with pytest.raises(CompileError) as error:
        read(tmp_path)
    (diagnostic,) = error.value.diagnostics
    assert told in diagnostic.render()


@pytest.mark.parametrize(
    ("code", "errors", "told"),
    [
        (-11, b"", "damaged or not what its suffix says (signal 11)"),
        (1, b"Traceback\nImportError: no _hlo", "the installed jaxlib lacks what is needed"),
    ],
)
def test_a_breakdown_of_jaxlib_is_one_line(code, errors, told, tmp_path, monkeypatch):
    answered(monkeypatch, code=code, errors=errors)
    with pytest.raises(CompileError, match="input-C2") as error:
        read(tmp_path)
    assert told in str(error.value)


def test_an_empty_file_is_refused(tmp_path, monkeypatch):
    answered(monkeypatch, code=0)
    with pytest.raises(CompileError, match="the file is empty"):
        read(tmp_path, b"\n")


def test_the_child_and_its_parent_agree_on_the_code_of_a_refusal() -> None:
    child = foreign.CHILD.read_text()
    assert f"\nREFUSED = {foreign.REFUSED}\n" in child


def test_a_host_callback_on_its_own_device_is_no_reason_to_partition() -> None:
    """JAX annotates it on one device too, where no partitioner runs; the op is what is refused."""
    check_partitioned(
        Source(
            "m.hlo",
            "HloModule m\n%x = f32[8] parameter(0)\n"
            '%y = () custom-call(%x), custom_call_target="xla_ffi_python_cpu_callback", '
            "sharding={{maximal device=0}}, "
            'frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@one, []>]>"}\n'
            + NEGATED,
        )
    )


def test_many_annotations_of_one_line_are_judged_by_what_stands_before_them() -> None:
    row = 'a="xla.sdy.sharding=x"'
    call = 'c = f32[4] custom-call(x), custom_call_target="xla_python_cpu_callback"'
    many = ",".join([row] * 100_000)  # a line that was looked at for each would take hours
    body = f"ENTRY e {{\n  x = f32[4] parameter(0)\n  {call}, frontend_attributes={{{many}}}\n"
    check_partitioned(Source("m.hlo", f"HloModule m\n{body}}}\n"))
    text = f"HloModule m\n{body}  y = f32[4] copy(x), frontend_attributes={{{row}}}\n}}\n"
    with pytest.raises(CompileError) as caught:
        check_partitioned(Source("m.hlo", text))
    (found,) = caught.value.diagnostics
    assert found.span is not None
    assert found.span.start == text.rindex("xla.sdy.sharding")
