"""`nccrt bench` as a command: nccom-test's files and flags, comparisons, pictures, bad input."""

import csv
import json
import sys
from pathlib import Path

import attrs
import pytest

from ncc_runtime.calibration.measured_files import median_us, read_points
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError
from ncc_runtime.report import bench, bench_plot, bench_rows
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case
from tests.pictures import figure_of, legend, points

SIZES = ["bench", "all_gather", "-r", "8", "-b", "4KB", "-e", "64KB", "-f", "4"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(words) == 0
    return capsys.readouterr().out.splitlines()


def given(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    assert main(words) == code
    streams = capsys.readouterr()
    assert streams.err.startswith("error: ")
    assert streams.err.count("\n") == 1
    return streams.err


def test_rows_are_printed_before_the_next_ones_are_computed(capsys, monkeypatch):
    seen = []

    def row_of(case: Case, executable: object) -> bench_rows.BenchRow:
        seen.append(capsys.readouterr().out)
        return bench_rows.BenchRow(case, "ring", 1.0)

    monkeypatch.setattr(bench_rows, "row_of", row_of)
    assert main(SIZES) == 0
    assert seen[0] == ""
    assert [text.splitlines()[-1].split()[0] for text in seen[1:]] == ["4096", "16384"]


def test_the_closing_line_is_the_mean_bus_bandwidth(capsys):
    rows = given(SIZES, capsys)["results"]
    mean = sum(row["busbw_gb_per_s"] for row in rows) / 3
    assert printed(SIZES, capsys)[-1] == f"Avg bus bandwidth:  {mean:.4f}GB/s"


def test_reports_have_nccom_tests_keys_and_can_be_compared_with(folder: Path, capsys):
    files = ["--report-to-json-file", "r.json", "--report-to-csv-file", "r.csv"]
    table = printed([*SIZES, *files], capsys)
    (folder / "r.log").write_text("\n".join(["started", *table, "done"]))
    rows = json.loads((folder / "r.json").read_text())["results"]
    keys = ["size(B)", "count(elems)", "type", "time(us)", "algbw(GB/s)", "busbw(GB/s)"]
    assert list(rows[0])[:6] == keys
    assert [row["size(B)"] for row in rows] == [4096, 16384, 65536]
    in_csv = list(csv.DictReader((folder / "r.csv").read_text().splitlines()))
    assert list(in_csv[0]) == [*keys, "algorithm"]
    assert [float(row["time(us)"]) for row in in_csv] == [row["time(us)"] for row in rows]
    for name in ("r.json", "r.csv", "r.log"):
        result = given([*SIZES[:4], "--compare", name], capsys)  # sizes are the file's
        (comparison,) = result["comparisons"]
        assert comparison["rows"] == 3
        assert comparison["median_ratio"] == pytest.approx(1, abs=1e-3)
        assert comparison["left_out"] == 0


def test_several_algorithms_have_rows_size_by_size_and_averages_each(capsys):
    result = given([*SIZES, "--algorithm", "ring,mesh", "--algorithm", "all-gather=rdh"], capsys)
    assert [row["algorithm"] for row in result["results"]] == ["ring", "mesh", "rdh"] * 3
    assert [each["algorithm"] for each in result["averages"]] == ["ring", "mesh", "rdh"]
    alone = given([*SIZES, "--algorithm", "all-gather=mesh"], capsys)["results"]
    assert alone == result["results"][1::3]


def test_an_algorithm_of_another_operator_changes_nothing(capsys):
    words = [*SIZES, "--algorithm", "all-to-all=bruck"]
    assert given(words, capsys)["results"] == given(SIZES, capsys)["results"]


def test_of_several_algorithms_one_that_cannot_run_has_no_rows_and_a_warning(capsys):
    result = given([*SIZES, "--algorithm", "hier.ring.ring,mesh"], capsys)
    assert {row["algorithm"] for row in result["results"]} == {"mesh"}
    assert "no-rows" in {each["code"] for each in result["warnings"]}
    words = [*SIZES, "--algorithm", "hier.ring.ring,hier.mesh.ring"]
    assert "hier.ring.ring" in refused(words, capsys)


@pytest.mark.parametrize(
    ("word", "fact"),
    [
        ("ring,nosuch", "all-gather has no algorithm 'nosuch'"),
        ("ring,", "has no algorithm between its commas"),
        ("ring,ring", "algorithm ring is given twice"),
        ("nosuch=ring", "no collective 'nosuch'"),
    ],
)
def test_algorithms_that_are_none_are_wrong_usage(word: str, fact: str, capsys):
    assert fact in refused([*SIZES, "--algorithm", word], capsys, code=2)


@pytest.mark.parametrize(
    ("size", "number"), [("64", 64), ("4kb", 4096), ("4KiB", 4096), ("1M", 1 << 20), ("2B", 2)]
)
def test_sizes_are_in_nccom_tests_units(size: str, number: int, capsys):
    words = ["bench", "allr", "-r", "2", "-d", "uint8", "-b", size]
    assert given(words, capsys)["results"][0]["size_bytes"] == number


@pytest.mark.parametrize("size", ["1.5MB", "4 PB", "KB", "-4", "1e3", "4TB", "9" * 400, "٤", "Ki"])
def test_odd_sizes_are_wrong_usage(size: str, capsys):
    words = ["bench", "allr", "-r", "2", "-b", size]
    assert "is not a size such as 64, 4KB, 1MB, 2GB" in refused(words, capsys, code=2)


@pytest.mark.parametrize("op", ["allr", "allg", "redsct", "alltoall", "alltoallv", "allgv"])
def test_values_of_groups_are_right(op: str, capsys):
    groups = '{"groups": [[0, 2, 4, 6], [7, 5, 3, 1]]}'
    words = ["bench", op, "-r", "8", "-b", "1KB", "--check", "--custom-replica-groups", groups]
    (row,) = given(words, capsys)["results"]
    assert (row["ranks"], row["group_size"], row["check"]) == (8, 4, "random")
    share = 1.5 if op == "allr" else 0.75
    assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * share)


@pytest.mark.parametrize("op", ["permute", "sendrecv"])
def test_values_of_pairs_are_right(op: str, folder: Path, capsys):
    (folder / "pairs.json").write_text("[[0, 3], [3, 0], [1, 2]]")
    words = ["bench", op, "-r", "5", "-b", "1KB", "--check"]
    (row,) = given([*words, "--custom-src-target-pairs", "pairs.json"], capsys)["results"]
    assert row["check"] == "random"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("[[0,1],[2,4]]", "row 1: 4 is no rank of 0 to 3"),
        ("[[0,1],[2,true]]", "row 1: True is no rank"),
        ("[[0,1],[1,2]]", "rank 1 is twice in groups 0 and 1"),
        ("[[0,1]]", "rank 2 of 4 is in no group (2 are not)"),
        ("[[0,1,2],[3]]", "equal sizes of at least 2 ranks, not 1, 3"),
        ("[[0],[1],[2],[3]]", "equal sizes of at least 2 ranks, not 1"),
        ("[0,1]", "a list of lists of ranks"),
        ("[]", "a list of lists of ranks"),
        ('{"a": [[0,1]], "b": 2}', "a list of lists of ranks"),
        ("[[0,1],", "--custom-replica-groups: not JSON"),
        ("absent.json", "absent.json: no such file or directory"),
    ],
)
def test_bad_groups_are_refused_by_what_is_wrong(text: str, fact: str, capsys):
    words = ["bench", "allr", "-r", "4", "-b", "64", "--custom-replica-groups", text]
    assert fact in refused(words, capsys)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("[[0,1],[2,1]]", "rank 1 is the target of pairs 0 and 1"),
        ("[[0,1],[0,2]]", "rank 0 is the source of pairs 0 and 1"),
        ("[[0,1,2]]", "pair 0: [0, 1, 2] is not [source, target]"),
        ("[[0,-1]]", "row 0: -1 is no rank of 0 to 3"),
    ],
)
def test_bad_pairs_are_refused_by_what_is_wrong(text: str, fact: str, capsys):
    words = ["bench", "permute", "-r", "4", "-b", "64", "--custom-src-target-pairs", text]
    assert fact in refused(words, capsys)


def test_groups_are_of_collectives_and_pairs_of_permutes(capsys):
    words = ["bench", "permute", "-r", "4", "--custom-replica-groups", "[[0,1],[2,3]]"]
    assert "has pairs" in refused(words, capsys, code=2)
    words = ["bench", "allr", "-r", "4", "--custom-src-target-pairs", "[[0,1]]"]
    assert "has groups" in refused(words, capsys, code=2)


def test_statistics_are_of_runs_one_after_another(capsys):
    words = ["bench", "all_reduce", "-r", "64", "-b", "1MB", "--stats", "-n", "5"]
    (row,) = given(words, capsys)["results"]
    runs = row["runs_us"]
    assert row["time_us"] == runs["min"] < runs["avg"] < runs["max"]
    assert runs["min"] <= runs["p50"] <= runs["p99"] <= runs["max"]


def test_where_nothing_varies_one_line_says_so(capsys):
    words = ["bench", "alltoall", "-r", "16", "-b", "64KB", "--stats", "-n", "3"]
    *_, last = printed(words, capsys)
    assert last == "3 runs of each size took equally long: nothing varies"


def test_rows_of_something_else_are_left_out(folder: Path, capsys):
    row = {"table": "t", "instance": "trn2.48xlarge", "ranks": 8, "op": "all_gather"}
    row |= {"dtype": "fp32", "size_bytes": 4096, "time_us": 10.0}
    others = [row | other for other in ({"ranks": 4}, {"op": "allr"}, {"dtype": "bf16"})]
    others += [row | {"instance": "trn1.32xlarge"}, row | {"size_bytes": 12345}]
    (folder / "rows.json").write_text(json.dumps({"rows": [row, *others]}))
    (comparison,) = given([*SIZES, "--compare", "rows.json"], capsys)["comparisons"]
    assert (comparison["rows"], comparison["left_out"]) == (1, 5)
    (folder / "rows.json").write_text(json.dumps({"rows": others[:4]}))
    fact = "no row is of this operator, type, number of ranks and machine"
    assert fact in refused([*SIZES, "--compare", "rows.json"], capsys)


def test_measured_sizes_that_are_not_swept_are_named(folder: Path, capsys):
    (folder / "m.json").write_text('[{"size(B)": 100, "time(us)": 3}]')
    result = given([*SIZES, "--compare", "m.json"], capsys)
    assert "comparisons" not in result
    (said,) = (each["message"] for each in result["warnings"] if each["code"] == "none-measured")
    assert said == "m.json has no row of these sizes; it has 100 B"


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ('[{"size(B)": 64, "time:avg(us)": 5.5, "time:p99(us)": 9}]', 5.5),
        ('{"results": [{"size_bytes": 64, "time(ms)": 0.5}]}', 500.0),
        ("size(B),time(us)\n64,5\n64,9\n64,7\n", 7.0),
        ("\ufeffsize(B),time(us)\r\n64,5\r\n", 5.0),
        ("# nccom\n#  size(B)  type  time(us)\n  64  fp32  8\n\nAvg bus bandwidth: 1GB/s\n", 8.0),
    ],
)
def test_what_others_write_is_read(text: str, time_us: float, folder: Path):
    (folder / "m").write_text(text, encoding="utf-8", newline="")
    assert median_us(read_points("m"), 64) == pytest.approx(time_us)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "neither JSON nor a table"),
        ("{", "not JSON"),
        ("{}", "expected nccom-test's"),
        ('{"results": []}', "expected nccom-test's"),
        ('{"results": [3]}', "result 0: 3 is not an object"),
        ('{"results": [{"size(B)": 64}]}', "time(us) is missing"),
        ('{"results": [{"time(us)": 64}]}', "size(B) is missing"),
        ('{"results": [{"size(B)": 64, "time(us)": "fast"}]}', "'fast' is not a number above 0"),
        ('{"results": [{"size(B)": 64, "time(us)": 0}]}', "0 is not a number above 0"),
        ('{"results": [{"size(B)": 64, "time(us)": NaN}]}', "not JSON"),
        ('{"results": [{"size(B)": 64, "time(years)": 1}]}', "times are in ns, us, ms, s"),
        ('{"results": [{"size(GB)": 64, "time(us)": 1}]}', "sizes are in bytes"),
        ('{"results": [{"size(B)": 6, "time(us)": 1, "op": "x"}]}', "op 'x' is unknown"),
        ('{"results": [{"size(B)": 6, "time(us)": 1, "op": [1]}]}', "op [1] is unknown"),
        ("size(B),time(us)\n", "the table has no rows"),
        ("size(B),time(us)\n64\n", "line 2: 1 columns, not 2"),
        ("size(B),time(us)\n64,\n", "line 2: time(us) '' is not a number"),
        ('{"rows": [{}]}', "row 0: op is missing"),
    ],
)
def test_measured_files_that_are_wrong_are_refused_by_place(text: str, fact: str, folder, capsys):
    (folder / "m.txt").write_text(text)
    error = refused([*SIZES, "--compare", "m.txt"], capsys)
    assert "m.txt" in error
    assert fact in error


def test_bytes_that_are_no_text_are_refused(folder: Path):
    (folder / "m.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text in UTF-8"):
        read_points("m.bin")


def test_a_picture_is_the_same_every_time(folder: Path, capsys):
    words = [*SIZES, "--algorithm", "ring,mesh", "--compare", "m.json"]
    (folder / "m.json").write_text('[{"size(B)": 16384, "time(us)": 30}]')
    for name in ("a.svg", "b.svg", "c.png"):
        assert main([*words, "--plot", name]) == 0
    svg = (folder / "a.svg").read_bytes()
    assert svg == (folder / "b.svg").read_bytes()
    assert svg.startswith(b"<?xml")
    assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_has_a_line_for_each_algorithm_beside_what_was_measured(
    folder: Path, capsys, monkeypatch
):
    (folder / "m.json").write_text('[{"size(B)": 16384, "time(us)": 30}]')
    words = [*SIZES, "--algorithm", "ring,mesh", "--compare", "m.json", "--plot", "a.svg"]
    figure = figure_of(bench_plot, lambda: main(words), monkeypatch)
    capsys.readouterr()
    assert figure.get_suptitle().endswith("policy neuron; fp32")
    rows = given([*SIZES, "--algorithm", "ring,mesh"], capsys)["results"]
    time, bandwidth = figure.axes
    by_name = {name: [row for row in rows if row["algorithm"] == name] for name in ("ring", "mesh")}
    for axes, key in ((time, "time_us"), (bandwidth, "busbw_gb_per_s")):
        *lines, crosses = axes.lines
        for line, own in zip(lines, by_name.values(), strict=True):
            assert points(line) == [(row["size_bytes"], row[key]) for row in own]
        assert legend(axes)[-1] == "measured"
        assert crosses.get_marker() == "x"
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["4 KiB", "16 KiB", "64 KiB"]
    assert points(time.lines[-1]) == [(16384, 30.0)]
    ring = next(row for row in by_name["ring"] if row["size_bytes"] == 16384)
    assert legend(time)[0] == f"ring, {ring['time_us'] / 30:.2f} of measured"
    (at,) = points(bandwidth.lines[-1])
    assert at == (16384, pytest.approx(ring["busbw_gb_per_s"] * ring["time_us"] / 30))
    assert (time.get_ylabel(), bandwidth.get_ylabel()) == ("time (us)", "bus bandwidth (GB/s)")


def test_a_picture_shows_the_healthy_machine_and_any_order_too(folder: Path, capsys, monkeypatch):
    words = [*SIZES, "--down", "c0-c1", "--deterministic", "--plot", "a.svg"]
    figure = figure_of(bench_plot, lambda: main(words), monkeypatch)
    capsys.readouterr()
    rows = given(words[:-2], capsys)["results"]
    time = figure.axes[0]
    assert legend(time) == ["predicted", "healthy", "in any order"]
    for line, key in zip(time.lines, ("time_us", "healthy_us", "free_us"), strict=True):
        assert points(line) == [(row["size_bytes"], row[key]) for row in rows]


def test_without_matplotlib_a_line_says_what_to_install(folder: Path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = refused([*SIZES, "--plot", "a.svg"], capsys)
    assert error == "error: --plot needs matplotlib: pip install 'neuron-ncc[plot]'\n"
    assert not (folder / "a.svg").exists()


def test_a_picture_of_another_kind_is_wrong_usage(capsys):
    assert "does not end in .svg or .png" in refused([*SIZES, "--plot", "a.pdf"], capsys, code=2)


def test_what_a_rank_gives_and_gets_can_be_shown(capsys):
    head, row = printed([*SIZES[:6], "--show-input-output-size", "-w", "5"], capsys)[1:3]
    shown = dict(zip(head.split(), row.split(), strict=True))
    assert (shown["input(B)"], shown["output(B)"]) == ("512", "4096")


def test_groups_change_sizes_and_factors() -> None:
    case = Case(OPERATORS["allg"], 8, DTYPES["bf16"], 800)
    halves = attrs.evolve(case, custom_groups=bench.checked_groups([[0, 1, 2, 3], [4, 5, 6, 7]], 8))
    assert (case.chunk, halves.chunk) == (50, 100)
    assert (case.members, halves.members) == (8, 4)
