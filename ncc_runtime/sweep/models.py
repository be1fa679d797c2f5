"""Models of a sweep, compiled by the command `nccc`, each once for what it is compiled with.

The runtime knows nothing of the compiler but its command and the file that it writes. Programs lie
in a folder beside the results, under names that say what they are, with a record of what they were
made of: the sources, and both packages. While none of it changes they are not compiled again.
"""

import concurrent.futures
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ncc_runtime.errors import InputError, reason_of
from ncc_runtime.input_files import MOST_JSON_BYTES, json_of, read_file
from ncc_runtime.neff.whole_file import write_whole
from ncc_runtime.progress import phase
from ncc_runtime.sweep.points import WordError, package_digest, version
from ncc_runtime.words import mesh_of

_COMMAND = (
    sys.executable,
    "-c",
    "import sys; from ncc_compiler.entry import main; sys.exit(main())",
)


@attrs.frozen
class Compilation:
    """What one call of `nccc` is given; of words of a point those that it concerns."""

    model: str
    level: int = 1
    ranks: int | None = None
    mesh: str = ""
    pass_options: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        given = [self.model, f"-O{self.level}"]
        given += ["--mesh", self.mesh] * bool(self.mesh)
        given += ["--ranks", str(self.ranks)] * (self.ranks is not None)
        for option in self.pass_options:
            given += ["--pass-option", option]
        return given

    @property
    def name(self) -> str:
        """Of its files: `train-step-data2-model4-1a2b3c4d`, with a hash of what it does not say."""
        said = re.sub(r"[^A-Za-z0-9_]+", "-", f"{Path(self.model).name}-{self.mesh}").strip("-")
        digest = hashlib.sha256(json.dumps(self.arguments).encode()).hexdigest()
        return f"{said[:80]}-{digest[:8]}"


def compilation_of(words: Mapping[str, Any]) -> Compilation:
    """Those of the words of a point that concern its model; WordError."""
    mesh = ",".join(f"{axis}={size}" for axis, size in _mesh(words).items())
    options = tuple(words.get("pass_option", ()))
    return Compilation(words["model"], words.get("level", 1), words.get("ranks"), mesh, options)


def _mesh(words: Mapping[str, Any]) -> dict[str, int]:
    try:
        return mesh_of(words["mesh"]) if "mesh" in words else {}
    except InputError as error:
        raise WordError("mesh", error) from error


def samples_of(words: Mapping[str, Any]) -> int | None:
    """`512`, or a product of numbers and axes of the mesh, `8*data`; WordError."""
    said = words.get("samples")
    if said is None:
        return None
    mesh, count = _mesh(words), 1
    for factor in str(said).split("*"):
        factor = factor.strip()
        if not (re.fullmatch(r"[1-9]\d{0,9}", factor, re.ASCII) or factor in mesh):
            axes = f"; the axes are {', '.join(mesh)}" if mesh else ""
            reason = f"{said!r} is neither a number nor a product such as 8*data{axes}"
            raise WordError("samples", reason)
        count *= mesh[factor] if factor in mesh else int(factor)
    return count


@attrs.frozen
class CompiledModel:
    """The words of a program, as a point has them; or why there is none."""

    program: tuple[str, ...] = ()
    refusal: str = ""


def compiled(
    models: Sequence[Compilation], folder: Path, processes: int
) -> dict[Compilation, CompiledModel]:
    """All models, so many at a time; their programs lie in a folder, which is made."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: {reason_of(error)}") from error
    found: dict[Compilation, CompiledModel] = {}
    threads = concurrent.futures.ThreadPoolExecutor(processes)
    try:
        with phase("compiling models", "programs", len(models)) as now:
            calls = {threads.submit(_compiled, model, folder): model for model in models}
            for call in concurrent.futures.as_completed(calls):
                found[calls[call]] = call.result()
                now.done += 1
    finally:  # after an interrupt no other is begun
        threads.shutdown(cancel_futures=True)
    return found


def _compiled(model: Compilation, folder: Path) -> CompiledModel:
    record = folder / f"{model.name}.json"
    made_by = [version(), package_digest("ncc_compiler"), *model.arguments]
    if (kept := _kept(record, made_by)) is not None:
        return kept
    try:
        said = _nccc(model, folder / f"{model.name}.neff", 0)
        reports = [
            said,
            *(
                _nccc(model, folder / f"{model.name}-{stage}.neff", stage)
                for stage in range(1, said["stages"] or 1)
            ),
        ]
        program = _program(model, reports)
    except InputError as error:
        return CompiledModel(refusal=str(error))
    sources = said["sources"] or [model.model]
    files = [*sources, *(report["neff"] for report in reports)]
    made = {
        "made_by": made_by,
        "files": {file: _digest(file) for file in files},
        "program": program,
    }
    write_whole(record, json.dumps(made, indent=1).encode())
    return CompiledModel(tuple(program))


def _kept(record: Path, made_by: Sequence[str]) -> CompiledModel | None:
    """What has been compiled before of the same; None if anything has changed, or is not there."""
    try:
        made: Any = json_of(read_file(record, MOST_JSON_BYTES))
        if made["made_by"] != list(made_by):
            return None
        if any(_digest(file) != digest for file, digest in made["files"].items()):
            return None
        return CompiledModel(tuple(made["program"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # or it is no record
        return None


def _program(model: Compilation, reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """The words of what was compiled; stages share the ranks equally, in order."""
    ranks, stages = reports[0]["ranks"], reports[0]["stages"]
    if stages is None:
        return [reports[0]["neff"]]
    mesh = mesh_of(model.mesh) if model.mesh else {"ranks": ranks}
    axis, size = next(iter(mesh.items()))
    if ranks % stages or (model.mesh and size != stages):
        raise InputError(
            f"{model.model} gives {stages} stages, and its first axis is {axis}={size}"
        )
    share = ranks // stages
    return [
        f"{report['neff']}@{stage * share}-{(stage + 1) * share - 1}"
        for stage, report in enumerate(reports)
    ]


def _nccc(model: Compilation, out: Path, stage: int) -> dict[str, Any]:
    """What `nccc compile --json` says; InputError with what it refuses."""
    command = [*_COMMAND, "compile", *model.arguments, "-o", str(out), "--json", "-q"]
    command += ["--stage", str(stage)] * (stage > 0)
    done = subprocess.run(  # noqa: S603 - the other command of this package
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        said = json.loads(done.stdout)
        errors = said["errors"]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise InputError(f"nccc ended with {done.returncode}: {last}") from None
    if errors:
        first = errors[0]
        raise InputError(f"{first['message']}" + f" ({first['help']})" * bool(first["help"]))
    return said


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
