"""`nccrt calibrate`: rows are read or refused, predicted, and a few constants fitted to them."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import ncc_compiler
from ncc_runtime import progress_bar
from ncc_runtime.calibration import preset, residual_plot, residuals
from ncc_runtime.calibration.constants import BEGIN, COMMON, MOST_PS
from ncc_runtime.calibration.fit import MOST_ERROR, fitted, standard_errors
from ncc_runtime.calibration.measured_files import read_measured
from ncc_runtime.calibration.predict import Predictor, overridden
from ncc_runtime.calibration.residuals import Calibration, calibrated
from ncc_runtime.calibration.rows import MeasuredRow
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError
from ncc_runtime.topology.graph import build
from tests.pictures import figure_of, legend, points

PUBLISHED = Path(__file__).parents[1] / "data" / "published_rows.json"
TWO_INSTANCES = PUBLISHED.with_name("two_instance_rows.json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "timing.md"

ROW: dict[str, Any] = {
    "table": "small",
    "instance": "trn1.32xlarge",
    "ranks": 2,
    "op": "all_reduce",
    "dtype": "fp32",
    "size_bytes": 4096,
    "time_us": 2.0,
}
SENDRECV = MeasuredRow("pairs", "trn2.3xlarge", 1, 1, 2, "sendrecv", "fp32", 4096, 12.0)


def file_of(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "rows.json"
    path.write_text(json.dumps({"rows": rows}))
    return str(path)


def measured_by(constants: dict[str, int]) -> tuple[MeasuredRow, ...]:
    """Rows of one chip of trn2 that are exactly what the model says with these constants."""
    rows = [
        MeasuredRow(table, "trn2.3xlarge", 1, 1, ranks, op, "fp32", size, 1.0)
        for table, ranks, op, size in (
            ("short", 2, "sendrecv", 4096),
            ("short", 8, "all_reduce", 1024),
            ("long", 4, "all_reduce", 65536),
            ("long", 8, "all_gather", 262144),
        )
    ]
    predictor = Predictor()
    return tuple(attrs.evolve(row, time_us=predictor.predict_us(row, constants)) for row in rows)


@pytest.fixture(scope="module")
def published() -> Calibration:
    rows = read_measured(str(PUBLISHED))
    return calibrated(Predictor(), rows, is_fitted=False, leave_one_out=False)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"op": "allreduce"}, "row 0: op 'allreduce' is unknown; known: all_reduce, "),
        ({"dtype": "float"}, "row 0: dtype 'float' is unknown; known: uint8, "),
        ({"ranks": 0}, "row 0: ranks 0 is not a whole number from 1"),
        ({"ranks": 1}, "row 0: a collective has at least 2 ranks, not 1"),
        ({"ranks": True}, "row 0: ranks True is not a whole number from 1"),
        ({"size_bytes": "1MB"}, "row 0: size_bytes '1MB' is not a whole number from 1"),
        ({"time_us": 0}, "row 0: time_us 0 is not a time from a picosecond"),
        ({"time_us": 1e-300}, "row 0: time_us 1e-300 is not a time from a picosecond"),
        ({"time_us": None}, "row 0: time_us None is not a time from a picosecond"),
        (
            {"pair": "cross die", "ranks": 8},
            "row 0: pair 'cross die' says where 2 ranks are, not 8",
        ),
        ({"table": ""}, "row 0: table '' is not a word"),
        ({"pair": 3}, "row 0: pair 3 is not a word"),
        ({"op": "sendrecv", "ranks": 4}, "row 0: a sendrecv is between 2 ranks, not 4"),
    ],
)
def test_a_row_that_says_nothing_sensible_is_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError) as refused:
        read_measured(file_of(tmp_path, {**ROW, **changes}))
    assert complaint in str(refused.value)


@pytest.mark.parametrize("key", sorted(ROW))
def test_a_row_without_one_of_its_keys_says_which_is_missing(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match=f"row 1: {key} is missing$"):
        read_measured(file_of(tmp_path, ROW, {name: ROW[name] for name in ROW if name != key}))


@pytest.mark.parametrize(
    "time_us", ["NaN", "Infinity", "-1", "0", "1e300", "1" * 400, "true", "null", '"2"', "[2]"]
)
def test_a_time_that_is_none_ends_the_command_with_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time_us: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [ROW]}).replace("2.0", time_us))
    assert main(["calibrate", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {path}: ")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON: "),
        ("[]", 'expected nccom-test\'s {"results": [{…}, …]}, or "rows"'),
        ('{"rows": []}', 'expected {"rows": [{…}, …]} with at least one row'),
        ('{"rows": [3]}', "row 0: 3 is not an object"),
    ],
)
def test_a_file_without_rows_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_measured(str(path))
    assert complaint in str(refused.value)


def test_remarks_beside_a_rows_keys_are_passed_over(tmp_path: Path) -> None:
    (row,) = read_measured(file_of(tmp_path, {**ROW, "trust": "none", "lnc": None, "nodes": 1}))
    assert (row.lnc, row.nodes, row.time_us) == (None, 1, 2.0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"instance": "trn9"}, "row 0: topology 'trn9' is unknown"),
        ({"ranks": 33}, "row 0: 33 ranks do not fit on 1 trn1.32xlarge"),
        ({"lnc": 2}, "row 0: trn1.32xlarge runs at lnc 1, not 2"),
        ({"size_bytes": 1 << 50}, "row 0: all_reduce.0: all-reduce cannot run by ring: "),
        (
            {"algorithm": "rings"},
            "row 0: algorithm 'rings' is unknown for all_reduce; known: ring, ",
        ),
        ({"algorithm": "hier.ring.ring"}, "cannot run: "),
    ],
)
def test_a_row_that_cannot_be_placed_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], complaint: str
) -> None:
    assert main(["calibrate", file_of(tmp_path, {**ROW, **changes})]) == 1
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_a_pair_across_dies_needs_two_of_them() -> None:
    row = attrs.evolve(SENDRECV, instance="trn1.2xlarge", pair="cross die")
    with pytest.raises(InputError, match=r"a chip of trn1\.2xlarge has one die"):
        Predictor().predict_us(row)


def test_a_way_between_dies_is_paid_by_the_handshake_and_by_the_data() -> None:
    predictor, constants = Predictor(), {"intra_chip.die_latency_ps": 1_500_000}
    across = attrs.evolve(SENDRECV, pair="cross die pair")
    apart = predictor.predict_us(across, constants) - predictor.predict_us(SENDRECV, constants)
    assert apart == pytest.approx(3.0)


def test_rows_of_two_instances_are_within_a_quarter() -> None:
    rows = read_measured(str(TWO_INSTANCES))
    found = calibrated(Predictor(), rows, is_fitted=False, leave_one_out=False)
    errors = {(one.row.table, one.row.size_bytes): one.percent for one in found.rows}
    assert len(errors) == 14
    assert all(abs(percent) < 25 for percent in errors.values()), errors


def test_a_row_is_predicted_by_the_algorithm_that_it_names_whatever_the_policy() -> None:
    row = MeasuredRow("t", "trn2", 1, 2, 16, "all_reduce", "bf16", 1 << 20, 1.0)
    times = {
        name: Predictor().predict_us(attrs.evolve(row, algorithm=name), {})
        for name in ("ring", "kangaring", "tree")
    }
    assert len(set(times.values())) == 3


def test_a_later_start_delays_a_prediction_by_as_much() -> None:
    predictor = Predictor()
    soon, late = (predictor.predict_us(SENDRECV, {"cc.start_ps": us * 10**6}) for us in (1, 6))
    assert late - soon == pytest.approx(5.0)


def test_overrides_change_figures_and_nothing_else() -> None:
    changed = overridden(SENDRECV, {"cc.start_ps": 7})
    assert changed.cc.start_ps == 7
    assert changed.cc.instruction_ps == build("trn2").cc.instruction_ps


def test_a_fit_finds_the_constants_that_rows_were_made_with() -> None:
    made = {"cc.start_ps": 4_000_000, "cc.instruction_ps": 300_000}
    made["intra_chip.die_latency_ps"] = 2_000_000
    fit = fitted(Predictor(), measured_by(made))
    assert dict(fit.constants["trn2"]) == pytest.approx(made, rel=0.1)
    assert all(one.is_fitted for one in fit.determinations)


def test_a_fit_of_what_the_presets_say_changes_nothing() -> None:
    fit = fitted(Predictor(), measured_by({}))
    figures = build("trn2").figures
    assert dict(fit.constants["trn2"]) == {key: figures[key].value for key in BEGIN}


def test_a_constant_that_no_row_tells_stays_as_shipped() -> None:
    row = attrs.evolve(SENDRECV, lnc=None, time_us=20.0)
    fit = fitted(Predictor(), [row])
    key = "intra_chip.die_latency_ps"
    assert fit.constants["trn2"][key] == build("trn2").figures[key].value
    (die,) = (one for one in fit.determinations if one.key == key)
    assert (die.is_fitted, die.effect, die.standard_error) == (False, 0.0, float("inf"))


def test_of_two_constants_that_rows_cannot_tell_apart_one_stays_as_shipped() -> None:
    rows = [attrs.evolve(SENDRECV, time_us=20.0), attrs.evolve(SENDRECV, time_us=20.5)]
    fit = fitted(Predictor(), rows)
    told = {one.key: one for one in fit.determinations}
    both = told["cc.start_ps"], told["cc.instruction_ps"]
    assert sorted(one.is_fitted for one in both) == [False, True]
    (untold,) = (one for one in both if not one.is_fitted)
    assert untold.tied_to == tuple(one.key for one in both if one.is_fitted)
    figures = build("trn2").figures
    assert fit.constants["trn2"][untold.key] == figures[untold.key].value


def test_a_constant_that_ends_at_its_bound_stays_as_shipped() -> None:
    fit = fitted(Predictor(), measured_by({"cc.start_ps": MOST_PS * 6 // 5}))
    (start,) = (one for one in fit.determinations if one.key == "cc.start_ps")
    assert not start.is_fitted
    assert start.standard_error < MOST_ERROR
    assert fit.constants["trn2"]["cc.start_ps"] == build("trn2").cc.start_ps


def test_standard_errors_are_those_of_least_squares() -> None:
    rng = np.random.default_rng(1)
    jacobian, errors = rng.normal(size=(2, 400)), 0.2 * rng.normal(size=400)
    found, correlation = standard_errors(jacobian, errors)
    assert found == pytest.approx([0.2 / 20, 0.2 / 20], rel=0.2)
    assert abs(correlation[0, 1]) < 0.2
    found, correlation = standard_errors(np.ones((2, 5)), np.zeros(5))
    assert np.isinf(found).all()
    assert correlation[0, 1] == pytest.approx(-1)


def test_what_generations_have_in_common_is_the_same_in_all_presets() -> None:
    trn1, trn2 = (build(name).figures for name in ("trn1", "trn2"))
    for key in COMMON & trn1.keys():
        assert trn1[key].value == trn2[key].value


def test_leaving_a_table_out_predicts_it_from_the_others() -> None:
    rows = measured_by({"cc.start_ps": 7_000_000})
    slower = tuple(
        attrs.evolve(row, time_us=2 * row.time_us) if row.table == "long" else row for row in rows
    )
    found = calibrated(Predictor(), slower, is_fitted=True, leave_one_out=True)
    of_long = [one.percent for one in found.left_out if one.row.table == "long"]
    assert of_long == pytest.approx([-50, -50], abs=10)
    assert max(one.percent for one in found.left_out if one.row.table == "short") > 20


def test_the_shipped_presets_meet_the_published_rows(published: Calibration) -> None:
    summary = residuals.as_json(published)
    assert len(published.rows) == 75
    assert summary["median_error_percent"] <= 7
    assert abs(summary["worst_error_percent"]) <= 25


@pytest.mark.parametrize("table", ["trn2-64", "trn1-2", "trn1-8", "trn2-3xl-sendrecv"])
def test_no_table_is_served_worse_than_the_others(published: Calibration, table: str) -> None:
    apart = sorted(abs(one.percent) for one in published.rows if one.row.table == table)
    assert apart[len(apart) // 2] <= 10


def test_what_is_free_is_in_every_preset_and_says_where_it_is_from() -> None:
    for name in ("trn1", "trn2"):
        figures = build(name).figures
        for key in BEGIN:
            assert figures[key].source.startswith(("fitted: ", "assumed: one die", "assumed: no"))


def test_a_written_preset_is_a_topology_with_the_fitted_constants(tmp_path: Path) -> None:
    row = residuals.Residual(SENDRECV, Predictor().predict(SENDRECV))
    constants = {key: 123_000 + k for k, key in enumerate(BEGIN)}
    found = Calibration({"trn2": constants}, (row,))
    ((path, text),) = preset.presets([found], str(tmp_path / "mine.toml"))
    path.write_text(text)
    topology = build(str(path))
    assert {key: topology.figures[key].value for key in BEGIN} == constants
    assert topology.figures["cc.start_ps"].source == "fitted: nccrt calibrate, pairs"
    assert topology.instance == "trn2.3xlarge"


def test_rows_of_several_instance_types_give_a_file_for_each(tmp_path: Path) -> None:
    rows = [SENDRECV, attrs.evolve(SENDRECV, instance="trn2.48xlarge")]
    predicted = tuple(residuals.Residual(row, Predictor().predict(row)) for row in rows)
    found = Calibration({"trn2": {"cc.start_ps": 5}}, predicted)
    names = [path.name for path, _ in preset.presets([found], str(tmp_path / "mine.toml"))]
    assert names == ["mine-trn2.3xlarge.toml", "mine-trn2.48xlarge.toml"]


def test_the_command_prints_rows_tables_and_constants_and_writes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fit.toml"
    rows = file_of(tmp_path, ROW, {**ROW, "size_bytes": 1024})
    assert main(["calibrate", rows, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "cc.instruction_ps" in printed
    assert printed.count("direct") == 2
    *table, written = printed.splitlines()
    assert table[-1].split() == ["trn1", "cc.start_ps", "as", "shipped"]
    assert written.startswith("wrote ")
    assert set(tomllib.loads(out.read_text())) == {"name", "base", "cc"}


def test_the_command_gives_the_same_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, ROW)
    assert main(["calibrate", path, "--shipped", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["predicted_us"] == Predictor().predict(read_measured(path)[0]).time_us
    assert found["constants"]["trn1"]["cc.start_ps"] == build("trn1").cc.start_ps


@pytest.mark.slow
def test_the_search_finds_what_is_shipped_and_what_the_document_shows() -> None:
    rows = read_measured(str(PUBLISHED))
    found = calibrated(Predictor(), rows, is_fitted=True, leave_one_out=True)
    shipped = calibrated(Predictor(), rows, is_fitted=False, leave_one_out=False)
    assert found.constants == shipped.constants
    assert residuals.as_text(found, every_row=False) in DOCUMENT.read_text()


def test_nothing_is_written_where_nothing_is_fitted(tmp_path: Path) -> None:
    words = ["calibrate", file_of(tmp_path, ROW), "--shipped", "--out", "x.toml"]
    assert main(words) == 2


@pytest.mark.parametrize(
    ("out", "complaint"),
    [("fit.json", "name a file that ends in .toml"), ("there/fit.toml", "there is no folder")],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_rows_are_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    out: str,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "rows that are not there.json", "--out", out]) == 1
    assert capsys.readouterr().err.startswith(f"error: {out}: {complaint}")


def test_the_document_shows_what_the_shipped_presets_leave(published: Calibration) -> None:
    assert residuals.as_text(published, every_row=False) in DOCUMENT.read_text()


def test_what_rows_do_not_tell_is_warned_of_and_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fit.toml"
    row = {**ROW, "instance": "trn2.48xlarge", "ranks": 64, "op": "all_gather", "time_us": 34}
    row["size_bytes"] = 1 << 20
    rows = file_of(tmp_path, row, {**row, "size_bytes": 1 << 22, "time_us": 47})
    assert main(["calibrate", rows, "--summary", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("warning: the rows do not tell ")
    assert shown.err.count("\n") == 1
    assert "undetermined" in shown.err
    assert "cc.start_ps" not in out.read_text()
    assert main(["calibrate", rows, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [warning["code"] for warning in found["warnings"]] == ["undetermined"]
    assert {one["is_fitted"] for one in found["determinations"]} == {True, False}
    assert main(["calibrate", rows, "--summary", "--shipped"]) == 0
    assert capsys.readouterr().err == ""


def test_residuals_come_by_bands_of_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = (1024, (1 << 16) - 4, 1 << 16, 1 << 20, 1 << 24)
    path = file_of(tmp_path, *({**ROW, "size_bytes": size} for size in sizes))
    assert main(["calibrate", path, "--shipped", "--json"]) == 0
    bands = json.loads(capsys.readouterr().out)["bands"]
    assert [band["rows"] for band in bands] == [2, 1, 1, 1]
    assert main(["calibrate", path, "--shipped", "--summary"]) == 0
    printed = capsys.readouterr().out
    assert [line.split("  ")[0] for line in printed.splitlines()[-4:]] == [
        band["sizes"] for band in bands
    ]


REPORT = {"results": [{"size(B)": 4096, "type": "fp32", "time:avg(us)": 2.1}]}


@pytest.mark.parametrize(
    "report", [REPORT, {**REPORT, "op": "all_reduce", "ranks": 2, "instance": "trn1.32xlarge"}]
)
def test_a_report_of_nccom_test_is_rows_with_what_options_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], report: dict[str, Any]
) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(report))
    words = ["--op", "allr", "-r", "2", "--topology", "trn1"] if report is REPORT else []
    assert main(["calibrate", str(path), "--shipped", "--json", *words]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["table"], row["ranks"], row["time_us"]) == ("sweep", 2, 2.1)
    as_ours = attrs.evolve(read_measured(file_of(tmp_path, ROW))[0], time_us=2.1)
    assert row["predicted_us"] == Predictor().predict_us(as_ours)


def test_several_files_are_tables_of_one_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.json").write_text(json.dumps(REPORT))
    (tmp_path / "two.csv").write_text("size(B),time(us)\n64,2\n1048576,18\n")
    words = ["--op", "allr", "-r", "2", "--topology", "trn1", "-d", "fp32", "--shipped"]
    files = [str(tmp_path / name) for name in ("one.json", "two.csv")]
    assert main(["calibrate", *files, file_of(tmp_path, ROW), *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [row["table"] for row in found] == ["one", "two", "two", "small"]


@pytest.mark.parametrize(
    ("report", "words", "complaint"),
    [
        (REPORT, "--op allr", "result 0: it does not say its instance (--topology), ranks (-r)"),
        (REPORT, "--op x", "no op 'x'; there are all_reduce"),
        (REPORT, "--op allr -r 2 --topology trn1 -d bf16", "of dtype fp32, an option says bf16"),
        (REPORT, "--op sendrecv -r 4 --topology trn1", "a sendrecv is between 2 ranks, not 4"),
        (REPORT, "--op allr -r 2 --topology trn9", "topology 'trn9' is unknown"),
        (
            {**REPORT, "group_size": 2},
            "--op allr -r 4 --topology trn1",
            "groups of 2 of 4 ranks",
        ),
        ({**REPORT, "instance": "trn9"}, "--op allr -r 4 --topology trn1", "'trn9' is unknown"),
        ({"results": []}, "", "expected nccom-test's"),
        (
            {"results": [{"size(B)": 64, "time(us)": 1, "type": "half"}]},
            "--op allr -r 2 --topology trn1",
            "type 'half' is unknown",
        ),
        (
            {"results": [{"size(B)": 0.2, "time(us)": 1, "type": "fp32"}]},
            "--op allr -r 2 --topology trn1",
            "0.2 is not a whole number",
        ),
    ],
)
def test_a_report_that_does_not_say_enough_or_something_else_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    report: dict[str, Any],
    words: str,
    complaint: str,
) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(report))
    assert main(["calibrate", str(path), "--shipped", *words.split()]) in (1, 2)
    error = capsys.readouterr().err
    assert complaint in error
    assert "Traceback" not in error


def test_a_terminal_sees_how_far_the_fit_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = file_of(tmp_path, ROW, {**ROW, "size_bytes": 1 << 20, "time_us": 30.0})
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress_bar, "LOOK_S", 0.001)
    monkeypatch.setattr(progress_bar, "BAR_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["calibrate", rows, "--summary"]) == 0
    assert "runs of the clock" in capsys.readouterr().err


def test_a_picture_has_the_rows_and_the_bands_in_which_they_lie(
    published: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = figure_of(
        residual_plot, lambda: residual_plot.plotted([published], "a.svg"), monkeypatch
    )
    times, errors = figure.axes
    shown = [point for line in times.lines[1:] for point in points(line)]
    rows = [(row.row.time_us, row.predicted.time_us) for row in published.rows]
    assert sorted(shown) == sorted(rows)
    assert len(times.lines) - 1 == len({row.row.table for row in published.rows})
    assert sorted(y for line in errors.lines[1:] for _, y in points(line)) == sorted(
        row.percent for row in published.rows
    )
    assert times.get_xscale() == times.get_yscale() == "log"
    assert [times.get_xlabel(), times.get_ylabel()] == ["measured time (us)", "predicted time (us)"]
    for share, label in zip((0.9, 0.5), legend(times)[:2], strict=True):
        band = float(label.partition("±")[2].removesuffix(" %"))
        inside = sum(abs(row.percent) <= band + 0.05 for row in published.rows)
        assert abs(inside / len(published.rows) - share) < 0.03


@pytest.mark.parametrize("name", ["$\\frac$", "cost $5 and $x_{", "日本 <b>"])
def test_a_name_is_drawn_as_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.json").write_text(json.dumps({"rows": [ROW | {"table": name}]}))
    assert main(["calibrate", "r.json", "--shipped", "--plot", "a.svg"]) == 0
    assert "Warning" not in capfd.readouterr().err
    assert Path("a.svg").read_bytes().startswith(b"<?xml")


def test_rows_of_collectives_and_of_steps_are_drawn_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "ENTRY m { x = f32[1024] parameter(0) ROOT y = f32[1024] negate(x) }"
    ncc_compiler.compile_text(text).save("m.neff")
    step = {"program": "m.neff", "instance": "trn1", "time_us": 9.0}
    Path("r.json").write_text(json.dumps({"rows": [ROW], "steps": [step]}))
    words = ["calibrate", "r.json", "--shipped"]
    figure = figure_of(residual_plot, lambda: main([*words, "--plot", "a.svg"]), monkeypatch)
    assert len(figure.axes) == 4
    assert figure.get_suptitle() == ("measured and predicted: 1 row of collectives, 1 row of steps")
    assert main([*words, "--plot", "a.svg"]) == main([*words, "--plot", "b.svg"]) == 0
    assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes()
    capsys.readouterr()
    assert main([*words, "--plot", "r.json"]) == 2
    assert main([*words, "--plot", "no/a.svg"]) == 1
    assert "there is no folder" in capsys.readouterr().err
