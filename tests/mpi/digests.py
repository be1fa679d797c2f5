"""Digests of the outputs of programs in several ways, as JSON, from one process or several.

Started by the tests: `mpirun -n 4 python -m tests.mpi.digests tests/data/hlo/*.hlo`. All programs
go into one start, which takes longer than most of them.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ncc_compiler
import ncc_runtime
from ncc_runtime import processes
from ncc_runtime.errors import NccError
from ncc_runtime.report.run import Run
from ncc_runtime.runtime import program_of

WAYS: dict[str, dict[str, Any]] = {
    "proved": {},
    "literal": {"verify": False},
    "checked": {"checked": True, "verify": False},
    "shuffled": {"shuffle_seed": 7, "verify": False},
}


def digests(files: list[str], ways: list[str]) -> Iterator[tuple[str, str, Any]]:
    """File, way, and the digest of what all ranks have; None where there are too few ranks."""
    world = processes.started()
    for file in files:
        paths = file.split("+")
        options = ncc_compiler.CompileOptions()
        programs = [ncc_compiler.compile_text(Path(path).read_text(), options) for path in paths]
        if len(programs) == 1:
            model = ncc_runtime.load(programs[0], "trn2")
        else:
            each = program_of(programs[0]).ranks // len(programs)
            model = ncc_runtime.load(
                [(one, range(k * each, (k + 1) * each)) for k, one in enumerate(programs)], "trn2"
            )
        if model.executable.ranks < world.count:
            yield file, "", None
            continue
        model.processes = world
        for way in ways:
            run = model.run(seed=3, clock=world.count == 1, threads=1, **WAYS[way])
            yield file, way, _digest(run, world)


def _digest(run: Run, world: processes.Processes) -> str:
    rows = [[bytes(row.tobytes()) for row in one] for one in run.ranked_outputs]
    digest = hashlib.sha256()
    every = world.gather(rows)
    for number in range(len(rows)):
        for row in (row for process in every for row in process[number]):
            digest.update(row)
    decided = (run.traffic and [str(one) for one in run.traffic], run.interpreters)
    assert len({str(one) for one in world.gather(decided)}) == 1
    return digest.hexdigest()


def main() -> None:
    ways, *files = sys.argv[1:]
    found = {f"{file} {way}": one for file, way, one in digests(files, ways.split(","))}
    if processes.started().number == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    try:
        main()
    except NccError as error:
        sys.exit(f"{type(error).__name__}: {error}")
