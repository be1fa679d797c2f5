"""A soak: the same work again and again in one process, which must grow by nothing.

Round after round models run that were loaded once (collectives with the clock, a step of training,
a loop), others are compiled, loaded, run and dropped, a program that no round before had among
them; steps with checkpoints, benchmarks of collectives with checks, faults and a campaign go
through the commands of `nccrt`. After each round, with garbage collected: resident memory, objects
that the garbage collector knows, open files, threads, child processes, and files in the folders of
temporary files and of the cache.

Of the last two thirds of the rounds each figure is fitted by a line. It must not grow: by more than
the errors of its slope allow, and by more than a trifle over all of these rounds. Exit code 1 if
one does.

Run: python benchmarks/soak.py [--minutes 10] [--only WORK ...] [--json F]
"""

import argparse
import contextlib
import ctypes
import gc
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import ncc_compiler  # noqa: E402
import ncc_runtime  # noqa: E402
from ncc_runtime.cli import main as nccrt  # noqa: E402
from ncc_runtime.execution.values.kernels.compiled import CODE  # noqa: E402

TRAINING = ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo"
LOOP = ROOT / "tests/data/hlo/fsdp_scan_layers.hlo"

COLLECTIVE = """HloModule m, replica_count=8
sum {{ a = {dtype}[] parameter(0)  b = {dtype}[] parameter(1)  ROOT c = {dtype}[] add(a, b) }}
ENTRY main {{
  x = {dtype}[{elements}] parameter(0)
  y = {dtype}[{elements}] multiply(x, x)
  ROOT z = {dtype}[{elements}] all-reduce(y), replica_groups={{}}, to_apply=sum
}}
"""

COMPILE = (
    "from ncc_runtime.execution.clock import machine_code; machine_code._kernel(); "
    "from ncc_runtime.execution.values.kernels.compiled import CODE; CODE.addresses()"
)

TRIFLES = {
    "resident KiB": 2048.0,
    "objects": 50.0,
    "open files": 0.5,
    "threads": 0.5,
    "children": 0.5,
    "temporary files": 0.5,
    "cached files": 0.5,
}
"""How much each figure may grow over the rounds that count: the allocator gives memory back when it
likes, and some caches of Python's library are filled by chance."""

MOST_ERRORS = 3.0
"""Standard errors that a slope may be above zero."""


@attrs.frozen
class Growth:
    """A figure over the rounds that count, by least squares."""

    name: str
    first: float
    last: float
    total: float  # slope times rounds
    error: float  # standard error of that

    @property
    def is_leak(self) -> bool:
        """Whether it grows by more than chance and by more than a trifle."""
        return bool(self.total > max(TRIFLES[self.name], MOST_ERRORS * self.error))


def growth(name: str, taken: Sequence[float]) -> Growth:
    """How one figure grows over the last two thirds of the rounds."""
    kept = np.array(taken[len(taken) // 3 :], float)
    place = np.arange(len(kept)) - (len(kept) - 1) / 2
    spread = (place**2).sum()
    slope = (place * kept).sum() / spread
    rest = kept - kept.mean() - slope * place
    error = np.sqrt((rest**2).sum() / max(1, len(kept) - 2) / spread)
    return Growth(name, kept[0], kept[-1], slope * len(kept), error * len(kept))


class Soak:
    """The work of a round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rounds = 0
        self._heard = io.StringIO()  # one: click keeps every stream that it has written to
        self._training = str(folder / "training.neff")
        ncc_compiler.compile_file(TRAINING).save(self._training)
        text = COLLECTIVE.format(dtype="f32", elements=1 << 16)
        self._collective = ncc_runtime.load(ncc_compiler.compile_text(text))
        self._step = ncc_runtime.load(self._training)
        self._loop = ncc_runtime.load(ncc_compiler.compile_file(LOOP))
        self._arrays = [np.ones((8, 1 << 16), np.float32)]

    @property
    def works(self) -> Mapping[str, Callable[[], object]]:
        """What is done in a round, by name."""
        return {
            "collectives": self._collectives,
            "training": lambda: self._step.run(seed=self._rounds % 5),
            "loop": lambda: [self._loop.run(seed=0, clock=False) for _ in range(3)],
            "steps": self._steps,
            "new": self._new_model,
            "command": self._command,
            "bench": self._bench,
            "faults": self._faults,
            "campaign": self._campaign,
        }

    def round(self, names: Sequence[str]) -> None:
        """Do it all once."""
        for name in names:
            self.works[name]()
        self._rounds += 1

    def _collectives(self) -> None:
        for clock in (True, False, False):
            run = self._collective.run(self._arrays, clock=clock)
            assert (run.outputs[0] == 8).all()

    def _steps(self) -> None:
        runs = self._step.run_steps(4, seed=0, clock=False, feed={"out1": "arg0"}, draw=["arg2"])
        for _ in runs:
            pass

    def _new_model(self) -> None:
        """A program that no round before had."""
        text = COLLECTIVE.format(dtype="bf16", elements=1000 + self._rounds)
        model = ncc_runtime.load(ncc_compiler.compile_text(text))
        model.run(seed=0)
        model.explain()
        str(model.list())
        model.verify()

    def _command(self) -> None:
        outputs, folder = str(self._folder / "out.npz"), str(self._folder / "checkpoints")
        self._nccrt("run", self._training, "--seed", "0", "--outputs", outputs, "--json")
        steps = ["--steps", "4", "--feed", "out1=arg0", "--draw", "arg2", "--checkpoint", folder]
        self._nccrt("run", self._training, "--seed", "0", *steps, "--checkpoint-every", "2")
        shutil.rmtree(folder)

    def _bench(self) -> None:
        self._nccrt("bench", "all_reduce", "-r", "8", "-b", "4KB", "-e", "64KB", "--check")

    def _faults(self) -> None:
        late = "rank 3 late by 20us"
        self._nccrt("run", self._training, "--seed", "0", "--fault", late)
        self._nccrt("faults", self._training, "--fault", late)

    def _campaign(self) -> None:
        self._nccrt("faults", self._training, "--all", "dma.lost", "--runs", "8")

    def _nccrt(self, *words: str) -> None:
        self._heard.seek(0)
        self._heard.truncate()
        with contextlib.redirect_stdout(self._heard), contextlib.redirect_stderr(self._heard):
            code = nccrt([*words])
        assert code == 0, f"nccrt {' '.join(words)}: exit code {code}\n{self._heard.getvalue()}"


def figures() -> dict[str, float]:
    """What this process holds."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # of glibc
        ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    tasks = Path("/proc/self/task").iterdir()
    children = sum(len((task / "children").read_text().split()) for task in tasks)
    return {
        "resident KiB": float(status["VmRSS"].split()[0]),
        "objects": float(len(gc.get_objects())),
        "open files": float(len([*Path("/proc/self/fd").iterdir()])),
        "threads": float(status["Threads"]),
        "children": float(children),
        "temporary files": float(_files_in(tempfile.gettempdir())),
        "cached files": float(_files_in(os.environ.get("XDG_CACHE_HOME", ""))),
    }


def _files_in(folder: str) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


@contextlib.contextmanager
def _own_folders() -> Iterator[Path]:
    """A folder for files, and folders of temporary files and of the cache that nobody else uses."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        for name, variable in (("temporary", "TMPDIR"), ("cache", "XDG_CACHE_HOME")):
            (folder / name).mkdir()
            os.environ[variable] = str(folder / name)
        tempfile.tempdir = None
        try:
            yield folder
        finally:
            tempfile.tempdir = None


def soak(
    minutes: float, names: Sequence[str] = (), least_rounds: int = 12
) -> tuple[int, list[Growth]]:
    """How many rounds there were, and how each figure grew."""
    with _own_folders() as folder:
        # a process that finds no machine code of the clock or the kernels compiles it when that
        # pays, with numba, which takes memory that is no leak; what it finds it loads then, and
        # holds a file open
        subprocess.run([sys.executable, "-c", COMPILE], check=True, cwd=ROOT)
        CODE.addresses()
        work = Soak(folder)
        taken: dict[str, list[float]] = {}
        end, rounds = time.monotonic() + 60 * minutes, 0
        while time.monotonic() < end or rounds < least_rounds:
            work.round(names or [*work.works])
            for name, figure in figures().items():
                taken.setdefault(name, []).append(figure)
            rounds += 1
        return rounds, [growth(name, every) for name, every in taken.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", nargs="+", default=(), metavar="WORK")
    parser.add_argument("--json", help="write the figures to this file too")
    arguments = parser.parse_args()
    rounds, found = soak(arguments.minutes, arguments.only)
    print(f"{rounds} rounds in {arguments.minutes:g} minutes, of which the last two thirds count")
    print(f"{'':18}{'first':>12}{'last':>12}{'grows by':>12}{'+-':>10}")
    for one in found:
        mark = "  grows" if one.is_leak else ""
        cells = f"{one.first:12,.0f}{one.last:12,.0f}{one.total:12,.1f}{one.error:10,.1f}"
        print(f"{one.name:18}{cells}{mark}")
    if arguments.json:
        rows = [{**attrs.asdict(one), "is_leak": one.is_leak} for one in found]
        Path(arguments.json).write_text(json.dumps({"rounds": rounds, "figures": rows}, indent=1))
    return int(any(one.is_leak for one in found))


if __name__ == "__main__":
    sys.exit(main())
