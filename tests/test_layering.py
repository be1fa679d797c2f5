"""The architecture as a table: who may import whom, checked on every file.

A row allows a module, or all modules of a package, to import what stands behind it. The longest
matching prefix counts on both sides; modules of one row may import one another, but not in circles.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ncc_compiler", "ncc_runtime")

NEFF = "ncc_runtime.neff"
TABLES = {"ncc_runtime.neff.shared"}  # one of each for both packages
ERRORS = "ncc_runtime.errors"
FILES = "ncc_runtime.input_files"
MACHINE = "ncc_runtime.machine_model"
PROGRESS = "ncc_runtime.progress"
CACHE = "ncc_runtime.user_cache"
MACHINE_CODE = "ncc_runtime.machine_code"
ARRAYS = "ncc_runtime.arrays"  # what numpy has too slowly
ORDER = "ncc_runtime.order"  # for who proves, never for who lowers or runs

RANKED = "ncc_runtime.ranked_array"
PROCESSES = "ncc_runtime.processes"

MAY_IMPORT: dict[str, set[str]] = {
    # the contract
    "ncc_runtime.errors": set(),
    "ncc_runtime.input_files": set(),
    PROGRESS: set(),
    ARRAYS: set(),
    RANKED: set(),
    CACHE: set(),
    "ncc_runtime.record_code": {CACHE},
    "ncc_runtime.progress_bar": {PROGRESS},
    MACHINE_CODE: {PROGRESS, CACHE},
    "ncc_runtime.command_line": {ERRORS, PROGRESS, "ncc_runtime.progress_bar"},  # of both commands
    "ncc_runtime.host_limits": set(),
    "ncc_runtime.threads": set(),
    "ncc_runtime.launcher": set(),
    PROCESSES: {ERRORS, "ncc_runtime.launcher"},
    "ncc_runtime.options": {ERRORS, "ncc_runtime.host_limits"},
    ORDER: set(),
    "ncc_runtime.neff": {ARRAYS, ERRORS, FILES, ORDER},
    # the runtime, which knows the topology but no compiler
    "ncc_runtime.topology": {ERRORS, FILES},
    "ncc_runtime.placement": {ERRORS, FILES, "ncc_runtime.topology"},
    "ncc_runtime.group_rules": {
        ERRORS,
        NEFF,
        "ncc_runtime.placement",
        "ncc_runtime.topology",
    },
    MACHINE: {ERRORS, NEFF, "ncc_runtime.placement", "ncc_runtime.topology"},
    "ncc_runtime.collectives": {
        ARRAYS,
        PROGRESS,
        ERRORS,
        "ncc_runtime.group_rules",
        "ncc_runtime.host_limits",
        "ncc_runtime.options",
        NEFF,
        "ncc_runtime.topology",
        MACHINE,
        "ncc_runtime.placement",
    },
    "ncc_runtime.plans": {ERRORS, FILES, NEFF, ORDER, "ncc_runtime.collectives"},  # of no topology
    "ncc_runtime.lowering.cc_isa": {NEFF},
    "ncc_runtime.lowering.channels": {ERRORS, "ncc_runtime.lowering.cc_isa"},
    "ncc_runtime.lowering.executable": {
        ERRORS,
        NEFF,
        "ncc_runtime.lowering.cc_isa",
        "ncc_runtime.lowering.channels",
        "ncc_runtime.options",
        "ncc_runtime.placement",
        "ncc_runtime.topology",
    },
    "ncc_runtime.lowering": {
        ARRAYS,
        PROGRESS,
        ERRORS,
        NEFF,
        "ncc_runtime.collectives",
        "ncc_runtime.lowering.cc_isa",
        "ncc_runtime.lowering.channels",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.options",
        MACHINE,
        "ncc_runtime.placement",
        "ncc_runtime.plans",
        "ncc_runtime.topology",
    },
    "ncc_runtime.verify.proof": set(),
    "ncc_runtime.verify": {  # plans and executables are data; how they were made is not its to see
        ARRAYS,
        PROGRESS,
        ERRORS,
        NEFF,
        ORDER,
        "ncc_runtime.collectives.plan",
        "ncc_runtime.lowering.cc_isa",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.placement",
        "ncc_runtime.topology",
        "ncc_runtime.verify.proof",
    },
    "ncc_runtime.execution": {
        MACHINE_CODE,
        PROGRESS,
        RANKED,
        CACHE,
        ERRORS,
        NEFF,
        PROCESSES,
        "ncc_runtime.threads",
        "ncc_runtime.lowering",
        "ncc_runtime.lowering.cc_isa",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.options",
        MACHINE,
        "ncc_runtime.placement",
        "ncc_runtime.topology",
    },
    "ncc_runtime.array_files": {ERRORS, FILES, NEFF, RANKED},
    "ncc_runtime.random_values": {NEFF, "ncc_runtime.threads"},
    "ncc_runtime.inputs": {
        ERRORS,
        NEFF,
        RANKED,
        "ncc_runtime.array_files",
        "ncc_runtime.random_values",
        "ncc_runtime.threads",
    },
    "ncc_runtime.own_inputs": {
        NEFF,
        PROCESSES,
        RANKED,
        "ncc_runtime.array_files",
        "ncc_runtime.inputs",
        "ncc_runtime.random_values",
        "ncc_runtime.threads",
    },
    "ncc_runtime.sharded_arrays": {
        ERRORS,
        FILES,
        NEFF,
        PROCESSES,
        RANKED,
        "ncc_runtime.array_files",
    },
    "ncc_runtime.call_signature": {
        ERRORS,
        NEFF,
        RANKED,
        "ncc_runtime.inputs",
        "ncc_runtime.options",
    },
    "ncc_runtime.step_inputs": {
        ERRORS,
        NEFF,
        RANKED,
        "ncc_runtime.array_files",
        "ncc_runtime.inputs",
        "ncc_runtime.threads",
    },
    "ncc_runtime.random_counts": {ERRORS, NEFF, "ncc_runtime.execution", "ncc_runtime.inputs"},
    "ncc_runtime.host_memory": {
        ERRORS,
        NEFF,
        "ncc_runtime.host_limits",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.options",
    },
    "ncc_runtime.words": {ERRORS},
    "ncc_runtime.worker_processes": {ERRORS, PROGRESS, "ncc_runtime.host_limits"},
    "ncc_runtime.report": {
        PROGRESS,
        RANKED,
        ERRORS,
        NEFF,
        "ncc_runtime.collectives",
        "ncc_runtime.execution",
        "ncc_runtime.group_rules",
        "ncc_runtime.host_memory",
        "ncc_runtime.lowering",
        "ncc_runtime.lowering.cc_isa",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.options",
        MACHINE,
        "ncc_runtime.placement",
        "ncc_runtime.plans",
        "ncc_runtime.topology",
        "ncc_runtime.verify.proof",
        "ncc_runtime.words",
    },
    "ncc_runtime.faults": {
        PROGRESS,
        RANKED,
        ERRORS,
        FILES,
        NEFF,
        "ncc_runtime.execution",
        "ncc_runtime.host_memory",
        "ncc_runtime.lowering",
        "ncc_runtime.lowering.cc_isa",
        "ncc_runtime.lowering.executable",
        MACHINE,
        "ncc_runtime.options",
        "ncc_runtime.placement",
        "ncc_runtime.report",
        "ncc_runtime.topology",
        "ncc_runtime.verify",
        "ncc_runtime.worker_processes",
    },
    "ncc_runtime.calibration": {
        PROGRESS,
        ERRORS,
        FILES,
        NEFF,
        "ncc_runtime.collectives",
        "ncc_runtime.execution",
        "ncc_runtime.lowering",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.machine_model",
        "ncc_runtime.placement",
        "ncc_runtime.report",
        "ncc_runtime.runtime",
        "ncc_runtime.topology",
    },
    "ncc_runtime.bits": {
        ERRORS,
        NEFF,
        ORDER,
        "ncc_runtime.execution",
        "ncc_runtime.lowering.cc_isa",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.verify",
    },
    "ncc_runtime.pure_collectives": {
        "ncc_runtime.bits",
        "ncc_runtime.execution",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.verify",
    },
    "ncc_runtime.value_run": {
        "ncc_runtime.execution",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.pure_collectives",
    },
    "ncc_runtime.plans_proved": {
        ERRORS,
        "ncc_runtime.bits",
        "ncc_runtime.collectives",
        "ncc_runtime.lowering",
        "ncc_runtime.lowering.executable",
        "ncc_runtime.plans",
        "ncc_runtime.verify",
        "ncc_runtime.verify.proof",
    },
    "ncc_runtime.pipeline": {ERRORS, NEFF, "ncc_runtime.verify"},
    "ncc_runtime.runtime": {"ncc_runtime"},
    "ncc_runtime.jobs": {"ncc_runtime"},
    "ncc_runtime.sweep": {"ncc_runtime"},
    "ncc_runtime.commands": {"ncc_runtime"},
    "ncc_runtime.cli": {"ncc_runtime"},
    "ncc_runtime.entry": {"ncc_runtime"},
    "ncc_runtime.__init__": {"ncc_runtime"},
    # the compiler, which knows the contract but no topology
    "ncc_compiler.diagnostics": set(),
    "ncc_compiler.options": set(),
    "ncc_compiler.syntax": {"ncc_compiler.diagnostics", CACHE, *TABLES},
    "ncc_compiler.ir": {"ncc_compiler.diagnostics", "ncc_compiler.syntax", FILES, *TABLES},
    "ncc_compiler.frontends": {
        "ncc_compiler.diagnostics",
        "ncc_compiler.ir",
        FILES,
        PROGRESS,
        *TABLES,
    },
    "ncc_compiler.reference": {"ncc_compiler.diagnostics", "ncc_compiler.ir", *TABLES},
    "ncc_compiler.passes": {
        PROGRESS,
        "ncc_compiler.diagnostics",
        "ncc_compiler.ir",
        "ncc_compiler.options",
        *TABLES,
    },
    "ncc_compiler.passes.partial_all_reduce": {
        "ncc_compiler.diagnostics",
        "ncc_compiler.ir",
        "ncc_compiler.options",
        "ncc_compiler.passes.manager",
        "ncc_compiler.passes.rebuild",
        "ncc_compiler.codegen.leaves",  # which outputs an array reaches
        *TABLES,
    },
    # what an operation costs and where it runs decides what hides behind it
    "ncc_compiler.overlap": {
        "ncc_compiler.diagnostics",
        "ncc_compiler.ir",
        "ncc_compiler.options",
        "ncc_compiler.passes.fold_constants",
        "ncc_compiler.passes.manager",
        "ncc_compiler.passes.rebuild",
        "ncc_compiler.codegen.costs",
        "ncc_compiler.codegen.generate",
        "ncc_compiler.codegen.leaves",
        "ncc_compiler.codegen.select",
        "ncc_compiler.codegen.trip_count",
        *TABLES,
        "ncc_runtime.neff.isa",
        "ncc_runtime.neff.work.work",  # what SBUF and DMA are like
    },
    "ncc_compiler.pipelines": {
        "ncc_compiler.options",
        "ncc_compiler.passes",
        "ncc_compiler.passes.partial_all_reduce",
        "ncc_compiler.overlap",
    },
    "ncc_compiler.releases": {
        "ncc_compiler.ir",
        "ncc_compiler.options",
        "ncc_runtime.neff.work.work",  # the size of SBUF
    },
    "ncc_compiler.codegen": {
        "ncc_compiler.diagnostics",
        "ncc_compiler.ir",
        "ncc_compiler.options",
        NEFF,
    },
    "ncc_compiler.pass_report": {"ncc_compiler.ir", NEFF, ERRORS},
    "ncc_compiler.driver": {"ncc_compiler", NEFF, FILES, PROGRESS},
    "ncc_compiler.frameworks": {"ncc_compiler"},
    "ncc_compiler.refusals": {"ncc_compiler.diagnostics", "ncc_runtime.command_line"},
    "ncc_compiler.cli": {
        "ncc_compiler",
        NEFF,
        ERRORS,
        FILES,
        "ncc_runtime.command_line",
        "ncc_runtime.words",
    },
    "ncc_compiler.entry": {"ncc_compiler", "ncc_runtime.entry"},
    "ncc_compiler.__init__": {"ncc_compiler"},
}

SHOWN_BY = {  # what users hold shows itself: its methods import the report, when they are called
    "ncc_runtime.report.run": {"ncc_runtime.report.summary", "ncc_runtime.report.page.page"},
    "ncc_runtime.topology.graph": {
        "ncc_runtime.report.topology.svg",
        "ncc_runtime.report.topology.text",
    },
}

HOMES = {  # third-party packages that one place of ours wraps
    "jaxlib": "ncc_compiler.frontends",
    "torch": "ncc_compiler.frontends.pytorch",
    "torch_xla": "ncc_compiler.frontends.pytorch",
    "lark": "ncc_compiler.syntax ncc_runtime.faults.text",
    "jsonschema": "ncc_runtime.topology.format.schema",
    "tree_sitter": "ncc_runtime.topology.format.toml_file",
    "msgspec": "ncc_runtime.neff.document ncc_runtime.plans.document ncc_runtime.sweep.store",
    "joblib": "ncc_runtime.sweep.workers",
    "distributed": "ncc_runtime.sweep.workers",
    "matplotlib": "ncc_runtime.report.plot_file",
    "platformdirs": "ncc_runtime.user_cache",
    "perfetto": "ncc_runtime.report.timeline.perfetto_file",
    "google": "ncc_runtime.neff.shared.chakra ncc_compiler.frontends.chakra.files",
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def is_shown_by(importer: str, imported: str) -> bool:
    return any(is_under(imported, report) for report in SHOWN_BY.get(importer, ()))


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Full names of what a file imports, wherever the import stands."""
    return tuple(imports_of(ast.parse(path.read_text())))


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", SHOWN_BY)
def test_reports_are_imported_inside_of_methods(name: str) -> None:
    """Inside of functions there is no circle when a module is loaded."""
    tree = ast.parse(dict(modules())[name].read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = [each for function in functions for each in imports_of(function)]
    everywhere = [each for each in imports_of(tree) if is_shown_by(name, each)]
    assert everywhere
    assert set(everywhere) <= set(inside)
    assert len(everywhere) == sum(is_shown_by(name, each) for each in inside)


def is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def row_of(name: str) -> str | None:
    """The row that speaks for a module: its longest prefix in the table."""
    return max((row for row in MAY_IMPORT if is_under(name, row)), key=len, default=None)


def is_allowed(importer: str, imported: str) -> bool:
    own, target = row_of(importer), row_of(imported)
    if own is None:
        return False
    whole = {name for name in MAY_IMPORT[own] if "." not in name}  # a package with all its rows
    return (
        target == own
        or any(is_under(imported, name) for name in whole)
        or any(is_under(imported, name) for name in MAY_IMPORT[own] if row_of(name) == target)
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_table(package: str) -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules()
        for imported in imports(path)
        if name.startswith(package) and imported.startswith(PACKAGES)
        if not is_allowed(name, imported) and not is_shown_by(name, imported)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("ncc_runtime.neff.check", "ncc_runtime.neff.program.Program", True),
        ("ncc_compiler.codegen.generate", "ncc_runtime.neff.table.Instr", True),
        ("ncc_compiler.ir.graph", "ncc_runtime.neff.shared.groups.Groups", True),
        ("ncc_compiler.ir.graph", "ncc_runtime.neff.program.Program", False),
        ("ncc_compiler.codegen.generate", "ncc_runtime.topology.graph.Graph", False),
        ("ncc_compiler.cli", "ncc_runtime.placement", False),
        ("ncc_runtime.neff.check", "ncc_compiler.ir.graph", False),
        ("ncc_runtime.cli", "ncc_compiler.driver", False),
        ("ncc_runtime.verify.races", "ncc_runtime.lowering.executable.Executable", True),
        ("ncc_runtime.verify.races", "ncc_runtime.lowering.stream", False),
        ("ncc_runtime.lowering.executable", "ncc_runtime.lowering.lower", False),
        ("ncc_runtime.unheard_of", "ncc_runtime.errors", False),
    ],
)
def test_the_table_says_what_the_architecture_says(
    importer: str, imported: str, allowed: bool
) -> None:
    assert is_allowed(importer, imported) is allowed


@functools.cache
def arrows() -> networkx.DiGraph:
    """Which module imports which."""
    paths = dict(modules())
    found = networkx.DiGraph()
    for name, path in paths.items():
        for imported in imports(path):
            ends = (imported, imported.rpartition(".")[0])
            target = next((end for end in ends if end in paths), "")
            if target and not is_shown_by(name, imported):
                found.add_edge(name, target)
    return found


def test_modules_do_not_import_one_another_in_circles() -> None:
    assert list(networkx.simple_cycles(arrows())) == []


FOLDERS = sorted({path.parent.relative_to(ROOT) for _, path in modules()})


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_rooms_of_a_folder_do_not_import_one_another_in_circles(folder: Path) -> None:
    """A room is a file of the folder, or a folder inside it as a whole."""
    prefix = ".".join(folder.parts) + "."
    rooms = networkx.DiGraph()
    for importer, imported in arrows().edges:
        if importer.startswith(prefix) and imported.startswith(prefix):
            first, second = (
                name.removeprefix(prefix).split(".")[0] for name in (importer, imported)
            )
            if first != second:
                rooms.add_edge(first, second)
    assert list(networkx.simple_cycles(rooms)) == []


@pytest.mark.parametrize(("wrapped", "home"), HOMES.items())
def test_a_wrapped_library_is_imported_in_one_place(wrapped: str, home: str) -> None:
    users = {
        name
        for name, path in modules()
        if any(is_under(imported, wrapped) for imported in imports(path))
    }
    assert users
    homes = home.split()
    assert {name for name in users if not any(is_under(name, one) for one in homes)} == set()


COINED = {
    "agent": "proxy rank",
    "course": "forwarding schedule",
    "crew": "proxy ranks",
    "door": "ingress rank",
    "epoch": "run, clock snapshot",
    "parting": "divergence",
    "sketched": "estimated",
    "stretch": "region, live range, phase, interval, tile",
    "twin": "matched block",
    "wires": "link graph",
}
"""Words that were ours, and what the field says."""


def definitions() -> Iterator[tuple[str, str, bool]]:
    """Every name that is defined: module, name, whether it is a class."""
    for module, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield module, node.name, True
            elif isinstance(node, ast.FunctionDef):
                yield module, node.name, False
            elif isinstance(node, ast.arg):
                yield module, node.arg, False
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield module, node.id, False


def test_names_are_the_fields_words() -> None:
    coined = [
        f"{module}: {name}: {COINED[word]}"
        for module, name, _ in definitions()
        for word in re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
        if word in COINED
    ]
    assert coined == []


def test_a_class_name_is_used_once() -> None:
    homes: dict[str, list[str]] = {}
    for module, name, is_class in definitions():
        if is_class:
            homes.setdefault(name, []).append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
