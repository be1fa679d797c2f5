"""Our programs as traces and back: the same exchanges, the same work, the same time."""

import json
from pathlib import Path

import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.report.run import Run
from tests.chakra import messages
from tests.chakra.messages import COLL, COMP, SEND

ROOT = Path(__file__).parents[2]
VARIABLE_SIZE = ("moe_dispatch.ir", "moe_ragged_dp2_ep4.hlo", "ragged_in_a_loop.hlo")
LARGE = ("llama_4l_64ranks.hlo",)
PROGRAMS = [
    path.relative_to(ROOT)
    for path in (*ROOT.glob("ir_examples/*.ir"), *ROOT.glob("tests/data/hlo/*.hlo"))
    if path.name not in VARIABLE_SIZE and not path.name.startswith("pipeline_stage")
]
SOME = [path for path in PROGRAMS if path.name not in LARGE]

WITHIN = 0.011
"""How far predicted times are apart at most, where durations are taken; it is what operands that an
instruction of their own gives, and bytes that flow more evenly, make of it."""


def exchanges(folder: Path) -> list[list[tuple[object, ...]]]:
    """By rank and in order what it exchanges: operator, bytes, members or peer, and more."""
    groups = json.loads((folder / "trace.comm_groups.json").read_text())
    found = []
    for nodes in messages.read_all(folder):
        rows: list[tuple[object, ...]] = []
        for node in nodes:
            facts = node.attributes
            if node.kind == COMP:
                continue
            with_whom = groups.get(facts.get("pg_name", ""), "all")
            if node.kind != COLL:
                with_whom = facts["comm_dst" if node.kind == SEND else "comm_src"]
            more = (
                facts.get(name) for name in ("stream", "ncc_dtype", "ncc_reduction", "ncc_root")
            )
            rows.append((facts.get("comm_type", node.kind), facts["comm_size"], with_whom, *more))
        found.append(rows)
    return found


def totals(folder: Path) -> list[tuple[int, ...]]:
    """By rank, flops, elements, bytes and picoseconds of all instructions."""
    names = ("num_ops", "ncc_elements", "tensor_size", "ncc_duration_ps")
    return [
        tuple(
            sum(node.attributes.get(name, 0) for node in nodes if node.kind == COMP)
            for name in names
        )
        for nodes in messages.read_all(folder)
    ]


def there_and_back(run: Run, folder: Path) -> Run:
    """A run of what a run is as traces; both are written."""
    run.write_chakra(folder / "one")
    programs = ncc_compiler.compile_trace(folder / "one")
    again = ncc_runtime.load(programs, "trn2").run(values=False)
    again.write_chakra(folder / "other")
    return again


@pytest.mark.parametrize(
    "path",
    [
        *SOME,
        *(pytest.param(Path("tests/data/hlo") / name, marks=pytest.mark.slow) for name in LARGE),
    ],
    ids=lambda path: path.name,
)
@pytest.mark.parametrize("level", [1, 2])
def test_a_program_comes_back_as_the_same_exchanges_work_and_time(
    level: int, path: Path, tmp_path: Path
) -> None:
    neff = ncc_compiler.compile_file(ROOT / path, CompileOptions(level=level))
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    again = there_and_back(run, tmp_path)
    assert exchanges(tmp_path / "other") == exchanges(tmp_path / "one")
    assert totals(tmp_path / "other") == totals(tmp_path / "one")
    assert again.time_us == pytest.approx(run.time_us, rel=WITHIN)


def test_stages_of_a_pipeline_come_back_as_stages(tmp_path: Path) -> None:
    stages = [
        (ncc_compiler.compile_file(ROOT / f"ir_examples/pipeline_stage{k}.ir"), ranks)
        for k, ranks in enumerate((range(4), range(4, 8)))
    ]
    run = ncc_runtime.load(stages, "trn2").run(values=False)
    again = there_and_back(run, tmp_path)
    assert exchanges(tmp_path / "other") == exchanges(tmp_path / "one")
    assert [len(stage.ranks) for stage in again.executable.stages] == [4, 4]
    assert again.time_us == pytest.approx(run.time_us, rel=WITHIN)


def test_ranks_that_do_the_same_come_back_as_one_program(tmp_path: Path) -> None:
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/ring_attention.hlo")
    ncc_runtime.load(neff, "trn2").run(values=False).write_chakra(tmp_path / "one")
    (program,) = ncc_compiler.compile_trace(tmp_path / "one")
    assert program[1] == tuple(range(neff.program.ranks))
    pairs = {one.pairs for one in neff.program.placeholders if one.pairs}
    assert {one.pairs for one in program[0].program.placeholders if one.pairs} == pairs


def test_what_came_back_comes_back_again_unchanged(tmp_path: Path) -> None:
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo")
    there_and_back(ncc_runtime.load(neff, "trn2").run(values=False), tmp_path)
    programs = ncc_compiler.compile_trace(tmp_path / "other")
    ncc_runtime.load(programs, "trn2").run(values=False).write_chakra(tmp_path / "third")
    for path in (tmp_path / "other").iterdir():
        assert path.read_bytes() == (tmp_path / "third" / path.name).read_bytes()


def test_without_durations_sizes_predict_about_the_same(tmp_path: Path) -> None:
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/mlp_train_dp8.hlo")
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    run.write_chakra(tmp_path / "one", "none")
    again = ncc_runtime.load(ncc_compiler.compile_trace(tmp_path / "one"), "trn2")
    assert again.run(values=False).time_us == pytest.approx(run.time_us, rel=0.05)
