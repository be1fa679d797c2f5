"""Help loads little: what is slow to import is imported by who needs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ncc_compiler

HEAVY = (
    "jsonschema",
    "lark",
    "msgspec",
    "ml_dtypes",
    "numba",
    "numpy",
    "perfetto",
    "rich",
    "scipy",
    "tree_sitter",
)

LATE = (
    "networkx",
    "threadpoolctl",
    "ncc_runtime.execution.values.devices",
    "ncc_runtime.plans.files",
    "ncc_runtime.verify.agreement",
)

COMPILER = ("numba", "email")
"""What compiles, and what tells its version."""

_RUN = """
import sys, ncc_compiler, ncc_runtime
from ncc_runtime.execution.clock import uncompiled
uncompiled.STEPS_IF_KEPT = uncompiled.STEPS_IF_NOT = {steps}
neff = ncc_compiler.compile_text("ENTRY m {{ p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }}")
ncc_runtime.load(neff).run(values=False)
print([name for name in {names} if name in sys.modules])
"""

_PROBE = """
import sys
from {module} import main
try:
    code = main({arguments})
except SystemExit as stop:
    code = stop.code
loaded = [name for name in {heavy} if name in sys.modules]
print("PROBE", code or 0, " ".join(loaded) or "-")
"""


def probe(module: str, arguments: list[str]) -> tuple[int, str]:
    """Exit code, and heavy modules loaded, of a command run in a fresh interpreter."""
    code = _PROBE.format(module=module, arguments=arguments, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, status, *loaded = done.stdout.strip().splitlines()[-1].split()
    return int(status), " ".join(loaded)


@pytest.mark.parametrize("module", ["ncc_compiler.cli", "ncc_runtime.cli"])
@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["--version"], ["walk"]])
def test_help_loads_nothing_heavy(module: str, arguments: list[str]) -> None:
    assert probe(module, arguments) == (2 if arguments == ["walk"] else 0, "-")


@pytest.mark.parametrize("module", ["ncc_compiler", "ncc_runtime"])
def test_the_packages_import_at_once(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_without_values_on_a_torus_loads_no_kernels_and_no_graph_search() -> None:
    code = (
        "import sys; from ncc_runtime import runtime; from ncc_runtime.topology import graph; "
        "from ncc_runtime.topology.chip_routes import chip_routes; "
        "chip_routes(graph.build('trn2')); "
        f"print([name for name in {LATE} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def loaded_by_a_run(names: tuple[str, ...], steps: int = 20_000) -> str:
    """Which modules a fresh interpreter has loaded after a run for times only.

    The clock performs so many steps without machine code.
    """
    command = [sys.executable, "-c", _RUN.format(names=names, steps=steps)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_run_for_times_loads_nothing_for_values_users_plans_or_several_programs() -> None:
    assert loaded_by_a_run(LATE) == "[]"


def test_a_short_run_needs_no_machine_code() -> None:
    assert loaded_by_a_run(("numba", "rich.progress")) == "[]"


def test_the_clock_that_is_compiled_already_loads_nothing_to_compile_by() -> None:
    loaded_by_a_run(COMPILER, steps=0)  # may compile it
    assert loaded_by_a_run(COMPILER, steps=0) == "[]"


NO_COMMAND_NEEDS = ("email", "llvmlite", "networkx", "numba", "perfetto", "rich", "scipy")
"""For a short run that no terminal shows."""

BENCH_NEEDS_NOT = (
    *NO_COMMAND_NEEDS,
    "ml_dtypes",
    "numpy.random",
    "subprocess",
    "ncc_runtime.calibration.measured_files",
    "ncc_runtime.commands.run",
    "ncc_runtime.execution.values.devices",
    "ncc_runtime.inputs",
    "ncc_runtime.report.summary",
    "ncc_runtime.verify.prove",
)
RUN_NEEDS_NOT = (
    *NO_COMMAND_NEEDS,
    "ncc_runtime.commands.bench",
    "ncc_runtime.faults.outcome",
    "ncc_runtime.jobs.job",
    "ncc_runtime.plans.files",
    "ncc_runtime.report.timeline.write",
    "ncc_runtime.verify.agreement",
)


COMPILE_NEEDS_NOT = (
    *NO_COMMAND_NEEDS,
    "jax",
    "ml_dtypes",
    "numpy.random",
    "subprocess",
    "ncc_compiler.frameworks",
    "ncc_compiler.frontends.jax_program",
    "ncc_compiler.frontends.pytorch",
    "ncc_compiler.pass_report",
    "ncc_compiler.reference",
    "ncc_runtime.neff.listing",
    "ncc_runtime.topology",
)


def loaded_by_a_command(
    arguments: list[str], names: tuple[str, ...], module: str = "ncc_runtime.cli"
) -> str:
    code = _PROBE.format(module=module, arguments=arguments, heavy=names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, status, *loaded = done.stdout.strip().splitlines()[-1].split()
    assert status == "0"
    return " ".join(loaded)


def test_a_bench_loads_no_proofs_no_values_and_no_reports_of_runs() -> None:
    bench = ["bench", "all_reduce", "-r", "2", "-b", "1MB", "-e", "1MB"]
    assert loaded_by_a_command(bench, BENCH_NEEDS_NOT) == "-"


def test_a_run_loads_no_other_command_no_faults_and_no_timelines(tmp_path: Path) -> None:
    path = tmp_path / "m.neff"
    text = "ENTRY m { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }"
    path.write_bytes(ncc_compiler.compile_text(text).data)
    assert loaded_by_a_command(["run", str(path), "--seed", "0"], RUN_NEEDS_NOT) == "-"


def test_compiling_a_text_loads_no_other_front_end_no_interpreter_and_no_topology(
    tmp_path: Path,
) -> None:
    model = Path(__file__).parents[1] / "ir_examples" / "distributed_mean.ir"
    compiling = ["compile", str(model), "-o", str(tmp_path / "m.neff")]
    assert loaded_by_a_command(compiling, COMPILE_NEEDS_NOT, "ncc_compiler.cli") == "-"


_BLAS_THREADS = "OPENBLAS_NUM_THREADS"

_THREADS = """
import os, sys
from ncc_runtime.entry import main
sys.argv[1:] = ["bench", "all_reduce", "-r", "2", "-b", "1MB", "-e", "1MB"]
main()
print(len(os.listdir("/proc/self/task")), os.environ["OPENBLAS_NUM_THREADS"])
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells of threads")
def test_openblas_starts_no_threads_that_nobody_uses() -> None:
    environment = {name: text for name, text in os.environ.items() if name != _BLAS_THREADS}
    command = [sys.executable, "-c", _THREADS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 1"


def test_a_number_of_threads_that_the_user_gave_to_openblas_stays() -> None:
    command = [sys.executable, "-c", _THREADS]
    environment = {**os.environ, _BLAS_THREADS: "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "3"
