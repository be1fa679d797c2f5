"""The documents say what is so: commands run as shown, cited paths and links exist, tables agree.

`pytest tests/test_docs.py --update-golden` rewrites outputs and pictures that have changed; read
the diff. `make docs` calls it with `--pictures`, so that its site shows pictures made just now.
"""

import difflib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.rules import FAMILIES
from ncc_runtime.collectives.algorithms import hierarchical
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import NccError
from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.machine_model.timing import CONSTANTS
from ncc_runtime.neff.check import STAGES
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import BufferKind
from ncc_runtime.topology.routes import Transport
from tests import documents
from tests.documents import DOCUMENTS, ROOT, Step

NOT_RUN = ("make", "pip", "git", ".")
"""First words of commands that set a machine up; all others are run."""

NEED_JAX = ("docs/jax.md", "docs/tutorials/plan_a_job.md")

CPU_S = 60
"""Seconds of a processor that a command may take; a page may wait longer on a busy machine."""

PACKAGES = ("ncc_compiler", "ncc_runtime")
BASES = (ROOT, ROOT / "ncc_compiler", ROOT / "ncc_runtime", ROOT / "docs")
SUFFIXES = (".py", ".md", ".toml", ".lark", ".ir", ".hlo")
BASH = shutil.which("bash") or "bash"


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)

LONG = (
    "docs/collectives.md",
    "docs/faults.md",
    "docs/outputs.md",
    "docs/sweeps.md",
    "docs/topology.md",
    "docs/tutorials/own_algorithm.md",
)
"""Pages whose commands take more than five seconds; `make docs` runs all, too."""

PARTS = ("benchmarks", "ir_examples", "tests")
"""Folders of the repository that commands of the documents use."""

NOT_PICTURES_OF_PAGES = ("models.svg", "report.png", "report-timeline.png")
"""Drawn by commands that take hours, the page says which, or by a browser (`make pictures`)."""


def marks_of(page: Path) -> Sequence[pytest.MarkDecorator]:
    names = {NEED_JAX: pytest.mark.oracle, LONG: pytest.mark.slow}
    return [mark for pages, mark in names.items() if name_of(page) in pages]


every_page = pytest.mark.parametrize(
    "document", [pytest.param(page, marks=marks_of(page)) for page in DOCUMENTS], ids=name_of
)


def performed(steps: Sequence[Step], where: Path, notes: Path) -> Iterator[tuple[int, str]]:
    """Exit code and output of every step, all of them in one shell."""
    script = [f"ulimit -t {CPU_S}", f"cd '{where}'"]
    for number, step in enumerate(steps):
        base = notes / str(number)
        base.with_suffix(".in").write_text(step.text)
        action = f"cp '{base}.in' '{step.name}'" if step.name else f". '{base}.in'"
        script.append(f"{action} > '{base}.out' 2>&1\necho $? > '{base}.code'")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    matplotlib = notes / "matplotlibrc"
    matplotlib.write_text("svg.hashsalt: docs\n")  # ids in pictures are the same each time
    environment = {
        **os.environ,
        "PATH": path,
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "80",
        "MATPLOTLIBRC": str(matplotlib),
    }
    subprocess.run(
        [BASH], input="\n".join(script), text=True, env=environment, check=True, timeout=1200
    )
    for number in range(len(steps)):
        base = notes / str(number)
        lines = base.with_suffix(".out").read_text().splitlines(keepends=True)
        output = "".join(line for line in lines if not line.startswith("progress: "))  # if busy
        yield int(base.with_suffix(".code").read_text()), output


@every_page
def test_commands_do_what_the_document_shows(
    document: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name_of(document) in NEED_JAX and importlib.util.find_spec("jax") is None:
        pytest.skip("needs the extra jax")
    text = document.read_text()
    steps = [step for step in documents.steps(text) if step.text.split()[0] not in NOT_RUN]
    where, notes = tmp_path / "repo", tmp_path / "notes"
    notes.mkdir()
    for part in PARTS:
        shutil.copytree(ROOT / part, where / part, ignore=shutil.ignore_patterns("__pycache__"))
    results = list(performed(steps, where, notes)) if steps else []
    for step, (code, output) in zip(steps, results, strict=True):
        assert code == step.exit_code, f"$ {step.text}\n{output}"
    is_updated = request.config.getoption("--update-golden")
    for picture in pictures(document):
        made = where / picture.name
        if made.exists() and (is_updated or request.config.getoption("--pictures")):
            picture.write_bytes(made.read_bytes())
        elif made.exists():
            assert is_alike(picture.read_text(), made.read_text()), picture
    if is_updated:
        document.write_text(updated(text, steps, [output for _, output in results]))
        return
    for step, (_, output) in zip(steps, results, strict=True):
        difference = difflib.ndiff(step.output, output.splitlines())
        shown = step.name or documents.is_shown(step.output, output)
        assert shown, f"$ {step.text}\n" + "\n".join(difference)


def pictures(document: Path) -> list[Path]:
    """Pictures that a document shows."""
    links = documents.links(document.read_text())
    return [(document.parent / link).resolve() for link in links if link.endswith((".svg", ".png"))]


def is_alike(one: str, other: str) -> bool:
    """Whether two SVGs show the same. What other versions of matplotlib drew is not compared."""
    drawers = [re.findall(r"Matplotlib v[\d.]+", text) for text in (one, other)]
    plain = [re.sub(r"\b[mp][0-9a-f]{10}\b", "", text) for text in (one, other)]  # ids are hashes
    places = [np.array(re.findall(r"-?\d+\.\d+", text), float) for text in plain]
    words = [re.sub(r"-?\d+\.\d+", "", text) for text in plain]
    is_same = words[0] == words[1] and np.allclose(*places, rtol=0, atol=0.01)
    return drawers[0] != drawers[1] or is_same


def test_pictures_are_compared_up_to_rounding_and_versions_of_matplotlib() -> None:
    shown = '<use x="1.25" clip="#p0123456789"/>rank 3'
    assert is_alike(shown, shown.replace("1.25", "1.2501").replace("#p01", "#p98"))
    assert not is_alike(shown, shown.replace("1.25", "1.35"))
    assert not is_alike(shown, shown.replace("rank 3", "rank 4"))
    assert is_alike(f"{shown}Matplotlib v3.9.0", "Matplotlib v3.10.0")


def test_every_picture_is_shown_and_made_by_a_command_of_a_page() -> None:
    there = set((ROOT / "docs" / "images").iterdir())
    assert {picture for page in DOCUMENTS for picture in pictures(page)} == there
    commands = "\n".join(
        step.text for page in DOCUMENTS for step in documents.steps(page.read_text())
    )
    made = {picture.name for picture in there if picture.name in commands}
    assert {picture.name for picture in there} - made == set(NOT_PICTURES_OF_PAGES)


def test_every_page_has_a_place_in_the_contents_of_the_site() -> None:
    docs = ROOT / "docs"
    contents = [
        line
        for block in documents.blocks((docs / "index.md").read_text())
        if block.directive == "toctree"
        for line in block.lines
        if line and not line.startswith(":")
    ]
    pages = [str(page.relative_to(docs).with_suffix("")) for page in documents.PAGES]
    missing = set(pages) - {"index", *contents}
    assert not missing, f"name these in a toctree of docs/index.md: {sorted(missing)}"
    assert sorted(["index", *contents]) == sorted(pages), "docs/index.md: gone, or named twice"


def updated(text: str, steps: Sequence[Step], outputs: Sequence[str]) -> str:
    lines = text.split("\n")
    for step, output in reversed(list(zip(steps, outputs, strict=True))):
        if not step.name and not documents.is_shown(step.output, output):
            end = step.first + len(step.output)
            lines[step.first : end] = documents.with_elisions(step.output, output)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("shown", "actual", "same"),
    [
        (("a", "b"), "a\nb\n", True),
        (("a", "b"), "a\nc\n", False),
        (("a",), "a\nb\n", False),
        (("a", "…"), "a\nb\nc\n", True),
        (("a", "…", "c"), "a\nb\n", False),
        (("host time … s",), "host time 0.042 s\n", True),
        (("host time … s",), "guest time 0.042 s\n", False),
        ((), "", True),
    ],
)
def test_shown_output_is_compared_line_by_line_with_elisions(
    shown: tuple[str, ...], actual: str, same: bool
) -> None:
    assert documents.is_shown(shown, actual) is same


@pytest.mark.parametrize(
    ("shown", "actual", "updated"),
    [
        (("a", "…"), "a\nb\nc\n", ["a", "…"]),
        (("…", "c"), "a\nb\nc\n", ["…", "c"]),
        (("id  us", "p0   1.5", "…", "end"), "id  us\np0  12.5\np1  1.0\np2  1\nend\n", None),
        (("a", "…", "c", "…", "e 5 s"), "a\nb\nc\nd\nnew\ne 61 s\n", None),
        (("a", "…", "c"), "a\nb\nd\n", ["a", "b", "d"]),
        (("a", "…", "c", "…"), "b\nc\nd\n", ["b", "c", "…"]),
        (("a 1 s", "…", "host … s"), "a 2 s\nb\nhost 0.1 s\n", ["a 2 s", "…", "host … s"]),
    ],
)
def test_updated_outputs_keep_elisions_that_still_fit(
    shown: tuple[str, ...], actual: str, updated: list[str] | None
) -> None:
    new = documents.with_elisions(shown, actual)
    assert documents.is_shown(tuple(new), actual)
    if updated is None:  # elided as before
        assert [line for line in new if line == "…"] == [line for line in shown if line == "…"]
        assert len(new) == len(shown)
    else:
        assert new == updated


def test_a_command_may_expect_an_exit_code_and_go_over_two_lines() -> None:
    text = "```console\n$ false \\\n  it\n# exit 1\nout\n$ true\n```\n"
    first, second = documents.steps(text)
    assert first == Step("false \\\n  it", 1, ("out",), 4)
    assert second == Step("true", 0, (), 6)


@every_document
def test_cited_paths_exist(document: Path) -> None:
    text = document.read_text()
    made = {step.name for step in documents.steps(text)}
    paths = {span for span in documents.code_spans(text) if is_path(span)} - made
    folders = [ROOT / path for path in paths if (ROOT / path).is_dir()]  # "`neff/`: `isa.py`, …"
    bases = [*BASES, *folders]
    assert [path for path in paths if not any(any(base.glob(path)) for base in bases)] == []


def is_path(span: str) -> bool:
    is_module = "/" not in span and (ROOT / span.replace(".", "/")).is_dir()
    if is_module or not re.fullmatch(r"[\w.*/-]*\w[\w.*/-]*", span) or span in SUFFIXES:
        return False
    first = span.split("/")[0]
    return span.endswith(SUFFIXES) or ("/" in span and first != "" and (ROOT / first).is_dir())


@pytest.mark.parametrize(
    ("span", "path"),
    [
        ("docs/absent.md", True),
        ("execution/absent.py", True),
        ("ncc_runtime/absent/", True),
        (".ir", False),
        ("min/max", False),
        ("m.neff", False),
        ("c0.E>c1", False),
        ("ncc_compiler.ir", False),
    ],
)
def test_what_counts_as_a_cited_path(span: str, path: bool) -> None:
    assert is_path(span) is path


@every_document
def test_links_lead_somewhere(document: Path) -> None:
    wrong = []
    for link in documents.links(document.read_text()):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in documents.anchors(target.read_text())):
            wrong.append(link)
    assert wrong == []


def documented_rules(*names: str) -> list[str]:
    """Ids that a document states a rule for: before the colon of a list item, in a first cell."""
    text = "\n".join(documents.prose((ROOT / "docs" / name).read_text()) for name in names)
    heads = re.findall(r"(?m)^(?:- [^:\n]+:|\| [^|\n]+\|)", text)
    return [rule for head in heads for rule in re.findall(r"[a-z][a-z0-9_.-]*-[A-Z]\d+", head)]


def rules_in_source(package: str, pattern: str) -> set[str]:
    """Ids that the code reports and that stand in no table of rules."""
    files = (ROOT / package).rglob("*.py")
    return {found for file in files for found in re.findall(f'"({pattern})"', file.read_text())}


def test_every_rule_of_the_compiler_is_documented_once() -> None:
    tables = {**FAMILIES, **{op.name: op.rules for op in OPS.values()}}
    rules = {f"{name}-C{k + 1}" for name, rows in tables.items() for k in range(len(rows))}
    rules |= rules_in_source("ncc_compiler", r"[a-z][a-z-]*-C\d+")
    assert sorted(documented_rules("ir.md", "architecture.md")) == sorted(rules)


def test_every_rule_of_a_program_is_documented_once() -> None:
    rules = {rule.id for stage in STAGES for rule in stage}
    assert rules_in_source("ncc_runtime", r"neff-[A-Z]\d+") == rules
    assert sorted(documented_rules("neff.md")) == sorted(rules)


def test_the_file_map_names_every_folder_with_files_that_are_there() -> None:
    """A folder of `verify/` is a proof, and stands for itself."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = documents.cells(documents.section(text, "File map"))
    named: set[str] = set()
    for first, what, begin, *_ in (row for row in rows if len(row) == 3):
        folders = [ROOT / folder for folder in documents.code_spans(first)]
        named |= {str(folder.relative_to(ROOT)) for folder in folders}
        inner = {span for span in documents.code_spans(what) if span.endswith("/")}
        named |= {
            f"{folder.relative_to(ROOT)}/{one}".rstrip("/") for folder in folders for one in inner
        }
        for name in documents.code_spans(begin):
            assert any((folder / name).is_file() for folder in folders), name
    there = {
        str(path.parent.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "verify" not in path.parent.parts[:-1]
    }
    assert there <= named


def test_every_time_constant_is_in_the_timing_document() -> None:
    text = (ROOT / "docs" / "timing.md").read_text()
    rows = {cells[0].strip("`"): cells[1:] for cells in documents.cells(text)}
    for name, figure in CONSTANTS.items():
        value, source, *_ = rows[name]
        assert value.replace(",", "") == str(figure.value), name
        assert source == figure.source, name


def test_every_algorithm_is_in_the_collectives_document() -> None:
    text = (ROOT / "docs" / "collectives.md").read_text()
    rows = {(row[0].strip("`"), row[1].strip("`")) for row in documents.cells(text)}
    pairs = {pair.name for pair in hierarchical.PAIRS}  # one row for all of them

    def row(name: str) -> str:
        if name.startswith("rank-order."):
            return f"rank-order.{'hier.A.B' if '.hier.' in name else 'A'}"
        return "hier.A.B" if name in pairs else name

    known = {(op.value, row(name)) for op, names in ALGORITHMS.items() for name in names}
    assert known <= rows


def test_the_index_of_decisions_names_each_once() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text()
    index = documents.section(text, "By subject")
    headings = re.findall(r"^## (\d+)\. ", text, re.MULTILINE)
    assert sorted(re.findall(r"\[(\d+)\]", index)) == sorted(headings)


def test_the_glossary_has_the_words_of_listings_and_reports() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    spans = set(documents.code_spans(text))
    enums = (Transport, CollectiveOp, Engine, BufferKind)
    words = {member.value for words in enums for member in words}
    words |= {member.name.lower() for words in (CcOpcode, DmaOpcode) for member in words}
    assert words - spans == set()


def test_words_that_are_ours_are_words_of_the_code() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    ours = {
        row[0].strip("`*").split()[0] for row in documents.cells(text) if row[1].endswith("Ours.")
    }
    code = [path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    named = {word.lower() for file in code for word in re.findall(r"[A-Z]?[a-z]+", file)}
    assert {word.rstrip("s") for word in ours} - {word.rstrip("s") for word in named} == set()


def test_the_glossary_is_in_alphabetical_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    words = [row[0].strip("`*").lower() for row in documents.cells(text)]
    assert words == sorted(words)


def test_errors_are_named_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert {kind.__name__ for kind in NccError.__subclasses__()} <= set(documents.code_spans(text))
