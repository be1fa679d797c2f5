"""What a sweep says: order, the front, tables, and that CSV and JSON say the same."""

import csv
import io
import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.sweep.points import PointReader, SweepPoint
from ncc_runtime.sweep.report import SweepReport, SweepRow, front, in_order, varying
from ncc_runtime.sweep.results import PointResult, Status
from tests.example_count import examples

READER = PointReader()
PLAIN = READER.point({"op": "all_reduce", "ranks": 8, "size": 4096})
HURT = READER.point({"op": "all_reduce", "ranks": 8, "size": 4096, "down": ["c0-c1"]})
FAULTY = READER.point({"op": "all_reduce", "ranks": 8, "size": 4096, "fault": ["rank 1 dead"]})


def row(
    time_us: float | None,
    instances: int = 1,
    task: str = "step",
    point: SweepPoint = PLAIN,
    samples: int | None = None,
    reason: str = "does not fit",
    **words: object,
) -> SweepRow:
    status = Status.REFUSED if time_us is None else Status.DONE
    said = "" if status is Status.DONE else reason
    result = PointResult(
        "key", status, said, time_us=time_us, ranks=8, instances=instances, memory_share=0.25
    )
    return SweepRow(words, point, result, task, samples)


rows = st.builds(
    row,
    time_us=st.one_of(st.none(), st.integers(1, 6).map(float)),
    instances=st.integers(1, 4),
    task=st.sampled_from(["step", "block"]),
    point=st.sampled_from([PLAIN, HURT, FAULTY]),
    samples=st.sampled_from([None, 1, 2]),
    nodes=st.integers(1, 3),
    algorithm=st.sampled_from(["ring", "mesh"]),
)


def is_beaten(one: SweepRow, other: SweepRow) -> bool:
    """Whether the other is an alternative that takes no more of either and less of one."""
    if not (other.is_done and one.group == other.group):
        return False
    ours = (one.result.instances or 0, one.cost_us)
    theirs = (other.result.instances or 0, other.cost_us)
    return theirs != ours and all(t <= o for t, o in zip(theirs, ours, strict=True))


@settings(max_examples=examples(200))
@given(st.lists(rows, max_size=20))
def test_the_front_is_what_nothing_beats(swept: Sequence[SweepRow]) -> None:
    found = front(swept)
    unbeaten = [
        one for one in swept if one.is_done and not any(is_beaten(one, other) for other in swept)
    ]
    assert {id(one) for one in found} <= {id(one) for one in unbeaten}
    # of equal ones there is the first
    seen = {(one.group, one.result.instances, one.cost_us): one for one in reversed(unbeaten)}
    assert {id(one) for one in found} == {id(one) for one in seen.values()}


@settings(max_examples=examples(200))
@given(st.lists(rows, max_size=20))
def test_rows_come_by_group_and_time_whatever_order_they_came_in(swept: list[SweepRow]) -> None:
    ordered = in_order(swept)
    assert sorted(map(id, ordered)) == sorted(map(id, swept))
    groups = [one.group for one in ordered]
    assert groups == sorted(groups, key=list(dict.fromkeys(one.group for one in swept)).index)
    for one, other in itertools.pairwise(ordered):
        if one.group == other.group:
            assert (not one.is_done, one.cost_us if one.is_done else 0) <= (
                not other.is_done,
                other.cost_us if other.is_done else 0,
            )


@settings(max_examples=examples(200))
@given(st.lists(rows, max_size=12))
def test_csv_and_json_say_the_same(swept: list[SweepRow]) -> None:
    report = SweepReport("s.toml", tuple(swept))
    said = report.as_json()["rows"]
    written = list(csv.DictReader(io.StringIO(report.as_csv())))
    assert len(written) == len(said) == len(swept)
    for line, found in zip(written, said, strict=True):
        fields = {**found["point"], **found}
        for key, text in line.items():
            value = fields.get(key)
            assert text == ("" if value is None else str(value)), key


def test_what_is_damaged_is_no_alternative_to_what_is_whole() -> None:
    swept = [row(5.0, 1), row(4.0, 2, point=HURT), row(3.0, 4, point=FAULTY), row(2.0, 1, "block")]
    assert front(swept) == swept


def test_times_of_samples_are_compared_where_there_are_some() -> None:
    small, large = row(10.0, samples=8, batch=8), row(12.0, samples=16, batch=16)
    assert in_order([small, large]) == [large, small]
    text = SweepReport("s.toml", (large, small)).as_text()
    assert text.splitlines()[2].split() == ["batch", "time(us)", "time/sample(us)", "memory"]
    assert text.splitlines()[3].split() == ["16", "12.00", "0.750", "25%"]


def test_a_table_has_the_words_that_vary_and_marks_the_front() -> None:
    swept = (
        row(9.0, 1, op="all_reduce", topology="trn1"),
        row(5.0, 2, op="all_reduce", topology="trn2"),
        row(7.0, 2, op="all_reduce"),
        row(None, op="all_reduce", topology="trn3"),
    )
    assert varying(swept) == ["topology"]
    lines = SweepReport("s.toml", tuple(in_order(swept)), left=3).as_text().splitlines()
    assert lines == [
        "s.toml: 7 points; 3 done, 1 refused, 3 left",
        "",
        "topology  instances  time(us)  memory",
        "trn2              2      5.00     25%  *",
        "-                 2      7.00     25%",
        "trn1              1      9.00     25%  *",
        "",
        "* the fastest on so many instances, and faster than on fewer",
        "",
        "1 point refused: does not fit (topology trn3)",
    ]


def test_a_long_table_has_the_best_of_each_task() -> None:
    swept = tuple(row(float(k), task=f"t{k % 30}", size=k) for k in range(1, 121))
    report = SweepReport("s.toml", tuple(in_order(swept)))
    lines = report.as_text().splitlines()
    assert len(lines) == 3 + 60 + 1
    assert lines[-1] == "… and 60 more, slower ones: --top shows more, --csv all"
    assert len(report.as_text(1).splitlines()) == 3 + 30 + 1
    assert len(report.as_text(4).splitlines()) == 3 + 120


def test_reasons_are_counted_and_those_of_most_points_come_first() -> None:
    swept = [row(1.0, nodes=0), row(None, reason="why", nodes=1)]
    swept += [row(None, reason="x" * 500, nodes=k) for k in (2, 3)]
    lines = SweepReport("s.toml", tuple(swept)).as_text().splitlines()
    assert lines[-2] == f"2 points refused: {'x' * 151}… (the first: nodes 2)"
    assert lines[-1] == "1 point refused: why (nodes 1)"
