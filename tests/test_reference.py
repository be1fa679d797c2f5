"""References say what the code says: commands, pages of man, public names of Python."""

import inspect
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import attrs
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.report.collectives import CollectiveRow
from ncc_runtime.report.explain import Explanation
from ncc_runtime.report.listing import Listing
from ncc_runtime.report.topology.text import ListedTopology
from tests.documents import ROOT
from tools import reference

FILES = reference.files()
MANUAL = ROOT / "docs" / "man"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_generated_file_is_up_to_date(path: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(FILES[path])
    assert path.exists(), "run `make reference`"
    assert path.read_text() == FILES[path], "run `make reference`"


def test_there_are_no_pages_of_commands_that_are_gone() -> None:
    assert sorted(MANUAL.glob("*")) == sorted(path for path in FILES if path.parent == MANUAL)


@pytest.mark.parametrize("path", [path for path in FILES if path.parent == MANUAL], ids=name_of)
def test_man_takes_a_page_without_complaint(path: Path) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        [groff, "-man", "-ww", "-Tutf8", str(path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "EXAMPLES" in re.sub(".\b", "", done.stdout)  # bold is printed twice


packages = pytest.mark.parametrize(
    "package", [ncc_compiler, ncc_runtime], ids=lambda each: each.__name__
)


@packages
def test_the_reference_has_every_public_name_once(package: ModuleType) -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    named = re.findall(rf"(?m)^\.\. \w+:: {package.__name__}\.(\w+)$", text)
    assert sorted(set(named) - {"errors"}) == sorted(package.__all__)
    assert len(named) == len(set(named))


@packages
def test_public_names_and_their_methods_have_docstrings(package: ModuleType) -> None:
    silent = []
    for name in package.__all__:
        public = getattr(package, name)
        if name == "__version__":
            continue
        members = vars(public).items() if inspect.isclass(public) else ()
        documented = {name: public, **{f"{name}.{key}": value for key, value in members}}
        silent += [
            place
            for place, value in documented.items()
            if not place.rpartition(".")[2].startswith("_")
            and (inspect.isfunction(value) or isinstance(value, property | classmethod | type))
            and not inspect.getdoc(value)
        ]
    assert silent == []


@pytest.mark.parametrize(
    "described",
    [
        ncc_compiler.CompileOptions,
        ncc_runtime.Run,
        ncc_runtime.RunOptions,
        CollectiveRow,
        Listing,
        ListedTopology,
    ],
)
def test_a_class_says_what_each_of_its_fields_is(described: type) -> None:
    text = inspect.getdoc(described) or ""
    own = {"assemble", "executable", "verdicts"}  # as the runtime keeps them
    fields = {field.name for field in attrs.fields(described)} - own
    assert {name for name in fields if f"`{name}`" not in text} == set()
    assert inspect.getdoc(Explanation)


def test_text_is_escaped_for_man_and_for_markdown() -> None:
    assert reference.roff(".a-b\\c…") == "\\&.a\\-b\\ec..."
    assert reference.escaped("a|b*") == "a\\|b\\*"
