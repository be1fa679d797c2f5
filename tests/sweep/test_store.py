"""Results on disk: what counts of a file, however its last writer ended."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.errors import InputError
from ncc_runtime.sweep.results import PointResult, Status
from ncc_runtime.sweep.store import result_file
from tests.example_count import examples

FIRST = PointResult("a", Status.DONE, time_us=1.5, ranks=8, instances=1, algorithm="ring")
SECOND = PointResult("b", Status.REFUSED, "8 ranks do not fit — “there”\n")
WORDS = {"a": {"op": "all_reduce", "size": 64}, "b": {}}


def written(path: Path, *results: PointResult) -> dict[str, PointResult]:
    with result_file(str(path)) as file:
        file.add(results, {result.key: WORDS.get(result.key, {}) for result in results})
        return dict(file.results)


def read(path: Path) -> dict[str, PointResult]:
    with result_file(str(path)) as file:
        return dict(file.results)


def test_results_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert written(path, FIRST, SECOND) == read(path) == {"a": FIRST, "b": SECOND}
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["point"] == WORDS["a"]
    assert second["reason"] == SECOND.reason


@settings(max_examples=examples(100))
@given(st.data())
def test_a_file_that_is_cut_off_anywhere_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    written(path, FIRST, SECOND)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n")
    assert list(read(path).values()) == [FIRST, SECOND][:lines]
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:lines])
    assert written(path, SECOND)["b"] == SECOND
    assert read(path)["b"] == SECOND


def test_the_last_line_of_a_point_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    written(path, PointResult("a", Status.FAILED, "too long"))
    written(path, FIRST)
    assert read(path) == {"a": FIRST}


BROKEN = [
    b'{"schema": 1, "key": "b"}\n',
    b'{"schema": 1, "key": "b", "status": "done"}\n',
    b'{"schema": 1, "key": "b", "status": "done", "time_us": "1"}\n',
    b'{"schema": 1, "key": 3, "status": "refused"}\n',
    b'{"schema": 1, "key": "b", "status": "lost"}\n',
    b'{"schema": 2, "key": "b", "status": "refused"}\n',
    b'{"schema": 1, "key": ' + b"[" * 100_000 + b"\n",
    b'{"schema": 1, "key": "b", "status": "refused", "reason": "\xff"}\n',
    b"\x00\x00\x00\n",
    b"\n",
]


@pytest.mark.parametrize("line", BROKEN)
def test_a_line_that_is_no_result_does_not_count_and_stays(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    written(path, FIRST)
    path.write_bytes(path.read_bytes() + line)
    with result_file(str(path)) as file:
        assert file.results == {"a": FIRST}
        assert file.broken == 1
        file.add([SECOND], WORDS)
    assert read(path) == {"a": FIRST, "b": SECOND}
    assert line in path.read_bytes()


def test_keys_of_later_versions_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"schema": 1, "key": "a", "status": "done", "time_us": 2, "colour": "red"}\n')
    assert read(path)["a"].time_us == 2


def test_two_sweeps_do_not_write_to_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.jsonl")
    with (
        result_file(path),
        pytest.raises(InputError, match="another sweep is writing to it"),
        result_file(path),
    ):
        pass
    with result_file(path):
        pass


@pytest.mark.parametrize("text", ['{"rows": []}', "size(B),time(us)\n", '{"schema":1}'])
def test_other_files_are_refused_and_stay_as_they_are(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(InputError, match="no results of a sweep"), result_file(str(path)):
        pass
    assert path.read_text() == text


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(InputError, match="is no file that can go on"), result_file(str(path)):
            pass
    with pytest.raises(InputError, match="no such file"), result_file(str(tmp_path / "a/b")):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_with_the_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def fill() -> None:
        with result_file(str(path)) as file, Path("/dev/full").open("wb") as full:
            os.dup2(full.fileno(), file._stream.fileno())
            file.add([FIRST], WORDS)

    with pytest.raises(OSError, match="No space left") as caught:
        fill()
    assert caught.value.filename == str(path)
