"""What a program takes of a rank's memory: kinds that add up, lines, words."""

import json
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings

import ncc_compiler
import ncc_runtime
from ncc_compiler.cli import main as nccc
from ncc_compiler.options import CompileOptions
from ncc_runtime.cli import main as nccrt
from ncc_runtime.neff.check import check
from ncc_runtime.neff.memory import (
    MemoryUse,
    largest_lines,
    memory_json,
    memory_of,
    memory_text,
    size_text,
)
from ncc_runtime.neff.program import BufferKind, Program
from ncc_runtime.neff.stages import stages_of
from ncc_runtime.report.run import memory_use
from tests.draws_neff import programs
from tests.example_count import examples

ROOT = Path(__file__).parents[2]
MODELS = [*(ROOT / "ir_examples").glob("*.ir"), *(ROOT / "tests/data/hlo").glob("*.hlo")]
GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10


def bytes_of(program: Program, *kinds: BufferKind) -> int:
    """The sizes of buffers, each up to a multiple of 64."""
    sizes = [buffer.size_bytes for buffer in program.buffers if buffer.kind in kinds]
    return sum(-(-size // 64) * 64 for size in sizes)


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)
def test_the_kinds_add_up_to_what_is_charged(model: Path) -> None:
    options = CompileOptions(level=1)
    program = ncc_compiler.compile_file(model, options).program
    memory = memory_of(program)
    assert memory.size_bytes == sum(memory.by_kind.values()) == program.hbm_bytes
    assert memory.parameters == bytes_of(program, BufferKind.INPUT)
    donated = [program.buffers[number] for number in program.donated()]
    assert memory.outputs == bytes_of(program, BufferKind.OUTPUT) - sum(
        -(-buffer.size_bytes // 64) * 64 for buffer in donated
    )
    assert memory.constants == bytes_of(program, BufferKind.CONSTANT, BufferKind.ELIDED)
    # what shares, also with outputs, is at least as large as its largest
    sizes = [one.size_bytes for one in program.buffers if one.kind is BufferKind.INTERNAL]
    assert max(sizes, default=0) <= memory.temporaries + memory.outputs
    assert memory.temporaries <= bytes_of(program, BufferKind.INTERNAL)


@given(program=programs())
@settings(max_examples=examples(50))
def test_of_any_correct_program_no_kind_is_negative(program: Program) -> None:
    if check(program):
        return
    memory = memory_of(program)
    assert min(memory.by_kind.values()) >= 0
    assert memory.size_bytes == program.hbm_bytes


def test_channel_buffers_are_what_placing_adds() -> None:
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo")
    executable = ncc_runtime.load(neff, "trn2").executable
    memory = memory_use(executable)
    assert memory.size_bytes == executable.hbm_bytes
    assert memory.channel_buffers == executable.hbm_bytes - neff.program.hbm_bytes > 0
    assert memory.share == executable.hbm_bytes / (24 * GIB)
    assert {**memory.by_kind, "channel_buffers": 0} == memory_of(neff.program).by_kind


def test_of_several_programs_the_rank_that_takes_most_counts() -> None:
    stages = [
        (
            ncc_compiler.compile_file(ROOT / f"ir_examples/pipeline_stage{k}.ir"),
            range(4 * k, 4 * k + 4),
        )
        for k in (0, 1)
    ]
    alone = max((memory_of(neff.program) for neff, _ in stages), key=lambda one: one.size_bytes)
    executable = ncc_runtime.load(stages, "trn2").executable
    joint = memory_use(executable)
    assert {**joint.by_kind, "channel_buffers": 0} == alone.by_kind
    assert joint.size_bytes == executable.hbm_bytes
    assert joint.largest() == alone.largest()
    buffers = [number for stage in stages_of(executable.program) for number in stage.buffers]
    assert buffers == list(range(len(executable.program.buffers)))


TEXT = """HloModule lines, replica_count=2
sum { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a, b) }
ENTRY e {
 w = f32[300,1024] parameter(0), metadata={op_name="params['w']"}
 v = f32[300,1024] parameter(1), metadata={op_name="params['v']"}
 a = f32[300,1024] add(w, v), metadata={source_file="m.py" source_line=4}
 s = f32[300,1024] all-reduce(a), replica_groups={}, to_apply=sum,
  metadata={source_file="m.py" source_line=5}
 ROOT r = f32[300,1024] multiply(s, w)
}
"""


def test_the_largest_buffers_have_the_names_and_lines_of_the_model() -> None:
    memory = memory_of(ncc_compiler.compile_text(TEXT).program)
    rows = [attrs.astuple(row) for row in memory.largest()]
    size = 300 * 1024 * 4
    assert rows[0] == ("parameters", "params['w']", "", 2, size)
    assert set(rows[1:]) == {
        ("temporaries", "a", "m.py:4", 1, size),
        ("outputs", "r", "", 1, size),
    }
    assert next(largest_lines(memory, 2)) == "  2 x  1.2 MiB  parameters   params['w']"
    assert memory.largest()[0].text == "parameters params['w'] and 1 more of 1.2 MiB each"


def test_a_result_of_a_collective_has_its_line() -> None:
    text = TEXT.replace("ROOT r = f32[300,1024] multiply(s, w)", "ROOT r = f32[300,1024] copy(s)")
    rows = memory_of(ncc_compiler.compile_text(text).program).largest()
    assert ("outputs", "m.py:5") in [(row.kind, row.line) for row in rows]


def use(capacity: int | None, **kinds: int) -> MemoryUse:
    program = ncc_compiler.compile_text(TEXT).program
    zeros = {"parameters": 0, "outputs": 0, "constants": 0, "temporaries": 0, "channel_buffers": 0}
    return MemoryUse(program, range(0), **{**zeros, **kinds}, capacity=capacity)


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (
            use(24 * GIB, parameters=9318 * MIB, temporaries=6 * GIB, channel_buffers=410 * MIB),
            "HBM of 24 GiB a rank: parameters 9.1, temporaries 6.0, channel buffers 0.4, in all "
            "15.5 (65 %)",
        ),
        (
            use(24 * GIB, parameters=30 * GIB, outputs=100, constants=33 * MIB),
            "HBM of 24 GiB a rank: parameters 30.0 GiB, outputs 100 B, constants 33.0 MiB, in all "
            "30.0 GiB (125 %), 6.0 GiB too much",
        ),
        (
            use(24 * GIB, parameters=1536, temporaries=64),
            "HBM of 24 GiB a rank: parameters 1.5 KiB, temporaries 64 B, in all 1.6 KiB (less than "
            "1 %)",
        ),
        (
            use(24 * GIB, parameters=20 * MIB, outputs=60 * KIB, temporaries=150 * KIB),
            "HBM of 24 GiB a rank: parameters 20.0 MiB, outputs 60.0 KiB, temporaries 150.0 KiB, "
            "in all 20.2 MiB (less than 1 %)",
        ),
        (use(None, parameters=1536), "HBM a rank: parameters 1.5 KiB, in all 1.5 KiB"),
        (use(None), "HBM a rank: in all 0 B"),
        (use(1000, outputs=500), "HBM of 1000 B a rank: outputs 500 B, in all 500 B (50 %)"),
    ],
)  # fmt: skip
def test_the_line(memory: MemoryUse, text: str) -> None:
    assert memory_text(memory) == text
    assert memory.fits == ("too much" not in text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert size_text(size) == text


def test_every_command_says_it_and_has_it_in_json(tmp_path: Path, capsys) -> None:
    neff = str(tmp_path / "mlp.neff")
    compiling = ["compile", str(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo"), "-o", neff]
    assert nccc(compiling) == 0
    assert "; HBM a rank: parameters 24.0 KiB, outputs 16.1 KiB, " in capsys.readouterr().out
    assert nccc([*compiling, "--json"]) == 0
    compiled = json.loads(capsys.readouterr().out)["memory"]
    assert compiled["capacity_bytes"] is compiled["share"] is None
    assert compiled["by_kind"]["channel_buffers"] == 0
    commands = (["run", "--no-values"], ["explain"], ["verify"])
    for command, *options in commands:
        assert nccrt([command, neff, *options]) == 0
        line = capsys.readouterr().out.splitlines()[1]
        assert line.startswith("HBM of 24 GiB a rank: parameters 24.0 KiB, ")
        assert nccrt([command, neff, *options, "--json"]) == 0
        memory = json.loads(capsys.readouterr().out)["memory"]
        assert memory["capacity_bytes"] == 24 * GIB
        assert memory["bytes"] == sum(memory["by_kind"].values()) > compiled["bytes"]
        assert memory["largest"] == compiled["largest"]


def test_an_empty_program_has_an_empty_table() -> None:
    memory = use(GIB)
    assert list(largest_lines(memory, 5)) == []
    assert memory_json(memory)["largest"] == []
