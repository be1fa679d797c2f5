"""Checkpoints: the state between two steps in files, one for each rank, whole or not there.

A checkpoint is a directory, `step-00000012`, with `rank-00000.safetensors`, … and `manifest.json`.
The manifest is written last, when all other files are on the disk. So a checkpoint counts exactly
if its manifest is there and what it says of the files is true: a writer that dies at any moment
leaves the checkpoints before, and at most a directory that does not count, which the next one
removes.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ncc_runtime.array_files import open_arrays, safetensors_bytes, safetensors_types
from ncc_runtime.errors import InputError, NccError, Notice, reason_of
from ncc_runtime.input_files import MOST_JSON_BYTES, json_of, read_file
from ncc_runtime.neff.document import files_of
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import stages_of
from ncc_runtime.neff.whole_file import sync, write_whole
from ncc_runtime.step_inputs import Feed, ranks_of

FORMAT = 1
"""Of manifests."""

MANIFEST = "manifest.json"

_FOLDER = re.compile(r"step-(\d{8,18})", re.ASCII)
_RANK_FILE = re.compile(r"rank-\d{5,9}\.safetensors", re.ASCII)

State = Mapping[int, np.ndarray]
"""By input that an output feeds, [ranks that have it, *shape]: what the next step takes."""


@attrs.frozen
class JobInputs:
    """What the steps of a job read, beside the state that a checkpoint has."""

    seed: int | None
    feed: Feed
    draw: tuple[int, ...] = ()  # inputs that are drawn at every step, by number
    data_sha256: str = ""  # of batches, of given inputs that nothing feeds, of how a seed draws


@attrs.frozen
class JobIdentity:
    """What must be the same for a run to go on from a checkpoint."""

    program: str
    program_sha256: str
    ranks: int
    seed: int | None
    feed: Feed
    draw: tuple[int, ...]
    data_sha256: str

    @classmethod
    def of(cls, program: Program, inputs: "JobInputs") -> "JobIdentity":
        """Of a program, or of several on their ranks."""
        digest = hashlib.sha256()
        for stage in stages_of(program):
            digest.update(stage.ranks.astype("<i4").tobytes())
            for name, data in files_of(stage.program).items():
                digest.update(f"{name} {len(data)}\n".encode() + data)
        own = attrs.asdict(inputs, recurse=False)
        return cls(program.name, digest.hexdigest(), program.ranks, **own)

    def difference(self, found: Mapping[str, Any]) -> str:
        """How a manifest's job differs from this one; empty if it does not."""
        own = json.loads(json.dumps(attrs.asdict(self)))  # as it is read back
        for name, what in (
            ("program", "program {}"),
            ("ranks", "a program for {} ranks"),
            ("program_sha256", "another version of the program (SHA-256 {:.12}…)"),
            ("seed", "a run with seed {}"),
            ("feed", "a run with feed {}"),
            ("draw", "a run that draws inputs {}"),
            ("data_sha256", "a run with other inputs or batches (SHA-256 {:.12}…)"),
        ):
            if found[name] != own[name]:
                return f"of {what.format(found[name])}, not {what.format(own[name])}"
        return ""


@attrs.frozen(eq=False)
class Restored:
    """A whole checkpoint that was read."""

    step: int  # how many steps were done: the number of the next one
    state: State
    program: Program  # whose state it is


def state_bytes(program: Program, feed: Feed) -> np.ndarray:
    """The bytes of state that each rank has, (ranks,) int64."""
    total = np.zeros(program.ranks, np.int64)
    for number in {number for _, number in feed}:
        total[ranks_of(program, number)] += program.tensors[program.inputs[number]].size_bytes
    return total


class CheckpointFolder:
    """The checkpoints of one job in a directory; only one process at a time holds it open."""

    def __init__(
        self,
        path: str,
        programs: Sequence[Program],
        inputs: JobInputs,
        keep: int = 2,
    ) -> None:
        """`programs` are those that the job may run: its own, and those for fewer ranks."""
        self.path = Path(path)
        self.notices: list[Notice] = []  # about checkpoints that were passed over
        self._jobs = [(JobIdentity.of(program, inputs), program) for program in programs]
        self._feed = inputs.feed
        self._keep = keep
        self._whole: set[int] = set()  # steps of those that this process has read or written

    @contextlib.contextmanager
    def opened(self) -> Iterator["CheckpointFolder"]:
        """Make the directory if it is not there, and hold it; InputError if another run does."""
        safetensors_bytes(str(self.path), {})  # says what is missing before anything is computed
        self.path.mkdir(exist_ok=True)
        sync(self.path.parent)  # its own name has to survive a power failure, too
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                what = f"{self.path}: another run writes its checkpoints there"
                raise InputError(f"{what}; wait for it, or give another directory") from error
            except OSError:  # a file system without locks
                pass
            yield self
        finally:
            os.close(handle)

    def steps(self) -> list[int]:
        """The steps of all checkpoints that have a manifest, newest first."""
        return sorted(
            (step for step, folder in self._folders() if (folder / MANIFEST).exists()), reverse=True
        )

    def check_is_empty(self) -> None:
        """InputError if there are checkpoints, which a run from the beginning would mix up."""
        if steps := self.steps():
            raise InputError(
                f"{self.path}: holds checkpoints, the newest after {steps[0]} steps; --resume goes "
                "on from there, or give an empty directory"
            )

    def newest(self) -> Restored | None:
        """The newest whole checkpoint; None if there is none at all.

        Damaged ones are passed over, which `notices` tells. InputError if all are damaged, or one
        is of another job.
        """
        steps = self.steps()
        for step in steps:
            folder = self._folder(step)
            try:
                manifest = self._manifest(folder, step)
            except _DamagedError as error:
                self._pass_over(folder, error)
                continue
            differences = [identity.difference(manifest) for identity, _ in self._jobs]
            if "" not in differences:
                raise InputError(f"{folder}: {differences[0]}; give another directory")
            program = self._jobs[differences.index("")][1]
            try:
                state = self._state(folder, manifest, program)
            except _DamagedError as error:
                self._pass_over(folder, error)
                continue
            self._whole.add(step)
            return Restored(step, state, program)
        if steps:
            raise InputError(
                f"{self.path}: none of the {len(steps)} checkpoints is whole "
                f"({self.notices[0].message}); remove them to begin anew"
            )
        return None

    def write(self, step: int, state: State, program: Program) -> None:
        """Write the state of a program after so many steps, then remove what is too old.

        OSError, with the name of the file, if it cannot be written; older checkpoints stay then.
        """
        folder = self._folder(step)
        identity = next(identity for identity, own in self._jobs if own is program)
        self._prune(step - 1)  # what an earlier run kept, or a dead one left, makes room
        self._remove(folder)  # of a run that went back and comes here again, or of a dead one
        folder.mkdir(exist_ok=True)
        files = []
        try:
            for rank in range(program.ranks):
                path = folder / f"rank-{rank:05d}.safetensors"
                data = safetensors_bytes(str(path), _arrays_of(program, rank, state))
                write_whole(path, data)
                digest = hashlib.sha256(data).hexdigest()
                files.append({"name": path.name, "bytes": len(data), "sha256": digest})
            fields = {
                "format": FORMAT,
                "step": step,
                **attrs.asdict(identity),
                "files": files,
            }
            manifest = {**fields, "sha256": _digest(fields)}
            sync(self.path)  # the name of the directory, before what makes it count
            write_whole(folder / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
        except OSError:
            with contextlib.suppress(OSError):
                self._remove(folder)
            raise
        self._whole.add(step)
        self._prune(step)

    def _prune(self, step: int) -> None:
        """Remove all but the newest up to a step, if one is among these that is known to be whole.

        Those after the step are of a run that went back to before them, or damaged.
        """
        kept = [other for other in self.steps() if other <= step][: self._keep]
        if self._whole.intersection(kept):
            for other, path in self._folders():
                if other not in kept:
                    self._remove(path)

    def _folder(self, step: int) -> Path:
        return self.path / f"step-{step:08d}"

    def _folders(self) -> list[tuple[int, Path]]:
        """Directories of checkpoints, whole or not, by step."""
        return [
            (int(match[1]), entry)
            for entry in sorted(self.path.iterdir())
            if (match := _FOLDER.fullmatch(entry.name))
        ]

    def _pass_over(self, folder: Path, error: "_DamagedError") -> None:
        message = f"{folder}: damaged: {error}; an older one is taken"
        self.notices.append(Notice("checkpoint-damaged", message, "docs/faults.md#going-on"))

    def _manifest(self, folder: Path, step: int) -> dict[str, Any]:
        try:
            _size(folder / MANIFEST)
            manifest = json_of(read_file(str(folder / MANIFEST), MOST_JSON_BYTES))
        except (OSError, ValueError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else "not JSON"
            raise _DamagedError(f"{MANIFEST}: {reason}") from error
        if not isinstance(manifest, dict):
            raise _DamagedError(f"{MANIFEST} is no object")
        version = manifest.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise InputError(
                f"{folder}: format {version}, this reads {FORMAT}: made by a newer version; "
                "update ncc"
            )
        if manifest.pop("sha256", None) != _digest(manifest) or manifest.get("step") != step:
            raise _DamagedError(f"the hash of {MANIFEST} differs")
        is_known = _has(manifest, _FIELDS) and version == FORMAT
        if not is_known or not all(_has(entry, _FILE) for entry in manifest["files"]):
            raise _DamagedError(f"{MANIFEST} has other fields than a checkpoint")
        return manifest

    def _state(self, folder: Path, manifest: Mapping[str, Any], program: Program) -> State:
        """The arrays of all ranks, once every file has the size and hash that the manifest says."""
        columns = dict[int, list[np.ndarray]]()
        inputs = sorted({number for _, number in self._feed})
        ranks = {number: set(ranks_of(program, number).tolist()) for number in inputs}
        if len(manifest["files"]) != program.ranks:
            names = f"{len(manifest['files'])} files for {program.ranks} ranks"
            raise _DamagedError(f"{MANIFEST} names {names}")
        for rank, said in enumerate(manifest["files"]):
            path = folder / f"rank-{rank:05d}.safetensors"
            try:
                size = _size(path)
                if (said["name"], said["bytes"]) != (path.name, size):
                    raise _DamagedError(f"{path.name} has {size} bytes, not {said['bytes']}")
                with path.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
                if digest != said["sha256"]:
                    raise _DamagedError(f"the hash of {path.name} differs")
                with open_arrays(str(path)) as arrays:
                    for number in inputs:
                        if rank in ranks[number]:
                            tensor = program.tensors[program.inputs[number]]
                            array = np.asarray(arrays[f"arg{number}"]).reshape(-1)
                            whole = array.view(tensor.dtype.numpy).reshape(tensor.shape)
                            columns.setdefault(number, []).append(whole)
            except OSError as error:
                raise _DamagedError(f"{path.name}: {reason_of(error)}") from error
            except (NccError, KeyError, ValueError) as error:
                raise _DamagedError(f"{path.name}: {error}") from error
        return {number: np.stack(arrays) for number, arrays in columns.items()}

    def _remove(self, folder: Path) -> None:
        """Remove a checkpoint; first the manifest, so that at no moment a part of it counts."""
        if not folder.is_dir():
            return
        (folder / MANIFEST).unlink(missing_ok=True)
        sync(folder)
        for file in folder.iterdir():
            if _RANK_FILE.fullmatch(file.name) or file.name.startswith(".ncc-"):
                file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody keeps another file there
            folder.rmdir()


def _arrays_of(program: Program, rank: int, state: State) -> dict[str, np.ndarray]:
    """The arrays of a rank, as its file has them."""
    arrays = {}
    for number, array in state.items():
        (row,) = np.nonzero(ranks_of(program, number) == rank)
        if len(row):
            own = np.ascontiguousarray(array[int(row[0])])
            # what the format has no name for goes in as bytes
            is_known = own.dtype in safetensors_types()
            arrays[f"arg{number}"] = own if is_known else own.reshape(-1).view(np.uint8)
    return arrays


class _DamagedError(Exception):
    """Why a checkpoint is not whole."""


_FIELDS: Mapping[str, tuple[type, ...]] = {
    "format": (int,),
    "step": (int,),
    "files": (list,),
    "program": (str,),
    "program_sha256": (str,),
    "ranks": (int,),
    "seed": (int, type(None)),
    "feed": (list,),
    "draw": (list,),
    "data_sha256": (str,),
}
"""Of a manifest but for its hash, which shows damage, not that somebody wrote something else."""

_FILE: Mapping[str, tuple[type, ...]] = {"name": (str,), "bytes": (int,), "sha256": (str,)}


def _has(found: object, fields: Mapping[str, tuple[type, ...]]) -> bool:
    """Whether it is an object of these fields, each of one of its types."""
    if not isinstance(found, dict) or set(found) != set(fields):
        return False
    return all(type(found[name]) in types for name, types in fields.items())


def _size(path: Path) -> int:
    """Of a file; a pipe, a device or a directory is none, and reading it might never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _DamagedError(f"{path.name} is no regular file")
    return status.st_size


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
