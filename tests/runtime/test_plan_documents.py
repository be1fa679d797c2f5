"""Plans as JSON: what is saved loads back to the same executable, what is edited is proved."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from ncc_runtime.cli import main
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError, PlanError
from ncc_runtime.lowering.executable import CcQueue, DmaQueue, Executable
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.plans import document
from ncc_runtime.report import explain
from ncc_runtime.runtime import load
from tests import msccl_files
from tests.programs import LINK_DOWN, collective_program

SCHEMA = Path(document.__file__).with_name("plan.schema.json")

BUILT_IN = [
    pytest.param(op, name, id=f"{op.value}-{name}")
    for op, algorithms in ALGORITHMS.items()
    for name in algorithms
    if op is not CollectiveOp.BARRIER
    if not op.is_counted
    if not name.startswith("hier.") or name in ("hier.ring.ring", "hier.mesh.rdh")
]

PLACES = (
    (8, {"topology": "trn2"}),
    (4, {"topology": "trn2"}),
    (8, {"topology": "trn1", "nodes": 2, "placement": "spread"}),
    (8, {"topology": "trn2-ultraserver", "placement": "spread"}),
    (64, {"topology": "trn2-ultraserver", "placement": "spread"}),
    (64, {"topology": LINK_DOWN}),
)
"""Where built-in algorithms are looked for, the first that suits."""


def suited(op: CollectiveOp, name: str) -> tuple[Program, dict[str, Any]]:
    """A program and a place that an algorithm works for."""
    for ranks, where in PLACES:
        program = program_for(op, ranks)
        try:
            load(program, **where, algorithms={op.value: name})
        except LoweringError:
            continue
        return program, dict(where)
    pytest.fail(f"{name} suits none of the places: add one that it suits")


def program_for(op: CollectiveOp, ranks: int = 8) -> Program:
    pairs = ((0, 1), (1, 0), (2, 3)) if op is CollectiveOp.PERMUTE else ()
    groups = ()
    if op is CollectiveOp.BROADCAST and ranks == 8:
        groups = ((0, 1, 2, 3), (4, 6))
    return collective_program(op, ranks, [ranks * 6], pairs=pairs, groups=groups, dtype=DType.S32)


def saved(program: Program, tmp_path: Path, **where: Any) -> Path:
    path = tmp_path / "plan.json"
    model = load(program, **where)
    forced: Mapping[str, str] = where.get("algorithms", {})
    found = explain.explained(model.executable, forced, model.plans)
    path.write_bytes(explain.saved(found))
    return path


def assert_same(one: Executable, two: Executable) -> None:
    assert one.lowered == two.lowered
    assert (one.hbm_bytes, one.semaphore_count) == (two.hbm_bytes, two.semaphore_count)
    for ours, theirs in zip(one.queues, two.queues, strict=True):
        assert ours.name == theirs.name
        columns = []
        if isinstance(ours, DmaQueue):
            columns = ["opcode", "round", "divisor", "peer", "sources", "target", "size_bytes"]
            columns += ["source_rank", "second_peer", "second_target"]
        if isinstance(ours, CcQueue):
            columns = ["opcode", "round", "ring", "ring_row"]
        for column in columns:
            np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column))
        np.testing.assert_array_equal(ours.sync.wait_sem, theirs.sync.wait_sem)
        np.testing.assert_array_equal(ours.sync.wait_value, theirs.sync.wait_value)
        for post, other in zip(ours.sync.posts, theirs.sync.posts, strict=True):
            np.testing.assert_array_equal(post.rank, other.rank)
            np.testing.assert_array_equal(post.sem, other.sem)


@pytest.mark.parametrize(("op", "name"), BUILT_IN)
def test_every_built_in_plan_is_saved_and_loaded_to_the_same_executable(
    op: CollectiveOp, name: str, tmp_path: Path
):
    program, where = suited(op, name)
    path = saved(program, tmp_path, **where, algorithms={op.value: name})
    assert_same(
        load(program, **where, algorithms={op.value: name}).executable,
        load(program, **where, plans=[str(path)]).executable,
    )
    jsonschema.validate(json.loads(path.read_bytes()), json.loads(SCHEMA.read_bytes()))


def test_the_schema_beside_the_code_is_that_of_the_classes():
    assert json.loads(SCHEMA.read_bytes()) == document.schema()


def test_an_msccl_file_is_saved_as_json_too(tmp_path: Path):
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [50], dtype=DType.S32)
    xml = tmp_path / "plan.xml"
    xml.write_text(msccl_files.all_pairs_all_reduce(8, in_place=False).xml())
    path = saved(program, tmp_path, plans=[str(xml)])
    one, two = (load(program, plans=[str(file)]) for file in (xml, path))
    assert_same(one.executable, two.executable)
    values = np.random.default_rng(0).integers(0, 9, (8, 50)).astype(np.int32)
    np.testing.assert_array_equal(two.run([values]).outputs[0][3], values.sum(0))


def test_one_file_holds_the_plans_of_a_whole_program(tmp_path: Path):
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [64], repeat=3)
    path = saved(program, tmp_path)
    model = load(program, plans=[str(path)])
    assert [one.name for one in model.executable.lowered] == ["mesh"] * 3
    assert len(json.loads(path.read_bytes())["collectives"]) == 1


def test_a_plan_without_groups_is_for_all_of_its_size(tmp_path: Path):
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16], dtype=DType.S32)
    path = saved(program, tmp_path, algorithms={"all-reduce": "ring"})
    content = json.loads(path.read_bytes())
    del content["collectives"][0]["teams"][0]["groups"]
    path.write_text(json.dumps(content))
    groups = ((0, 1, 2, 3), (7, 4, 5, 6))
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [16], groups=groups, dtype=DType.S32)
    values = np.random.default_rng(0).integers(0, 9, (8, 16)).astype(np.int32)
    run = load(program, plans=[str(path)]).run([values])
    np.testing.assert_array_equal(run.outputs[0][5], values[4:].sum(0))


Edit = Callable[[list[list[dict[str, Any]]]], object]


def refusal(edit: Edit, tmp_path: Path, algorithm: str = "ring") -> str:
    """What is said of a ring over four ranks, 16 words, after an edit of its rounds."""
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16], dtype=DType.S32)
    path = saved(program, tmp_path, algorithms={"all-reduce": algorithm})
    content = json.loads(path.read_bytes())
    edit(content["collectives"][0]["teams"][0]["rounds"])
    path.write_text(json.dumps(content))
    with pytest.raises(PlanError) as caught:
        load(program, plans=[str(path)])
    before, said = str(caught.value).split(f"plan {path}: ")
    assert not before
    assert "\n" not in said
    return said


def test_an_edit_that_breaks_the_sum_names_chunk_rank_and_round(tmp_path: Path):
    def edit(rounds: list[list[dict[str, Any]]]) -> None:
        rounds[5][0]["sources"][0]["offset"] = [0, 16, 32, 48]

    said = refusal(edit, tmp_path)
    assert said.startswith("p0: chunk 1 of rank 0 is wrong, in round 6: rank 0, result 0, bytes 0x")


def test_an_edit_that_leaves_no_credit_is_a_deadlock(tmp_path: Path):
    def edit(rounds: list[list[dict[str, Any]]]) -> None:
        for one in rounds:
            one[0].pop("consumed", None)

    assert refusal(edit, tmp_path).startswith("deadlock: rank 0, queue cc0, pc ")


def test_an_edit_that_drops_a_credit_is_a_race(tmp_path: Path):
    def edit(rounds: list[list[dict[str, Any]]]) -> None:
        for one in rounds:
            one[0].pop("credit", None)

    said = refusal(edit, tmp_path)
    assert said.startswith("races: race: channel buffer 0x")
    assert "in no order" in said


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("peer", [1, 2, 3, 4], "ring: round 0, transfer 0: peer 4, there are 4 members"),
        ("peer", [1, 1, 2, 3], "names member 1 twice: two senders of one transfer"),
        ("peer", [1, 2], "a column of 2 cells, there are 4 members"),
        ("bytes", 1 << 40, "source of 1099511627776 bytes at 48 of in, which has 64 bytes"),
        ("bytes", 3, "bytes that are no whole elements of 4"),
        ("lane", 99, "lane 99, there are 16"),
        ("divisor", 3, "divisor 3, must be 1"),
        ("after", {"sent": [0]}, "after.sent 0 is no transfer of an earlier round"),
        ("divizor", 3, "object contains unknown field `divizor` - at `$.collectives[0].teams[0]"),
        ("lane", "x", "expected `int`, got `str` - at `$.collectives[0].teams[0].rounds[0]"),
    ],
)
def test_what_a_plan_cannot_mean_is_named(key: str, value: Any, said: str, tmp_path: Path):
    def edit(rounds: list[list[dict[str, Any]]]) -> None:
        rounds[0][0][key] = value

    assert said in refusal(edit, tmp_path)


def test_what_is_no_json_is_refused_with_line_and_column(tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text('{\n "format": "ncc-plan",,\n}')
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16])
    with pytest.raises(PlanError, match="line 2, column 23: not JSON"):
        load(program, plans=[str(path)])
    path.write_text("{" + '"a":[' * 100_000)
    with pytest.raises(PlanError, match=r"plan .*plan\.json: "):
        load(program, plans=[str(path)])


def test_a_plan_that_reads_neighbours_is_refused_where_they_are_on_other_chips(tmp_path: Path):
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [64], dtype=DType.S32)
    path = saved(program, tmp_path, algorithms={"all-reduce": "kangaring"})
    said = (
        "kangaring: round 0, transfer 0: rank 0 on chip 0 would read the operand of rank 1 on chip "
        "1; a DMA reads memory of its own chip only: place these ranks on one chip, or let the "
        "other write"
    )
    with pytest.raises(PlanError) as caught:
        load(program, placement="spread", plans=[str(path)])
    assert str(caught.value) == f"plan {path}: {said}"


@pytest.mark.parametrize("topology", ["trn1", "trn3-gen1-ultraserver", "trn2-ultraserver"])
def test_a_plan_of_one_topology_runs_on_others(topology: str, tmp_path: Path):
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [40], dtype=DType.S32)
    path = saved(program, tmp_path, algorithms={"all-reduce": "ring"})
    values = np.random.default_rng(0).integers(0, 9, (8, 40)).astype(np.int32)
    run = load(program, topology, placement="spread", plans=[str(path)]).run([values])
    np.testing.assert_array_equal(run.outputs[0][5], values.sum(0))


def test_what_is_no_object_is_refused(tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text("[1, 2]")
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16])
    with pytest.raises(PlanError, match=r"plan\.json: expected `object`, got `array`"):
        load(program, plans=[str(path)])


def test_other_sizes_do_not_fit(tmp_path: Path):
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16])
    path = saved(program, tmp_path)
    other = collective_program(CollectiveOp.ALL_REDUCE, 4, [20])
    with pytest.raises(PlanError, match=r"operand_elements is \[16\] in the file, \[20\]"):
        load(other, plans=[str(path)])


def test_explain_saves_and_shows_a_plan(tmp_path: Path, capsys):
    neff, path = tmp_path / "model.neff", tmp_path / "plan.json"
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16])
    container.save(container.pack(program), neff)
    assert main(["explain", str(neff), "--save-plan", str(path)]) == 0
    capsys.readouterr()
    assert main(["explain", str(neff), "--plan", f"all-reduce={path}"]) == 0
    shown = capsys.readouterr().out
    assert "*  plan:plan.json" in shown
    assert "chosen: plan:plan.json, forced; 0.000 us" in shown
    assert main(["bench", "all_reduce", "-r", "4", "-b", "64", "--plan", str(path)]) == 0


@pytest.mark.parametrize("folder", ["", "./"])
def test_rows_of_a_plan_have_its_name_wherever_the_file_is(
    folder: str, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16])
    container.save(container.pack(program), "model.neff")
    assert main(["explain", "model.neff", "--save-plan", "plan.json"]) == 0
    sweep = ["bench", "all_reduce", "-r", "4", "-b", "64", "--algorithm", f"plan:{folder}plan.json"]
    capsys.readouterr()
    assert main([*sweep, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["algorithm"] == "plan:plan.json"


def test_the_name_of_an_algorithm_may_be_a_plan(tmp_path: Path, capsys):
    neff, path = tmp_path / "model.neff", tmp_path / "plan.json"
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16])
    container.save(container.pack(program), neff)
    assert main(["explain", str(neff), "--save-plan", str(path)]) == 0
    named = {"all-reduce": f"plan:{path}", "all-to-all": "bruck"}
    assert [file.path for file in load(program, algorithms=named).plans] == [str(path)]
    word = f"all-reduce=plan:{path}"
    assert main(["diff", str(neff), "--on", "trn2", "--on", "trn2,lnc=1", "--algorithm", word]) == 0
    capsys.readouterr()
    assert main(["explain", str(neff), "--algorithm", word]) == 0
    assert "chosen: plan:plan.json, forced" in capsys.readouterr().out
    sweep = ["bench", "all_reduce", "-r", "4", "-b", "64", "--algorithm"]
    assert main([*sweep, f"ring,plan:{path}", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["algorithm"] for row in rows] == ["ring", "plan:plan.json"]


@pytest.mark.parametrize(
    ("word", "fact"),
    [
        ("all-reduce=plan:absent.xml", "plan absent.xml: no such file or directory"),
        ("all-reduce=plan:", "is a directory; give the name of a file"),
        ("nosuch=plan:absent.xml", "plan absent.xml: no such file or directory"),
    ],
)
def test_a_plan_that_is_not_there_is_refused(tmp_path: Path, capsys, word: str, fact: str):
    neff = tmp_path / "model.neff"
    container.save(container.pack(collective_program(CollectiveOp.ALL_REDUCE, 4, [16])), neff)
    assert main(["explain", str(neff), "--algorithm", word]) == 1
    assert fact in capsys.readouterr().err


@pytest.mark.parametrize("data", [b'{"f\xd8mat": 1}', b'{"format": "\xd8"}'])
def test_bytes_that_are_no_text_are_refused_wherever_they_stand(data: bytes) -> None:
    with pytest.raises(PlanError, match="not JSON: 'utf-8' codec can't decode byte 0xd8"):
        document.decoded(data)
