"""Checkpoints: whole or not there, whatever happens to their writer or their files."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError
from ncc_runtime.jobs import checkpoints, job
from ncc_runtime.jobs.checkpoints import MANIFEST, CheckpointFolder, JobInputs
from ncc_runtime.neff.program import Program
from tests.step_programs import batches, train

FEED = ((0, 0), (1, 1))


@pytest.fixture
def program() -> Program:
    return train().program


def state(step: int) -> dict[int, np.ndarray]:
    draw = np.random.default_rng(step)
    return {number: draw.standard_normal((4, 8, 4)).astype(np.float32) for number in (0, 1)}


def folder(path: Path, program: Program, keep: int = 2, seed: int | None = 0) -> CheckpointFolder:
    return CheckpointFolder(str(path / "ck"), [program], JobInputs(seed, FEED), keep)


def check_newest(path: Path, program: Program, step: int) -> CheckpointFolder:
    """The newest whole checkpoint is that of a step, with its state."""
    one = folder(path, program)
    with one.opened():
        found = one.newest()
    assert found is not None
    assert found.step == step
    for number, array in state(step).items():
        assert found.state[number].tobytes() == array.tobytes()
    return one


def written(path: Path, program: Program, *steps: int, keep: int = 9) -> None:
    one = folder(path, program, keep)
    with one.opened():
        for step in steps:
            one.write(step, state(step), program)


def test_what_is_written_is_read(tmp_path: Path, program: Program) -> None:
    written(tmp_path, program, 5)
    check_newest(tmp_path, program, 5)


def test_an_empty_folder_has_none(tmp_path: Path, program: Program) -> None:
    one = folder(tmp_path, program)
    with one.opened():
        assert one.newest() is None
        one.check_is_empty()


def test_only_the_newest_are_kept(tmp_path: Path, program: Program) -> None:
    written(tmp_path, program, 2, 4, 6, 8, keep=2)
    assert folder(tmp_path, program).steps() == [8, 6]
    assert len(list((tmp_path / "ck").iterdir())) == 2


def test_what_a_run_that_went_back_writes_is_the_newest(tmp_path: Path, program: Program) -> None:
    written(tmp_path, program, 4, 8)
    written(tmp_path, program, 6, keep=1)
    assert folder(tmp_path, program).steps() == [6]


def test_what_an_earlier_run_kept_makes_room_first(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only once it is known that what stays is whole."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    written(tmp_path, program, 2, 4, 6)
    monkeypatch.setattr(checkpoints, "write_whole", full)
    unread, read = folder(tmp_path, program, keep=1), folder(tmp_path, program, keep=1)
    with pytest.raises(OSError, match="No space"):
        unread.write(8, state(8), program)
    assert unread.steps() == [6, 4, 2]
    assert read.newest() is not None
    with pytest.raises(OSError, match="No space"):
        read.write(8, state(8), program)
    assert read.steps() == [6]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda ck: flip(ck / "rank-00002.safetensors", -3),
    "a flipped bit of a header": lambda ck: flip(ck / "rank-00000.safetensors", 2),
    "a file that is cut off": lambda ck: cut(ck / "rank-00001.safetensors"),
    "a file that is gone": lambda ck: (ck / "rank-00003.safetensors").unlink(),
    "a file of another rank": lambda ck: shutil.copy(
        ck / "rank-00001.safetensors", ck / "rank-00002.safetensors"
    ),
    "a flipped bit of the manifest": lambda ck: flip(ck / MANIFEST, 60),
    "a manifest that is cut off": lambda ck: cut(ck / MANIFEST),
    "an empty manifest": lambda ck: (ck / MANIFEST).write_bytes(b""),
    "a manifest of nothing": lambda ck: (ck / MANIFEST).write_text("[]"),
    "a manifest of another step": lambda ck: shutil.copy(
        ck.with_name("step-00000004") / MANIFEST, ck / MANIFEST
    ),
    "a folder in place of a file": lambda ck: replace(ck / "rank-00001.safetensors"),
    "a folder in place of the manifest": lambda ck: replace(ck / MANIFEST),
    "an endless file": lambda ck: endless(ck / "rank-00001.safetensors"),
    "a pipe in place of a file": lambda ck: pipe(ck / "rank-00001.safetensors"),
    "a pipe in place of the manifest": lambda ck: pipe(ck / MANIFEST),
    "a manifest of no files": lambda ck: edit(ck, files=[]),
    "a manifest of fewer files": lambda ck: edit(ck, files=entries(ck)[:3]),
    "a manifest of more files": lambda ck: edit(ck, files=[*entries(ck), entries(ck)[0]]),
    "a manifest whose files are none": lambda ck: edit(ck, files=None),
    "a manifest whose files are words": lambda ck: edit(ck, files=["a"] * 4),
    "a manifest whose hash is a number": lambda ck: edit(ck, program_sha256=5),
    "a manifest without a program": lambda ck: edit(ck, program=None),
    "a manifest of a format that never was": lambda ck: edit(ck, format=True),
    "a manifest of a format with a name": lambda ck: edit(ck, format="9"),
    "a manifest with a key more": lambda ck: edit(ck, more=1),
}


def entries(ck: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((ck / MANIFEST).read_text())["files"]
    return found


def edit(ck: Path, **changes: object) -> None:
    """A manifest that somebody wrote anew, with a hash that agrees."""
    fields = {**json.loads((ck / MANIFEST).read_text()), **changes}
    del fields["sha256"]
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    (ck / MANIFEST).write_text(json.dumps({**fields, "sha256": digest}))


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def replace(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, program: Program, damage: str) -> None:
    written(tmp_path, program, 4, 8)
    DAMAGE[damage](tmp_path / "ck" / "step-00000008")
    (notice,) = check_newest(tmp_path, program, 4).notices
    assert "step-00000008: damaged: " in notice.message
    assert "\n" not in notice.message


def test_where_none_is_whole_nothing_is_begun_anew(tmp_path: Path, program: Program) -> None:
    written(tmp_path, program, 4)
    flip(tmp_path / "ck" / "step-00000004" / "rank-00000.safetensors", -1)
    with pytest.raises(InputError, match="none of the 1 checkpoints is whole"):
        folder(tmp_path, program).newest()


def test_every_byte_of_a_manifest_counts(tmp_path: Path, program: Program) -> None:
    written(tmp_path, program, 4, 8)
    manifest = tmp_path / "ck" / "step-00000008" / MANIFEST
    whole = manifest.read_bytes()
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 7
        manifest.write_bytes(damaged)
        found = folder(tmp_path, program).newest()
        assert found is not None
        # blanks mean nothing, and one may have become another
        assert found.step == 4 or json.loads(damaged) == json.loads(whole)


@pytest.mark.parametrize(
    ("other", "seed", "reason"),
    [
        (train(4, "eval"), 0, "of program train, not program eval"),
        (train(3), 0, "of a program for 4 ranks, not a program for 3 ranks"),
        (train(), 1, "of a run with seed 0, not a run with seed 1"),
    ],
)
def test_a_folder_of_another_job_is_refused(
    tmp_path: Path, program: Program, other: ncc_compiler.driver.Neff, seed: int, reason: str
) -> None:
    written(tmp_path, program, 4)
    with pytest.raises(InputError, match=reason):
        folder(tmp_path, other.program, seed=seed).newest()


def test_a_newer_format_is_refused(tmp_path: Path, program: Program) -> None:
    written(tmp_path, program, 4)
    manifest = tmp_path / "ck" / "step-00000004" / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 2}))
    with pytest.raises(InputError, match="made by a newer version; update ncc"):
        folder(tmp_path, program).newest()


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path, program: Program) -> None:
    one, other = folder(tmp_path, program), folder(tmp_path, program)
    with one.opened(), pytest.raises(InputError, match="another run writes"), other.opened():
        pass
    with other.opened():
        pass


def calls_of(monkeypatch: pytest.MonkeyPatch, dies_at: int) -> list[int]:
    """Lets the writer die just before its n-th change of the disk; counts the changes."""
    count = [0]

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            count[0] += 1
            if count[0] == dies_at:
                raise KeyboardInterrupt
            return function(*given, **named)

        return call

    monkeypatch.setattr(checkpoints, "write_whole", counted(checkpoints.write_whole))
    for name in ("unlink", "rmdir", "mkdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    return count


def test_a_writer_that_dies_at_any_moment_leaves_a_whole_checkpoint(
    tmp_path: Path, program: Program
) -> None:
    """Before each of its changes of the disk, also those that remove what is too old."""
    for dies_at in range(1, 1000):
        written(tmp_path, program, 2, keep=1)
        with pytest.MonkeyPatch.context() as patch:
            count = calls_of(patch, dies_at)
            try:
                written(tmp_path, program, 4, keep=1)
            except KeyboardInterrupt:
                pass
            else:
                assert count[0] > 10
                break
        newest = folder(tmp_path, program).newest()
        assert newest is not None
        check_newest(tmp_path, program, newest.step)
        shutil.rmtree(tmp_path / "ck")
    check_newest(tmp_path, program, 4)


def test_a_full_disk_is_one_message_and_loses_nothing(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, program, 2)
    real, count = checkpoints.write_whole, [0]

    def full(path: Path, data: bytes) -> None:
        count[0] += 1
        if count[0] == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, data)

    monkeypatch.setattr(checkpoints, "write_whole", full)
    with pytest.raises(OSError, match=r"rank-00002\.safetensors"):
        written(tmp_path, program, 4)
    assert [entry.name for entry in (tmp_path / "ck").iterdir()] == ["step-00000002"]
    check_newest(tmp_path, program, 2)


@pytest.mark.parametrize("kind", ["bf16", "f8e4m3fn", "s4", "c64", "c128", "pred", "f64", "u16"])
def test_every_type_of_state_comes_back_bit_for_bit(tmp_path: Path, kind: str) -> None:
    text = f"""HloModule keep, replica_count=2, input_output_alias={{ {{}}: (0, {{}}) }}
ENTRY e {{ x = {kind}[3] parameter(0) ROOT y = {kind}[3] copy(x) }}"""
    neff = ncc_compiler.compile_text(text)
    (run,) = ncc_runtime.load(neff).run_steps(1, seed=3)
    one = CheckpointFolder(str(tmp_path), [neff.program], JobInputs(3, ((0, 0),)))
    one.write(1, {0: run.outputs[0]}, neff.program)
    found = one.newest()
    assert found is not None
    assert found.state[0].dtype == run.outputs[0].dtype
    assert found.state[0].tobytes() == run.outputs[0].tobytes()


def test_a_scalar_of_state_comes_back(tmp_path: Path) -> None:
    text = """HloModule keep, replica_count=2, input_output_alias={ {}: (0, {}) }
ENTRY e { x = s4[] parameter(0) ROOT y = s4[] copy(x) }"""
    neff = ncc_compiler.compile_text(text)
    (run,) = ncc_runtime.load(neff).run_steps(1, seed=3)
    one = CheckpointFolder(str(tmp_path), [neff.program], JobInputs(3, ((0, 0),)))
    one.write(1, {0: run.outputs[0]}, neff.program)
    found = one.newest()
    assert found is not None
    assert found.state[0].tobytes() == run.outputs[0].tobytes()


def test_a_resumed_run_ends_with_the_bits_of_one_that_was_not_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train().save(tmp_path / "t.neff")
    run = ["run", str(tmp_path / "t.neff"), "-q", "--seed", "3", "--draw", "arg2", "--steps"]
    ck = ["--checkpoint", str(tmp_path / "ck"), "--checkpoint-every", "2"]
    assert main([*run, "9", "--outputs", str(tmp_path / "whole.npz")]) == 0
    assert main([*run, "5", *ck]) == 0
    assert main([*run, "9", *ck]) == 1
    assert "holds checkpoints, the newest after 5 steps; --resume" in capsys.readouterr().err
    assert main([*run, "9", *ck, "--resume", "--outputs", str(tmp_path / "end.npz")]) == 0
    assert (tmp_path / "whole.npz").read_bytes() == (tmp_path / "end.npz").read_bytes()
    assert main([*run, "9", *ck, "--resume"]) == 0
    assert "all 9 steps were done before" in capsys.readouterr().out
    assert main([*run, "8", *ck, "--resume"]) == 1
    assert "the checkpoint is of 9 steps, and the job has 8" in capsys.readouterr().err
    undrawn = [word for word in run if word not in ("--draw", "arg2")]
    assert main([*undrawn, "12", *ck, "--resume"]) == 1
    message = capsys.readouterr().err
    assert "of a run that draws inputs [2], not a run that draws inputs []" in message
    np.savez(tmp_path / "batches.npz", arg2=batches(3))
    rows = [*undrawn, "3", "--batches", str(tmp_path / "batches.npz")]
    other = ["--checkpoint", str(tmp_path / "other"), "--checkpoint-every", "2"]
    assert main([*rows, *other]) == 0
    np.savez(tmp_path / "batches.npz", arg2=-batches(3))
    assert main([*rows, *other, "--resume"]) == 1
    assert "a run with other inputs or batches (SHA-256 " in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train().save(tmp_path / "t.neff")
    (tmp_path / "file").write_text("")
    for path in ("file", "none/ck"):
        run = ["run", str(tmp_path / "t.neff"), "--steps", "2", "--draw", "arg2", "--seed", "0"]
        assert main([*run, "--checkpoint", str(tmp_path / path)]) == 1
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_a_checkpoint_of_a_seed_that_drew_other_values_is_of_another_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions did; steps behind it would read other numbers than those before."""
    train().save(tmp_path / "t.neff")
    run = ["run", str(tmp_path / "t.neff"), "-q", "--seed", "3", "--draw", "arg2", "--steps"]
    ck = ["--checkpoint", str(tmp_path / "ck"), "--checkpoint-every", "2"]
    with monkeypatch.context() as before:
        before.setattr(job, "VERSION", 0)
        assert main([*run, "2", *ck]) == 0
    assert main([*run, "4", *ck, "--resume"]) == 1
    assert "a run with other inputs or batches (SHA-256 " in capsys.readouterr().err
