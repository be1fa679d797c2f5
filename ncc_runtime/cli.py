"""The command `nccrt`. Its commands are in `ncc_runtime/commands/`, one a file.

The environment is read, and OpenBLAS's kernel chosen, here and nowhere else.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ncc_runtime.command_line import Refusal, examples, perform
from ncc_runtime.commands.bench import bench
from ncc_runtime.commands.calibrate import calibrate
from ncc_runtime.commands.diff import diff
from ncc_runtime.commands.explain import explain
from ncc_runtime.commands.faults import faults
from ncc_runtime.commands.goodput import goodput
from ncc_runtime.commands.list import list_command
from ncc_runtime.commands.run import run
from ncc_runtime.commands.stale import stale
from ncc_runtime.commands.topology import topology
from ncc_runtime.commands.verify import verify


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "nccrt run step.neff --topology trn2 --seed 0",
        "nccrt explain step.neff --topology trn2 --nodes 2",
        "nccrt bench all_reduce -r 64 -b 1MB -e 16MB",
    ),
)
@click.version_option(package_name="neuron-ncc", prog_name="nccrt")
def cli() -> None:
    """Place a compiled program on Neuron devices that need not be there, and run it."""


_RUNS = (run, list_command, verify, explain, diff, faults, stale, goodput)
for _command in (*_RUNS, bench, calibrate, topology):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _choose_blas_kernel()
    return perform(cli, "nccrt", given, _refusals_of)


def _refusals_of(error: Exception) -> list[Refusal]:
    """What an error says of the user's input; nothing if the fault is ours."""
    if isinstance(error, MemoryError):
        fact = f"the host is out of memory: {error}"
        return [Refusal("memory", fact, help="--memory sets a budget")]
    return []


def _choose_blas_kernel() -> None:
    """Let OpenBLAS use AVX-512 where the CPU has it: it falls back to Haswell on newer CPUs."""
    if "numpy" in sys.modules or "OPENBLAS_CORETYPE" in os.environ:
        return
    try:
        has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text(
            encoding="ascii", errors="replace"
        )
    except OSError:
        return
    if has_avx512:
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"
