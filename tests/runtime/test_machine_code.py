"""Where machine code is kept, and that what is old is removed."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from ncc_runtime import machine_code
from ncc_runtime.machine_code import DAY_S, KEPT, ObjectCode, claim


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The user's cache, and the folder for temporary files."""
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(cache / name))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(temporary))
    return cache, temporary


def aged(parent: Path, count: int) -> list[Path]:
    """Folders of earlier versions, the oldest first, all older than a day."""
    folders = [parent / f"clock-{number:016}" for number in range(count)]
    for number, folder in enumerate(folders):
        (folder / "deeper").mkdir(parents=True)
        (folder / "deeper" / "code.nbc").write_bytes(b"code")
        began = time.time() - DAY_S - 1000 + number
        os.utime(folder, (began, began))
    return folders


def test_the_newest_folders_are_kept_and_the_others_removed(places: tuple[Path, Path]) -> None:
    folders = aged(places[0] / "ncc", 7)
    used = claim("clock", "new")
    assert used is not None
    assert sorted(used.parent.iterdir()) == sorted([*folders[-(KEPT - 1) :], used])


def test_a_folder_of_today_is_not_removed(places: tuple[Path, Path]) -> None:
    folders = aged(places[0] / "ncc", 7)
    os.utime(folders[0])
    os.utime(folders[1], (1, 1))
    claim("clock", "new")
    assert folders[0].exists()
    assert not folders[1].exists()


def held(folder: Path, digest: str, ready: object, done: object) -> None:
    machine_code._lock(folder / f"clock-{digest}")
    os.utime(folder / f"clock-{digest}", (1, 1))
    ready.set()  # type: ignore[attr-defined]
    done.wait(60)  # type: ignore[attr-defined]


def test_a_folder_that_another_process_uses_is_not_removed(places: tuple[Path, Path]) -> None:
    parent = places[0] / "ncc"
    folders = aged(parent, 7)
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=held, args=(parent, folders[0].name[6:], ready, done))
    other.start()
    assert ready.wait(60)
    claim("clock", "new")
    done.set()
    other.join()
    assert folders[0].exists()
    assert not folders[1].exists()


def test_without_a_cache_of_the_user_a_temporary_folder_of_his_own_is_taken(
    places: tuple[Path, Path],
) -> None:
    cache, temporary = places
    cache.write_text("a file, where a folder should be")
    used = claim("clock", "new")
    assert used == temporary / f"ncc-{os.getuid()}" / "clock-new"
    assert used.parent.stat().st_mode & 0o777 == 0o700


def test_a_temporary_folder_that_others_can_write_is_not_taken(places: tuple[Path, Path]) -> None:
    cache, temporary = places
    cache.write_text("")
    (temporary / f"ncc-{os.getuid()}").mkdir()
    (temporary / f"ncc-{os.getuid()}").chmod(0o777)
    assert claim("clock", "new") is None


def test_a_cache_in_no_home_is_not_made_in_the_working_directory(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: f"~/{name}")
    monkeypatch.chdir(tmp_path)
    used = claim("clock", "new")
    assert used is not None
    assert used.is_relative_to(places[1])
    assert not (tmp_path / "~").exists()


def test_code_is_kept_as_it_is_and_damaged_code_is_not_loaded(tmp_path: Path) -> None:
    code = {
        "one": ObjectCode("function", bytes(range(256)) + b"\n" * 3),
        "other": ObjectCode("f", b""),
    }
    machine_code._keep(tmp_path, code)
    assert [file.name for file in tmp_path.glob("kernel*")] == ["kernel.o"]
    assert machine_code._kept(tmp_path) == code
    written = (tmp_path / "kernel.o").read_bytes()
    for damaged in (b"", written[:-1], written[:40], bytes([written[0] ^ 1]) + written[1:]):
        (tmp_path / "kernel.o").write_bytes(damaged)
        assert machine_code._kept(tmp_path) is None
    machine_code._keep(tmp_path, code)
    assert machine_code._kept(tmp_path) == code


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    code = {"one": ObjectCode("function", b"code")}
    for folder in (None, tmp_path / "absent"):
        machine_code._keep(folder, code)
        assert machine_code._kept(folder) is None
