"""What Python users hold: public names, and objects that show themselves as the commands do."""

import base64
import importlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError, PlacementError, TopologyError
from ncc_runtime.report.html import MOST_ROWS, table
from ncc_runtime.report.topology import svg
from ncc_runtime.topology.format.spec import preset_names
from tests.documents import ROOT

MEAN = ROOT / "ir_examples" / "distributed_mean.ir"


@pytest.fixture(scope="module")
def neff() -> ncc_compiler.Neff:
    return ncc_compiler.compile_file(MEAN)


@pytest.fixture(scope="module")
def model(neff: ncc_compiler.Neff) -> ncc_runtime.Model:
    return ncc_runtime.load(neff, topology="trn2", nodes=2)


@pytest.mark.parametrize("name", ["ncc_compiler", "ncc_runtime"])
def test_dir_names_what_is_public_and_all_of_it_is_there(name: str) -> None:
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    for public in package.__all__:
        assert getattr(package, public), public
    with pytest.raises(AttributeError, match="walk"):
        _ = package.walk


@pytest.mark.parametrize("name", ["ncc_compiler", "ncc_runtime"])
def test_help_shows_public_names_and_the_version_is_that_of_the_distribution(name: str) -> None:
    code = f"import {name}; help({name}); print('VERSION', {name}.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = importlib.import_module(name)
    assert all(name in done.stdout for name in package.__all__ if name != "__version__")
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"VERSION {version[1]}\n" in done.stdout


def test_what_users_can_mend_is_one_of_two_exceptions(neff: ncc_compiler.Neff) -> None:
    with pytest.raises(ncc_compiler.CompileError, match="walk"):
        ncc_compiler.compile_text("ENTRY e { ROOT x = f32[4] walk() }")
    with pytest.raises(ncc_runtime.NccError, match="trn9"):
        ncc_runtime.load(neff, topology="trn9")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def without_seconds(text: str) -> str:
    return re.sub(r"\d+\.\d+ s$", "… s", text, flags=re.MULTILINE)


def test_objects_print_and_give_what_the_commands_do(
    neff: ncc_compiler.Neff,
    model: ncc_runtime.Model,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(tmp_path / "mean.neff")
    neff.save(file)
    shown = {
        "explain": (model.explain(), ()),
        "list": (model.list(3, "cc0.dma0"), ("--rank", "3", "--queue", "cc0.dma0")),
        "verify": (model.verify(), ()),
        "run": (model.run(seed=0), ()),
    }
    for command, (result, options) in shown.items():
        words = (command, file, "--on", "trn2,nodes=2", *options)
        text = printed(capsys, *words)
        assert without_seconds(text).rstrip() == without_seconds(str(result)).rstrip()
        fields = json.loads(printed(capsys, *words, "--json"))
        given = json.loads(json.dumps(result.as_dict()))
        assert steady(given).items() <= steady(fields).items()


def steady(fields: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from run to run."""
    verified = fields.get("verified", {"proofs": []})
    for record in (fields, verified, *verified["proofs"]):
        for name in ("host_s", "seconds"):
            record.pop(name, None)
    if fields.get("host_memory"):
        fields["host_memory"].pop("budget")  # of what is free at the time
    return fields


def test_topologies_print_and_give_what_the_command_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    topology = ncc_runtime.Topology.load("trn2", nodes=2, lnc=1)
    words = ("topology", "show", "trn2", "--nodes", "2", "--lnc", "1")
    assert printed(capsys, *words) == str(topology)
    fields = json.loads(printed(capsys, *words, "--json"))
    assert json.loads(json.dumps(topology.as_dict())).items() <= fields.items()
    assert len(fields["links"]) == len(topology.links)
    assert all(figure["source"] for figure in fields["figures"].values())
    known = ncc_runtime.topologies()
    assert printed(capsys, "topology", "list") == f"{known}\n"
    rows = json.loads(printed(capsys, "topology", "list", "--json"))["topologies"]
    assert [row["name"] for row in rows] == [row.name for row in known]
    assert len(known) == len(rows) > len(preset_names())


def test_a_topology_object_is_what_its_name_is(neff: ncc_compiler.Neff, tmp_path: Path) -> None:
    by_name = ncc_runtime.load(neff, "trn2", nodes=2, lnc=1).run(values=False)
    topology = ncc_runtime.Topology.load("trn2", nodes=2, lnc=1)
    model = ncc_runtime.load(neff, topology)
    assert model.topology is topology
    assert model.run(values=False).time_us == by_name.time_us
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\nbase = "trn2.48xlarge"\n')
    assert ncc_runtime.Topology.load(own).max_ranks == 64


def test_a_topology_object_has_its_own_nodes_and_lnc(neff: ncc_compiler.Neff) -> None:
    topology = ncc_runtime.Topology.load("trn2.3xlarge")
    with pytest.raises(PlacementError, match="leave them out"):
        ncc_runtime.load(neff, topology, nodes=2)
    with pytest.raises(PlacementError, match="8 ranks do not fit on 1 "):
        ncc_runtime.load(neff, topology)
    with pytest.raises(TopologyError, match="did you mean"):
        ncc_runtime.Topology.load("trn2.48large")


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps what is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.shown: list[str] = []
        self.pictures: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag == "img":
            self.pictures += [value for name, value in attrs if name == "src" and value]
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


def test_notebooks_get_tables_and_pictures_without_scripts(model: ncc_runtime.Model) -> None:
    run = model.run(seed=0)
    topology = ncc_runtime.Topology.load("trn2")
    known = ncc_runtime.topologies()
    shown = [model.explain(), model.list(), model.verify(), run, topology, known, model]
    pages = [Page(each._repr_html_()) for each in shown]
    for page in pages:
        assert page.tags <= {"div", "p", "pre", "table", "caption", "thead", "tbody"} | {
            *("tr", "th", "td", "img")
        }
    of_run = " ".join(pages[3].shown)
    assert run.collectives[0].algorithm in of_run
    assert f"{run.time_us:.3f}" in of_run
    assert "f32[1000]" in of_run
    for page, svg_text in ((pages[4], topology.svg()), (pages[6], model.svg())):
        (picture,) = page.pictures
        head, _, data = picture.partition(",")
        assert head == "data:image/svg+xml;base64"
        assert base64.b64decode(data).decode() == svg_text
        assert ElementTree.fromstring(svg_text).tag.endswith("svg")


def test_names_of_users_are_escaped(
    model: ncc_runtime.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = model.run(seed=0)
    row = attrs.evolve(run.collectives[0], name="<script>&")
    monkeypatch.setattr("ncc_runtime.report.run.collective_rows", lambda *_: (row,))
    shown = attrs.evolve(run, notes=("<b>",))._repr_html_()
    assert "&lt;script&gt;&amp;" in shown
    assert "&lt;b&gt;" in shown
    assert Page(shown)


def test_long_tables_and_large_pictures_are_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"the first {MOST_ROWS} of 60" in table("rows", ["n"], [(n,) for n in range(60)])
    assert table("rows", ["n"], []) == ""
    topology = ncc_runtime.Topology.load("trn2")
    assert "<img" in topology._repr_html_()
    monkeypatch.setattr(svg, "LARGEST_HTML", 100)
    assert "<pre" in topology._repr_html_()


def test_a_trace_is_written_by_model_and_by_run(model: ncc_runtime.Model, tmp_path: Path) -> None:
    run = model.trace(tmp_path / "all.json", ranks=[0, 3])
    assert run.outputs == []
    assert model.trace(tmp_path / "some.json", [np.ones(1000)], values=True).outputs[0][0, 0] == 1
    again = model.run(seed=0)
    again.write_trace(tmp_path / "again.json", ranks=[0, 3])
    assert (tmp_path / "all.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    with pytest.raises(InputError, match="clock=True"):
        model.run(seed=0, clock=False).write_trace(tmp_path / "none.json")
    with pytest.raises(InputError, match="rank 8 is not below"):
        again.write_trace(tmp_path / "none.json", ranks=[8])


def test_what_is_not_there_is_said(model: ncc_runtime.Model) -> None:
    with pytest.raises(InputError, match="rank 99 is not below the program's 8 ranks"):
        model.list(99)
    with pytest.raises(InputError, match=r"no queue 'Tenor'; there are Tensor"):
        model.list(queue="Tenor")


def test_a_forced_algorithm_stays_chosen_in_explain(neff: ncc_compiler.Neff) -> None:
    model = ncc_runtime.load(neff, algorithms={"all-reduce": "ring"})
    assert "forced" in str(model.explain())
    assert "all-reduce by ring" in repr(model.explain())
