"""`nccrt list` of several ranks and as data, `nccc list --json`: the text, field by field."""

import json
import re
from pathlib import Path

import pytest

import ncc_compiler.cli
import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.lowering.listing import list_executable, listed_queues, ranks_text
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.runtime import Model
from tests.programs import collective_program


@pytest.fixture
def neff(tmp_path: Path) -> str:
    file = tmp_path / "m.neff"
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [3000])
    container.save(container.pack(program), file)
    return str(file)


@pytest.fixture
def model(neff: str) -> Model:
    return ncc_runtime.load(neff)


def queue_texts(text: str) -> dict[str, list[str]]:
    """Lines of each queue, blanks apart."""
    blocks = [block.splitlines() for block in text.split("\n\n")[1:]]
    return {block[0].split()[1]: [" ".join(line.split()) for line in block[1:]] for block in blocks}


def test_all_ranks_are_listed_and_equal_queues_once(neff: str, model: Model, capsys) -> None:
    assert main(["list", neff, "--rank", "all"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1] == "ranks 0-7 of 8; what is the same on several is listed once"
    headings = [line for line in text.splitlines() if line.startswith("queue ")]
    assert [line for line in headings if "GpSimd of ranks 0-7 " in line]
    assert len([line for line in headings if line.startswith("queue cc0.dma0 ")]) == 8
    listed = listed_queues(model.executable, range(8))
    for rank in range(8):
        alone = queue_texts(list_executable(model.executable, rank))
        for queue in listed:
            if rank in queue.ranks:
                lines = queue.as_text(of_ranks=True).splitlines()[1:]
                assert [" ".join(line.split()) for line in lines] == alone[queue.queue.name]


def test_each_rank_has_each_queue_once(model: Model) -> None:
    listed = listed_queues(model.executable, range(8))
    for name in {queue.queue.name for queue in listed}:
        ranks = [rank for queue in listed if queue.queue.name == name for rank in queue.ranks]
        assert sorted(ranks) == list(range(8))


def test_some_ranks_in_order_each_once(neff: str, capsys) -> None:
    assert main(["list", neff, "--rank", "5,1-2,2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ranks"] == [1, 2, 5]
    assert {rank for queue in result["queues"] for rank in queue["ranks"]} == {1, 2, 5}
    assert result["listing"][1].startswith("ranks 1-2,5 of 8")


def test_rows_as_data_say_what_lines_say(neff: str, capsys) -> None:
    assert main(["list", neff, "--rank", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    texts = queue_texts("\n".join(result["listing"]))
    queues = {queue["name"]: queue for queue in result["queues"]}
    assert list(queues) == list(texts)
    assert {queue["kind"] for queue in queues.values()} == {"engine", "cc", "dma"}
    for name, queue in queues.items():
        assert queue["ranks"] == [3]
        for row, line in zip(queue["rows"], texts[name], strict=True):
            assert line.split()[:2] == [str(row["pc"]), row["op"]]
            wait = row["wait"]
            said = re.search(r"wait (\S+)>=(\d+)", line)
            assert (wait and (wait["semaphore"], str(wait["value"]))) == (said and said.groups())
            for post in row["post"]:
                at = "" if post["rank"] is None else f"@{post['rank']}"
                assert f"{post['semaphore']}{at}" in line
    for row, line in zip(queues["cc0.dma0"]["rows"], texts["cc0.dma0"], strict=True):
        (target, *_), sources = row["targets"], row["sources"]
        at = "" if target["rank"] is None else f"@{target['rank']}"
        assert f"{target['address']:#x}{at} = " in line
        assert all(f"{source['address']:#x}" in line for source in sources)
        assert f"{row['bytes']} B" in line
        assert row["route"] in line
        assert f"p{row['placeholder']} {row['collective']}" in line


def test_registers_are_data_too(tmp_path: Path, capsys) -> None:
    from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case

    case = Case(OPERATORS["alltoallv"], 4, DTYPES["fp32"], 256)
    model = ncc_runtime.load(program_of_case(case))
    rows = {q.queue.name: q.as_json()["rows"] for q in listed_queues(model.executable, [1])}
    loads = [row for row in rows["cc0"] if row["op"] == "load"]
    assert all(first < last for first, last in (row["registers"] for row in loads))
    moved = [row for ring in rows if ".dma" in ring for row in rows[ring]]
    assert any(row["rows_register"] is not None for row in moved)
    assert any(
        place["register"] is not None for row in moved for place in row["targets"] + row["sources"]
    )


@pytest.mark.parametrize(
    ("word", "code", "fact"),
    [
        ("8", 2, "rank 8 is not below the program's 8 ranks"),
        ("0-9", 2, "rank 9 is not below"),
        ("some", 2, "'some' are no ranks, such as 0-3,8"),
        ("-1", 2, "are no ranks"),
        ("3-1", 2, "3-1 is no run of ranks"),
        ("", 2, "are no ranks"),
    ],
)
def test_ranks_that_are_none_are_wrong_usage(
    neff: str, capsys, word: str, code: int, fact: str
) -> None:
    assert main(["list", neff, "--rank", word]) == code
    assert fact in capsys.readouterr().err


def test_a_compiled_program_is_data(neff: str, capsys) -> None:
    assert ncc_compiler.cli.main(["list", neff, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    program = container.load(Path(neff))
    names = {engine.value for engine in program.queues}
    assert {queue["name"] for queue in result["queues"]} == names
    said = result["program"]
    assert said["hbm_bytes"] == program.hbm_bytes
    assert [each["name"] for each in said["tensors"]] == [each.name for each in program.tensors]
    assert said["cc"][0]["op"] == "all-reduce"
    for queue in result["queues"]:
        table = program.queues[next(e for e in program.queues if e.value == queue["name"])]
        assert [row["op"] for row in queue["rows"]] == table.names()
        for row, instruction in zip(queue["rows"], table, strict=True):
            assert row["results"] == list(instruction.results)
            assert row["operands"] == list(instruction.operands)
            assert row["flops"] == instruction.flops


def test_names_of_ranks() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([0, 1, 2, 8]) == "ranks 0-2,8"
    assert ranks_text(range(64)) == "ranks 0-63"
