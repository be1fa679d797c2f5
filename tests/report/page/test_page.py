"""The file that `nccrt report` writes: whole, alone, and what the run says."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError
from ncc_runtime.execution.trace import NO_EVENT, Trace
from ncc_runtime.lowering.executable import CcQueue, DmaQueue, EngineQueue
from ncc_runtime.neff.memory import size_text
from ncc_runtime.report.collective_table import folded
from ncc_runtime.report.page import events, page
from ncc_runtime.report.page.page import page_of
from ncc_runtime.report.run import Run
from tests.report.page.reading import as_array, elements_of, index_of, tables_of, tracks_of

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "hlo"
MLP = DATA / "mlp_train_dp2_tp4.hlo"

DOUBLE = "ENTRY double { x = f32[2] parameter(0) ROOT y = f32[2] add(x, x) }"
SUM = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY step {
  x = f32[4096] parameter(0)
  y = f32[4096] add(x, x)
  z = f32[4096] all-reduce(y), replica_groups={}, to_apply=add
  ROOT w = f32[4096] multiply(z, z)
}
"""


def loaded(model: str | Path, topology: str = "trn2", ranks: int = 0, **place: object):
    options = CompileOptions(ranks=ranks) if ranks else CompileOptions()
    if isinstance(model, Path):
        return ncc_runtime.load(ncc_compiler.compile_file(str(model), options), topology, **place)
    return ncc_runtime.load(ncc_compiler.compile_text(model, options), topology, **place)


@pytest.fixture(scope="module")
def mlp() -> Run:
    return loaded(MLP).run(values=False, alternatives="placement")


@pytest.fixture(scope="module")
def text(mlp: Run) -> str:
    return page_of(mlp).html


def test_the_page_needs_no_other_file(text: str) -> None:
    for tag, attributes in elements_of(text):
        for name in ("src", "srcset", "data", "action", "poster"):
            assert name not in attributes, (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#"), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "base")
    own = re.sub(r"<script>/?\s*/\*.*?</script>", "", text, flags=re.DOTALL)  # of the library
    own = re.sub(r"<pre>.*?</pre>", "", own, flags=re.DOTALL)  # its licences
    assert "url(" not in own
    assert "@import" not in own
    assert set(re.findall(r"https?://[^\s\"'<]+", own)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\s*\(", own)


def test_the_library_names_no_address_but_those_of_licences_and_name_spaces() -> None:
    addresses = set(re.findall(r"https?://[^\s\"')]+", page.library_text()))
    known = ("http://www.w3.org/", "http://www.apache.org/licenses/", "https://github.com/ecomfe/")
    assert all(address.startswith(known) for address in addresses)


def test_the_licences_of_the_library_are_in_the_page(text: str) -> None:
    for words in ("Apache License", "Version 2.0, January 2004", "Mike Bostock", "NOTICE"):
        assert words in text


def test_equal_runs_give_equal_bytes(text: str) -> None:
    again = loaded(MLP).run(values=False, alternatives="placement")
    assert page_of(again).html == text


def ordered(trace: Trace) -> dict[tuple[int, int], np.ndarray]:
    """The events of every rank and queue, in order."""
    found = {}
    for rank in range(trace.executable.representatives):
        for queue in range(len(trace.executable.queues)):
            events_of = np.flatnonzero((trace.queue == queue) & (trace.rank == rank))
            if len(events_of):
                found[rank, queue] = events_of
    return found


def test_every_event_is_in_the_page_with_its_times_text_and_cause(mlp: Run, text: str) -> None:
    trace, words = mlp.trace, index_of(text)["words"]
    assert trace is not None
    wanted = ordered(trace)
    place = {event: (*key, at) for key, ids in wanted.items() for at, event in enumerate(ids)}
    found = {
        (track.rank, track.number): track
        for track in tracks_of(text)
        if track.queue["kind"] in ("engine", "cc", "dma")
    }
    assert found.keys() == wanted.keys()
    listed = ncc_runtime.report.row_texts.row_texts
    for (rank, number), ids in wanted.items():
        track, rows = found[rank, number], trace.row[ids]
        assert track.start == trace.start_ps[ids].tolist()
        assert track.end == trace.end_ps[ids].tolist()
        names = [words[track.queue["names"][row]] for row in track.columns["row"]]
        texts = listed(mlp.executable, number)
        assert names == [texts.name[row] for row in rows]
        if any(texts.place):
            lines = [words[track.queue["lines"][row]] for row in track.columns["row"]]
            assert lines == [texts.place[row] for row in rows]
        for at, event in enumerate(ids.tolist()):
            reason = track.columns["reason"][at] % events.ON_PATH
            assert reason == trace.reason[event]
            cause = int(trace.cause[event])
            if cause == NO_EVENT:
                assert track.columns["cause_index"][at] == -1
                continue
            named = (
                rank + track.columns["cause_rank"][at],
                number + track.columns["cause_queue"][at],
                track.columns["cause_index"][at],
            )
            assert named == place[cause]


def test_what_rings_move_is_in_the_page(mlp: Run, text: str) -> None:
    trace = mlp.trace
    assert trace is not None
    for track in tracks_of(text):
        if track.queue["kind"] != "dma":
            continue
        queue = trace.executable.queues[track.number]
        assert isinstance(queue, DmaQueue)
        for row, peer, size in zip(
            track.columns["row"], track.columns["peer"], track.columns["bytes"], strict=True
        ):
            assert peer == queue.peer[row, track.rank]
            assert size == np.broadcast_to(queue.size_bytes, queue.peer.shape)[row, track.rank]


def test_events_on_the_critical_path_are_marked(mlp: Run, text: str) -> None:
    from ncc_runtime.report.critical_path import critical_path

    assert mlp.trace is not None
    chain = {event for step in critical_path(mlp.trace).steps for event in step.chain}
    marked = sum(
        reason >= events.ON_PATH
        for track in tracks_of(text)
        for reason in track.columns.get("reason", [])
    )
    assert marked == len(chain) > 0


def test_collectives_are_tracks_from_trigger_to_report(mlp: Run, text: str) -> None:
    trace = mlp.trace
    assert trace is not None
    found = {}
    for track in tracks_of(text):
        if track.queue["kind"] == "collective":
            rows = zip(track.columns["row"], track.start, track.end, strict=True)
            found.update({(track.rank, row): (start, end) for row, start, end in rows})
    for number in range(len(mlp.collectives)):
        for rank, start, end in zip(*map(np.ndarray.tolist, trace.spans(number)), strict=True):
            assert found[rank, number] == (start, end)


def test_the_table_has_the_numbers_of_the_collectives(mlp: Run, text: str) -> None:
    alike, each = tables_of(text)["table-collectives-a"]
    assert len(each) == len(mlp.collectives)
    assert len(alike) == len(folded(mlp.collectives))
    for row, cells in zip(mlp.collectives, each, strict=True):
        assert cells[0] == f"p{row.id}"
        assert cells[2:4] == [row.line, row.algorithm]
        assert cells[5] == size_text(row.bytes)
        times = [row.start_us, row.time_us, row.exposed_us]
        assert cells[7:10] == [f"{time:,.1f}" for time in times]


def test_the_parts_of_the_time_add_up_to_the_run(mlp: Run, text: str) -> None:
    facts = index_of(text)["sides"][0]
    compute, collective, exposed = (
        as_array(facts[name]) for name in ("compute", "collective", "exposed")
    )
    assert (compute + exposed <= facts["time"]).all()
    assert (exposed <= collective).all()
    (rows,) = tables_of(text)["table-time"]
    parts = [float(cells[2].replace(",", "")) for cells in rows]
    assert sum(parts) == pytest.approx(mlp.time_us, abs=0.3)


def test_the_line_of_the_largest_share_is_whole(text: str) -> None:
    shares = [
        float((found["style"] or "").removeprefix("--share:"))
        for tag, found in elements_of(text)
        if tag == "td" and (found.get("style") or "").startswith("--share:")
    ]
    assert max(shares) == 1.0
    assert len(set(shares)) > 3


def test_columns_that_say_nothing_are_left_out() -> None:
    run = loaded(DOUBLE, ranks=1).run(values=False)
    page = page_of(run).html
    head = page[page.index("table-proofs-a") :].split("</thead>")[0]
    assert "verdict" in head
    assert "holds if" not in head


def test_proofs_are_a_table(mlp: Run, text: str) -> None:
    (rows,) = tables_of(text)["table-proofs-a"]
    assert [cells[:2] for cells in rows] == [[proof.name, proof.verdict] for proof in mlp.proofs]


def test_links_have_what_passed_them(mlp: Run, text: str) -> None:
    from ncc_runtime.machine_model.parts import PartKind
    from ncc_runtime.report.utilisation import utilisation

    assert mlp.trace is not None
    parts = {part.name: part for part in utilisation(mlp.trace).parts[PartKind.LINK]}
    (rows,) = tables_of(text)["table-links-a"]
    assert {cells[0]: cells[2] for cells in rows} == {
        name: size_text(part.bytes) for name, part in parts.items()
    }


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_names_are_data_wherever_they_come_from(tmp_path: Path) -> None:
    model = SUM.replace(
        "to_apply=add",
        f'to_apply=add, metadata={{op_name="{EVIL}" source_file="{EVIL}" source_line=3}}',
    )
    file = tmp_path / "own.toml"
    file.write_text(f"name = '{EVIL}'\nbase = \"trn2.48xlarge\"\nsummary = '{EVIL}'\n")
    run = loaded(model, str(file), ranks=4).run(values=False)
    text = page_of(run, run).html
    harmless = page_of(loaded(SUM, ranks=4).run(values=False)).html
    assert EVIL not in text
    assert text.count("<img") == harmless.count("<img")  # of the library
    assert not [pair for pair in elements_of(text) if "onerror" in pair[1]]
    names = {name for name in index_of(text)["words"] if EVIL in name}
    assert names  # it is there, as data
    chunks = {"chunk-b", "chunk-b0", "chunk-b1", "chunk-b2", "chunk-b3", "chunk-b.links"}
    plain = {found["id"] for tag, found in elements_of(text) if tag == "script" and "id" in found}
    known = {
        found["id"] for tag, found in elements_of(harmless) if tag == "script" and "id" in found
    }
    assert plain - known <= chunks


def test_too_many_events_become_blocks_but_for_ranks_of_the_critical_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = loaded(DATA / "fsdp_scan_layers.hlo").run(values=False)
    trace = run.trace
    assert trace is not None
    monkeypatch.setattr(events, "MOST_EVENTS", len(trace) // 2)
    made = page_of(run)
    (stored,) = made.events
    assert stored.events == len(trace)
    assert stored.kept <= len(trace) // 2
    assert stored.cell_ps > 0
    assert stored.whole
    wanted = ordered(trace)
    for track in tracks_of(made.html):
        if track.queue["kind"] not in ("engine", "cc", "dma"):
            continue
        ids = wanted[track.rank, track.number]
        merged = track.columns.get("merged", [1] * len(track.start))
        assert sum(merged) == len(ids)
        assert track.start[0] == trace.start_ps[ids[0]]
        assert max(track.end) == trace.end_ps[ids].max()
        if track.rank in stored.whole:
            assert set(merged) == {1}
        for row, count in zip(track.columns["row"], merged, strict=True):
            assert (row == events.BLOCK) is (count > 1)
    assert f"{stored.events:,} events are drawn as {stored.kept:,}" in made.html


def test_ranks_that_are_named_are_the_only_ones(mlp: Run) -> None:
    ranks = {track.rank for track in tracks_of(page_of(mlp, ranks=[1, 5]).html)}
    assert ranks == {-1, 1, 5}
    with pytest.raises(InputError, match="rank 8 is not below the program's 8 ranks"):
        page_of(mlp, ranks=[8])


def test_two_places_stand_beside_each_other(mlp: Run) -> None:
    other = loaded(MLP, "trn1").run(values=False)
    text = page_of(mlp, other).html
    tables = tables_of(text)
    (rows,) = tables["table-places"]
    assert [cells[0] for cells in rows][:2] == ["place", "predicted time"]
    assert rows[0][1:3] == [
        "1 x trn2.48xlarge, lnc 2, linear; policy neuron",
        "1 x trn1.32xlarge, lnc 1, linear; policy neuron",
    ]
    (changed,) = tables["table-changed"]
    assert {cells[0].split()[0] for cells in changed} <= {"p0", "p1", "p2", "p3"}
    assert len(index_of(text)["sides"]) == 2
    assert other.trace is not None
    times = [max(track.end) for track in tracks_of(text, 1) if track.queue["kind"] == "path"]
    assert times == [other.trace.time_ps]


def test_the_heading_says_how_each_run_was_chosen(mlp: Run) -> None:
    other = loaded(MLP, policy="best", deterministic=True).run(values=False)
    title = page_of(mlp, other).html.split("<title>")[1].split("</title>")[0]
    place = "1 x trn2.48xlarge, lnc 2, linear"
    assert title.endswith(
        f"a: {place}; policy neuron beside b: {place}; policy best, one order of reduction"
    )


def test_the_same_place_twice_changes_nothing(mlp: Run) -> None:
    text = page_of(mlp, mlp).html
    assert "Nothing changes: every rank is on the same core of the same machine." in text


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_program_without_collectives_has_a_page(ranks: int) -> None:
    text = page_of(loaded(DOUBLE, ranks=ranks).run(values=False)).html
    assert "<p>The program has no collectives.</p>" in text  # its time is that of the place still
    assert "Nothing passes a link or adapter" in text


def test_an_instance_that_stands_for_all_has_a_page() -> None:
    model = loaded(SUM, ranks=256, times_only=True)
    text = page_of(model.run(values=False, verify=False)).html
    assert {track.rank for track in tracks_of(text)} == {-1, *range(64)}
    assert "Not verified (--no-verify)." in text
    root = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    busy = [
        box.attrib["class"] for box in root.findall("{*}rect") if "adapter" in box.attrib["class"]
    ]
    assert len(busy) == 64
    assert not [kind for kind in busy if "load0" in kind]  # of all instances


def test_what_is_compared_is_simulated_on_as_many_ranks(tmp_path: Path) -> None:
    neff = tmp_path / "m.neff"
    ncc_compiler.compile_text(SUM, CompileOptions(ranks=128)).save(neff)
    page = tmp_path / "both.html"
    words = ["report", str(neff), "-o", str(page), "--no-verify", "--on", "trn2"]
    assert main([*words, "--against", "trn2,policy=best", "--alternatives", "none"]) == 0
    text = page.read_text()
    assert [side["simulated"] for side in index_of(text)["sides"]] == [128, 128]
    assert "Nothing changes" in text


def test_runs_with_columns_of_fewer_ranks_are_not_compared() -> None:
    settings = {"values": False, "verify": False}
    whole, part = (
        loaded(SUM, ranks=128, times_only=part).run(**settings) for part in (False, True)
    )
    with pytest.raises(InputError, match="columns of 64 ranks and the other of 128"):
        page_of(whole, part)


def test_a_run_that_stalls_has_a_page_that_says_why(tmp_path: Path) -> None:
    model = loaded(MLP)
    run = model.run(values=False, faults="completion 0 of cc0.dma0 on rank 1 lost")
    assert run.trace is None
    text = page_of(run).html
    assert '<p class="verdict">The run stalls: transfer 0 of cc0.dma0 of rank 1' in text
    marks = [track for track in tracks_of(text) if track.queue["kind"] == "fault"]
    assert any(track.queue["name"].startswith("stalled ") for track in marks)
    with pytest.raises(InputError, match="no times"):
        page_of(model.run(values=False, clock=False))


def test_faults_of_a_run_are_marked_in_the_picture() -> None:
    run = loaded(MLP).run(
        values=False, faults=["at 20us: link c0-c1 down for 50us", "rank 3 slow by 2"]
    )
    text = page_of(run).html
    root = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    lines = [line for line in root.findall("{*}polyline") if "fault" in line.attrib["class"]]
    assert lines
    assert all("c0" in (line.findtext("{*}title") or "") for line in lines)
    slots = [box for box in root.findall("{*}rect") if "fault" in box.attrib["class"]]
    assert [slot.attrib["data-rank"] for slot in slots] == ["3"]
    words = {each.text for each in root.findall("{*}text")}
    assert {"fault: rank 3 slow to 50%", "3!"} <= words


def test_without_its_library_a_page_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    neff = tmp_path / "m.neff"
    ncc_compiler.compile_text(DOUBLE).save(neff)
    monkeypatch.setattr(page.drawing_library, "FOLDER", tmp_path / "nowhere")
    monkeypatch.setattr(page.drawing_library, "is_complete", lambda: False)
    assert main(["report", str(neff), "-o", str(tmp_path / "x.html")]) == 1
    error = capsys.readouterr().err
    assert "python -m ncc_runtime.report.page.drawing_library" in error
    assert not (tmp_path / "x.html").exists()


def test_a_page_needs_the_name_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "m.neff", "-o", str(tmp_path / "x.pdf")]) == 2
    error = capsys.readouterr().err
    assert "'--output'" in error
    assert "does not end in .html" in error


def test_python_writes_the_same_page(tmp_path: Path, mlp: Run, text: str) -> None:
    run = loaded(MLP).report(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == text
    assert run.time_us == mlp.time_us
    run.write_report(tmp_path / "b.html", per_step="8192 tokens")
    assert "tokens a second" in (tmp_path / "b.html").read_text()


def test_a_large_page_stays_below_ten_megabytes() -> None:
    run = loaded(DATA / "llama_4l_64ranks.hlo").run(values=False, verify=False)
    made = page_of(run)
    assert run.trace is not None
    assert made.events[0].kept == len(run.trace)
    assert len(made.html.encode()) < 10e6


def test_queues_of_all_kinds_are_tracks(mlp: Run, text: str) -> None:
    kinds = {
        type(queue): kind
        for queue in mlp.executable.queues
        for kind, of in (("engine", EngineQueue), ("cc", CcQueue), ("dma", DmaQueue))
        if isinstance(queue, of)
    }
    shown = {track.queue["kind"] for track in tracks_of(text)}
    assert shown == {*kinds.values(), "collective", "path"}
