"""The table of collectives: equal ones in one row, in several orders, within a screen."""

import json
from pathlib import Path

import attrs
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.cli import main
from ncc_runtime.report.collective_table import MOST_FOLDED, RowOrder, folded, table_lines
from ncc_runtime.report.collectives import CollectiveRow

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "tests/data/hlo/llama_4l_64ranks.hlo"


def row(number: int, **fields: object) -> CollectiveRow:
    plain = CollectiveRow(
        id=number,
        name=f"all-reduce.{number}",
        op="all-reduce",
        line="m.py:5",
        op_name="jit(f)/dot",
        algorithm="ring",
        groups=2,
        group_size=4,
        first_group="0-3",
        pairs=0,
        operands=1,
        bytes=2048,
        runs=1,
        start_us=10.0 * number,
        time_us=2.0,
        exposed_us=1.5,
        bytes_by_transport={"intra_chip": 0, "neuronlink": 4096, "efa": 0},
        local_bytes=0,
        sent_by_rank=(),
    )
    return attrs.evolve(plain, **fields)


def test_equal_ones_are_one_row_with_sums() -> None:
    rows = [row(0), row(1, line="m.py:7"), row(2), row(3, bytes=64), row(4)]
    assert list(table_lines(rows)) == [
        "collectives, times in us",
        "id  collective      algorithm  groups  bytes   start   time  exposed   links  line",
        "p0  3 x all-reduce  ring       2 of 4  2 KiB   0.000  6.000    4.500  12 KiB  m.py:5",
        "p1  all-reduce.1    ring       2 of 4  2 KiB  10.000  2.000    1.500   4 KiB  m.py:7",
        "p3  all-reduce.3    ring       2 of 4   64 B  30.000  2.000    1.500   4 KiB  m.py:5",
    ]


def test_each_has_a_row_with_its_scopes_where_asked() -> None:
    lines = list(table_lines([row(0), row(1, op_name="")], each=True))
    assert [line.split()[:2] for line in lines[2:]] == [
        ["p0", "all-reduce.0"],
        ["p1", "all-reduce.1"],
    ]
    assert " 2 of 4 (0-3)  2 KiB " in lines[2]
    assert lines[2].endswith("4 KiB  m.py:5  jit(f)/dot")
    assert lines[3].endswith("4 KiB  m.py:5")


@pytest.mark.parametrize(
    "other", [{"op": "all-gather"}, {"algorithm": "mesh"}, {"groups": 1}, {"group_size": 2},
              {"first_group": "0-6:2"}, {"pairs": 3},
              {"bytes": 4096}, {"operands": 2}, {"line": ""}],
)  # fmt: skip
def test_what_differs_in_anything_that_counts_has_a_row_of_its_own(other: dict) -> None:
    assert len(folded([row(0), row(1, **other)])) == 2


def test_where_lines_are_many_they_are_joined() -> None:
    few = [row(k, line=f"m.py:{k}") for k in range(MOST_FOLDED)]
    many = [*few, row(MOST_FOLDED, line="m.py:1000"), row(MOST_FOLDED + 1, line="m.py:0")]
    assert len(folded(few)) == MOST_FOLDED
    assert len(folded(many)) == 1
    assert next(reversed(list(table_lines(many)))).endswith(f"m.py:0 and {MOST_FOLDED} more")


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (RowOrder.PROGRAM, ["p0", "p1", "p2"]),
        (RowOrder.TIME, ["p1", "p2", "p0"]),
        (RowOrder.EXPOSED, ["p2", "p1", "p0"]),
        (RowOrder.BYTES, ["p0", "p1", "p2"]),
        (RowOrder.START, ["p2", "p1", "p0"]),
    ],
)
def test_rows_are_sorted(order: RowOrder, first: list[str]) -> None:
    rows = [
        row(0, bytes=4096, time_us=1.0, exposed_us=None, start_us=None),
        row(1, bytes=512, time_us=9.0, exposed_us=1.0, start_us=5.0),
        row(2, bytes=64, time_us=7.0, exposed_us=6.0, start_us=1.0),
    ]
    lines = list(table_lines(rows, order))
    assert [line.split()[0] for line in lines[2:]] == first


def test_sums_decide_the_order_of_rows_of_several() -> None:
    rows = [row(0, time_us=5.0, bytes=64), *(row(k, time_us=2.0) for k in range(1, 5))]
    assert [group.first.id for group in folded(rows)] == [0, 1]
    lines = list(table_lines(rows, RowOrder.TIME))
    assert [line.split()[0] for line in lines[2:]] == ["p1", "p0"]


def test_a_name_that_does_not_begin_with_the_op_stands_behind_it() -> None:
    lines = list(table_lines([row(0, name="grads"), row(1, name="", bytes=4)]))
    assert lines[2].startswith("p0  all-reduce grads  ring")
    assert lines[3].startswith("p1  all-reduce        ring")


GROUPS = """HloModule groups, replica_count=8
sum { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[64] parameter(0)
 a = f32[64] all-reduce(x), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=sum
 b = f32[64] all-reduce(a), replica_groups={{0,2,4,6},{1,3,5,7}}, to_apply=sum
 c = f32[64] all-reduce(b), replica_groups={{0,1,2,5},{3,4,6,7}}, to_apply=sum
 d = f32[64] all-reduce(c), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=sum
 ROOT p = f32[64] collective-permute(d), source_target_pairs={{0,1},{1,0},{2,3}} }
"""


def test_groups_are_counted_and_the_first_is_told() -> None:
    neff = ncc_compiler.compile_text(GROUPS, CompileOptions(level=0))
    rows = ncc_runtime.load(neff, "trn2").run(values=False).collectives
    told = [(row.groups, row.group_size, row.first_group, row.pairs) for row in rows]
    assert told[:3] == [(2, 4, "0-3", 0), (2, 4, "0-6:2", 0), (2, 4, "0-2,5", 0)]
    assert told[-1] == (1, 8, "0-7", 3)
    lines = list(table_lines(rows))
    assert len(lines) == 2 + len(rows)  # other groups are not equal
    assert " 3 pairs " in lines[-1]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "-"), (1000, "1000 B"), (437 * 2**20 + 2**19, "438 MiB"), (5 << 30, "5 GiB"),
     (7 * 2**20 + 2**19, "7.5 MiB"), (31 * 2**20 + 2**18, "31.2 MiB")],
)  # fmt: skip
def test_sizes_have_three_digits(size: int, text: str) -> None:
    (_, _, line) = table_lines([row(0, bytes=size)])
    assert f" {text} " in line


def test_of_loops_the_runs_are_told() -> None:
    rows = [row(0, runs=3), row(1), row(2, runs=64, bytes=4)]
    lines = list(table_lines(rows))
    assert lines[2].startswith("p0  2 x all-reduce (4 runs)  ring")
    assert lines[3].startswith("p2  all-reduce.2 (64 runs)   ring")


def test_without_a_clock_there_are_no_times() -> None:
    rows = [row(k, start_us=None, time_us=None, exposed_us=None) for k in (0, 1)]
    (line,) = list(table_lines(rows, RowOrder.BYTES))[2:]
    assert (
        line == "p0  2 x all-reduce  ring       2 of 4  2 KiB      -     -        -  8 KiB  m.py:5"
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("llama") / "llama.neff"
    ncc_compiler.compile_file(LLAMA, CompileOptions(level=2)).save(path)
    return str(path)


@pytest.mark.slow
def test_a_step_of_a_large_model_is_a_screen(llama: str, capsys) -> None:
    command = ["run", llama, "--no-values", "--no-verify", "-q"]
    assert main([*command, "--sort", "exposed", "--tokens", "32768"]) == 0
    out = capsys.readouterr().out
    lines = out.split("collectives, times in us\n")[1].split("predicted time")[0].splitlines()
    assert len(lines) <= 1 + MOST_FOLDED
    assert max(map(len, lines)) <= 125
    assert "12 x all-reduce" in out
    assert "large.py:31" in out
    assert "tokens/s" in out
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["collectives"]) == 207
    first = result["collectives"][0]
    assert (first["name"], first["line"], first["groups"]) == ("all-gather", "large.py:33", 8)
    assert first["op_name"].startswith("jit(step)/")
    times = {one["id"]: one["exposed_us"] for one in result["collectives"]}
    end = lines[0].index("exposed") + len("exposed")
    shown = {line.split()[0]: float(line[:end].split()[-1]) for line in lines[1:]}
    assert list(shown.values()) == sorted(shown.values(), reverse=True)
    assert sum(shown.values()) == pytest.approx(sum(times.values()), abs=len(shown))
    steps = result["timeline"]["critical_path"]
    lines_of = {one["id"]: one["line"] for one in result["collectives"]}
    on_path = [step for step in steps if step["placeholder"] is not None]
    assert on_path
    assert all(step["line"] == lines_of[step["placeholder"]] for step in on_path)


def test_lines_of_pipeline_stages_are_those_of_the_stage() -> None:
    stages = [
        (
            ncc_compiler.compile_file(ROOT / f"ir_examples/pipeline_stage{k}.ir"),
            range(4 * k, 4 * k + 4),
        )
        for k in (0, 1)
    ]
    rows = ncc_runtime.load(stages, "trn2").run(values=False).collectives
    assert {row.groups for row in rows} <= {1, 2}
    assert list(table_lines(rows))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--no-clock", "--sort", "time"], "--sort time needs the clock"),
        (["--no-clock", "--tokens", "5"], "--per-step needs the clock"),
        (["--tokens", "0"], "'0': the amount is from 1"),
        (["--sort", "size"], "'size' is not one of"),
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(
    words: list[str], reason: str, llama: str, capsys
) -> None:
    assert main(["run", llama, *words]) == 2
    assert reason in capsys.readouterr().err


def test_where_no_line_is_known_there_is_no_column_for_it() -> None:
    lines = list(table_lines([row(0, line=""), row(1, line="")]))
    assert lines[1].endswith("links")
    assert lines[2].startswith("p0  2 x all-reduce")
