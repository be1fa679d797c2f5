"""The command `nccrt`. Its commands are in `ncc_runtime/commands/`, one a file.

The environment is read, and OpenBLAS's kernel chosen, here and nowhere else.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ncc_runtime.command_line import Refusal, examples, perform
from ncc_runtime.launcher import launched

if TYPE_CHECKING:
    from ncc_runtime.processes import Processes

_COMMANDS = (
    *("run", "list", "verify", "explain", "diff", "report", "faults", "stale", "goodput"),
    *("bench", "sweep", "calibrate", "topology"),
)


class _Commands(click.Group):
    """Commands whose files are imported when they are asked for."""

    def list_commands(self, _: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module(f"ncc_runtime.commands.{name}")
        # a function called list would hide Python's own
        command: click.Command = getattr(module, "list_command" if name == "list" else name)
        return command


@click.group(
    cls=_Commands,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _choose_blas_kernel()
    # other commands are no work for several: each process would do, and say, all of it
    are_several = given[:1] == ["run"] and launched()[1] > 1
    return perform(cli, "nccrt", given, _refusals_of, _started if are_several else None)


def _started() -> "Processes":
    from ncc_runtime.processes import started

    return started()


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
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            has_avx512 = "avx512f" in file.read(1 << 13)  # of the first processor
    except OSError:
        return
    if has_avx512:
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"
