"""How long `nccrt run --no-values` of a large model takes, phase by phase, each time afresh.

Prints seconds of processor time of every phase, the least of several processes, and those of the
installed command, beside its wall time: what `time nccrt run` says. What a phase imports counts
with it. The clock's compiled code is in its cache, as on every run but the first. All runs in the
environment as it is: where Python may not keep its bytecode, and the installation brought none,
every run compiles the sources anew, which the last line says.

Run: python benchmarks/whole_command.py [MODEL] [--topology T] [--nodes N] [--runs 5]
"""

import argparse
import gc
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LLAMA = Path(__file__).parents[1] / "tests" / "data" / "hlo" / "llama_4l_64ranks.hlo"
WHOLE, WALL = "the whole command", "its wall time"
NCCRT = Path(sys.executable).with_name("nccrt")


def phases(path: str, topology: str, nodes: int | None) -> dict[str, float]:
    """Seconds of each phase of one run, in the order of the command."""
    found: dict[str, float] = {}

    def timed(name: str, do: Callable[[], Any]) -> Any:
        start = time.process_time()
        made = do()
        found[name] = time.process_time() - start
        return made

    timed("imports", import_command)
    from ncc_runtime import runtime
    from ncc_runtime.lowering.choices import ProgramChooser
    from ncc_runtime.lowering.lower import lower_plans
    from ncc_runtime.options import RunOptions
    from ncc_runtime.placement import PlaceOptions, place_on
    from ncc_runtime.report import summary

    program = timed("read the file", lambda: runtime.program_of(path))
    options = PlaceOptions(topology, nodes=nodes)
    placement = timed("place", lambda: place_on(options, program.ranks))
    chosen = timed("choose", lambda: ProgramChooser(program, placement).choose())
    replica_groups = [list(plans.replica_groups) for plans in chosen]
    model = runtime.Model(timed("fill", lambda: lower_plans(program, placement, replica_groups)))
    timed("prove", lambda: model.proofs)
    run = RunOptions(values=False)
    result = timed("clock, and rows of collectives", lambda: model.run(options=run))
    timed("report", lambda: summary.as_text(model.executable, result, run, 0))
    return found


def import_command() -> None:
    """Import what the command does."""
    import ncc_runtime.cli
    import ncc_runtime.report.summary
    import ncc_runtime.runtime  # noqa: F401


def whole(path: str, topology: str, nodes: int | None) -> dict[str, float]:
    """Seconds of one whole command: of processor time, then of wall time."""
    placed = ["--topology", topology, *([] if nodes is None else ["--nodes", str(nodes)])]
    command = [str(NCCRT), "run", path, "--no-values", *placed]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {WHOLE: busy, WALL: wall}


def compiled(model: Path, folder: str) -> str:
    """The path of the model as a program; a `.neff` is one."""
    if model.suffix == ".neff":
        return str(model)
    import ncc_compiler

    path = Path(folder) / f"{model.stem}.neff"
    path.write_bytes(ncc_compiler.compile_file(str(model)).data)
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=LLAMA, help="a model or a .neff")
    parser.add_argument("--topology", default="trn2.48xlarge")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        from ncc_runtime import entry, record_code

        gc.set_threshold(entry.NEW_CONTAINERS)  # as the command does
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        record_code.used_for("nccrt")
        print(json.dumps(phases(str(given.model), given.topology, given.nodes)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = compiled(given.model, folder)
        rows = [measured(path, given) for _ in range(given.runs + 1)][1:]  # the first fills caches
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, {given.topology}, {given.model.name}")
    least = {name: min(row[name] for row in rows) for name in rows[0]}
    phases_s = sum(seconds for name, seconds in least.items() if name not in (WHOLE, WALL))
    least["of it start, end, command line"] = least[WHOLE] - phases_s
    for name, seconds in least.items():
        print(f"{name:<32}{seconds:>7.3f} s")
    print(f"bytecode of this package is {'read' if has_bytecode() else 'made anew in every run'}")


def has_bytecode() -> bool:
    """Whether Python finds the sources compiled."""
    spec = importlib.util.find_spec("ncc_runtime")
    return spec is not None and spec.cached is not None and Path(spec.cached).exists()


def measured(path: str, given: argparse.Namespace) -> dict[str, float]:
    """One process for the phases, one for the whole command."""
    placed = ["--topology", given.topology]
    placed += [] if given.nodes is None else ["--nodes", str(given.nodes)]
    once = [sys.executable, __file__, path, *placed, "--once"]
    done = subprocess.run(once, check=True, capture_output=True, text=True)
    return {**json.loads(done.stdout), **whole(path, given.topology, given.nodes)}


if __name__ == "__main__":
    main()
