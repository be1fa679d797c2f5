"""Pictures of sweeps: what they show, as matplotlib has it, and that equal ones are equal."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from ncc_runtime.errors import InputError
from ncc_runtime.sweep import plot
from ncc_runtime.sweep.points import PointReader
from ncc_runtime.sweep.report import SweepReport, SweepRow
from ncc_runtime.sweep.results import PointResult, Status
from tests.pictures import figure_of, legend, points

READER = PointReader()


def row(time_us: float, size: int, instances: int = 1, **words: Any) -> SweepRow:
    said = {"op": "all_reduce", "ranks": 8, "size": size}
    said |= {key: word for key, word in words.items() if key == "op"}
    point = READER.point(said)
    result = PointResult("k", Status.DONE, time_us=time_us, ranks=8, instances=instances)
    return SweepRow({**said, **words}, point, result, f"{size}")


def faulty(time_us: float, instances: int, **words: Any) -> SweepRow:
    """A row whose words are all the point's."""
    said = {"op": "all_reduce", "ranks": 8, "size": 64, **words}
    lists = {key: [said[key]] for key in ("fault", "down") if key in said}
    result = PointResult("k", Status.DONE, time_us=time_us, ranks=8, instances=instances)
    return SweepRow(said, READER.point({**said, **lists}), result, "64")


def drawn(
    swept: Sequence[SweepRow], monkeypatch: pytest.MonkeyPatch, series: str | None = None
) -> Any:
    """The figure of some rows."""
    report = SweepReport("s", tuple(swept))
    return figure_of(plot, lambda: plot.plotted(report, "a.svg", series), monkeypatch)


def test_a_line_has_the_fastest_point_of_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = [
        row(9.0, 1024, algorithm="ring", placement="linear"),
        row(7.0, 1024, algorithm="ring", placement="spread"),
        row(20.0, 4096, algorithm="ring"),
        row(8.0, 1024, algorithm="mesh"),
        row(30.0, 4096),
    ]
    figure = drawn(swept, monkeypatch, "algorithm")
    (axes,) = figure.axes
    assert legend(axes) == ["ring", "mesh", "default"]
    assert [points(line) for line in axes.lines] == [
        [(1024, 7.0), (4096, 20.0)],
        [(1024, 8.0)],
        [(4096, 30.0)],
    ]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("size", "time (us)")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1 KiB", "4 KiB"]


def test_operators_have_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = [
        row(float(k), size, op=op, algorithm=name)
        for k, (size, op, name) in enumerate(
            [
                (64, "all_reduce", "ring"),
                (128, "all_reduce", "ring"),
                (64, "all_gather", "ring"),
                (64, "all_gather", "mesh"),
            ],
            1,
        )
    ]
    (axes,) = drawn(swept, monkeypatch).axes
    assert legend(axes) == ["all_reduce ring", "all_gather ring", "all_gather mesh"]


def test_of_too_many_lines_the_fastest_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = [row(float(k + size), size, placement=f"p{k}") for k in range(14) for size in (64, 128)]
    (axes,) = drawn(swept, monkeypatch).axes
    assert legend(axes) == [f"p{k}" for k in range(plot.MOST_LINES)]
    assert axes.get_legend().get_title().get_text() == "placement (10 of 14)"


def test_without_sizes_bars_have_the_fastest_on_top_and_fronts_go_over_instances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept = [
        row(30.0, 64, 1, on="trn1"),
        row(10.0, 64, 2, on="trn2,nodes=2"),
        row(20.0, 64, 2, on="trn1,nodes=2"),
        row(15.0, 64, 4, on="trn1,nodes=4"),
    ]
    bars, instances = drawn(swept, monkeypatch).axes
    names = [label.get_text() for label in bars.get_yticklabels()]
    assert names == ["trn2,nodes=2", "trn1,nodes=4", "trn1,nodes=2", "trn1"]
    assert bars.yaxis_inverted()
    every, on_front = instances.lines
    assert sorted(every.get_ydata()) == [10.0, 15.0, 20.0, 30.0]
    assert points(on_front) == [(1, 30), (2, 10)]
    assert [f"{tick:g}" for tick in instances.get_xticks()] == ["1", "2", "4"]


def test_alternatives_under_other_faults_have_names_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept = [
        faulty(30.0, 1, on="trn1"),
        faulty(20.0, 2, on="trn1,nodes=2"),
        faulty(40.0, 1, on="trn1", fault="rank 3 slow to 50%"),
        faulty(50.0, 1, on="trn1", down="c0-c1", fault="rank 3 slow to 50%"),
    ]
    figure = drawn(swept, monkeypatch)
    names = ["64", "64, rank 3 slow to 50%", "64, down c0-c1, rank 3 slow to 50%"]
    assert legend(figure.axes[1]) == names
    (bars,) = figure.legends
    assert [text.get_text() for text in bars.get_texts()] == names


def test_of_more_tasks_than_colours_the_first_are_named_and_the_rest_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept = [row(float(task), 64, task=f"task {task:02}", alone=task) for task in range(1, 11)]
    swept = [attrs.evolve(each, task=each.words["task"]) for each in swept]
    figure = drawn(swept, monkeypatch)
    (names,) = figure.legends
    assert [text.get_text() for text in names.get_texts()] == [
        *(f"task {task:02}" for task in range(1, 8)),
        "3 others",
    ]
    colours = [bar.get_facecolor() for bar in figure.axes[0].patches[:10]]
    assert len(set(colours[:7])) == 7
    assert len(set(colours[7:])) == 1
    assert colours[7] not in colours[:7]


def test_a_bar_says_what_its_numbers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = [row(10.0, 64, topology="trn2", nodes=1, lnc=2), row(20.0, 64, topology="trn1")]
    (bars,) = drawn(swept, monkeypatch).axes
    assert [label.get_text() for label in bars.get_yticklabels()] == [
        "trn2, nodes 1, lnc 2",
        "trn1",
    ]


def test_of_too_many_fronts_the_picture_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = [row(float(size * k), size, k) for size in range(64, 64 + 9) for k in (1, 2)]
    _, instances = drawn(swept, monkeypatch).axes
    title = instances.get_legend().get_title().get_text()
    assert title == "front of time and instances (6 of 9)"


def test_a_key_that_no_point_has_is_refused() -> None:
    words = [row(1.0, 64).words, row(2.0, 128).words]
    with pytest.raises(InputError, match="--series algorihm: no point has that key; there are op"):
        plot.check_series("algorihm", words)


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG")])
def test_equal_reports_have_equal_pictures(name: str, begins: bytes) -> None:
    report = SweepReport("s", (row(1.0, 64, 1), row(2.0, 128, 2)))
    first = plot.plotted(report, name)
    assert first.startswith(begins)
    assert first == plot.plotted(report, name)
