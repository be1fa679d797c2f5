"""Timelines on disk, read back, against the trace that they were made of."""

import gzip
import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path

import attrs
import numpy as np
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from ncc_runtime.errors import InputError
from ncc_runtime.execution.trace import Trace
from ncc_runtime.progress import heard_by
from ncc_runtime.report.timeline import link_use, perfetto_file, tracks
from ncc_runtime.report.timeline.marks import Mark
from ncc_runtime.report.timeline.write import write_timeline
from tests.listening import Heard
from tests.report.traces import all_reduce, simple
from tests.small_executables import looped


@attrs.frozen
class Slice:
    """A slice as a viewer has it."""

    group: str
    track: str
    number: int  # of its track
    name: str
    category: str
    start: float  # ns
    end: float
    arguments: dict
    leaves: tuple[int, ...]
    arrives: tuple[int, ...]


def read_perfetto(path: Path) -> tuple[list[Slice], dict[str, list[tuple[int, float]]]]:
    """Slices, and the samples of every counter."""
    trace = pb.Trace.FromString(path.read_bytes())
    descriptors: dict[int, pb.TrackDescriptor] = {}
    words: dict[str, dict[int, object]] = defaultdict(dict)
    opened: dict[int, list] = defaultdict(list)
    slices, samples = [], defaultdict(list)
    for packet in trace.packet:
        if packet.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            words.clear()
        if packet.HasField("track_descriptor"):
            descriptors[packet.track_descriptor.uuid] = packet.track_descriptor
        for field, entries in packet.interned_data.ListFields():
            words[field.name] |= {one.iid: one for one in entries}
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        if event.type == pb.TrackEvent.TYPE_COUNTER:
            name = descriptors[event.track_uuid].name
            samples[name].append((packet.timestamp, event.double_counter_value))
        elif event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            opened[event.track_uuid].append((packet.timestamp, event, parsed(event, words)))
        else:
            start, begin, (name, category, arguments) = opened[event.track_uuid].pop()
            track = descriptors[event.track_uuid]
            group = descriptors[track.parent_uuid].name
            ends = tuple(begin.flow_ids), tuple(begin.terminating_flow_ids)
            what = group, track.name, track.uuid, name, category
            slices.append(Slice(*what, start, packet.timestamp, arguments, *ends))
    assert not any(opened.values())
    return slices, samples


def parsed(event: pb.TrackEvent, words: dict) -> tuple[str, str, dict]:
    arguments = {}
    for one in event.debug_annotations:
        kind = one.WhichOneof("value")
        value = getattr(one, kind)
        if kind == "string_value_iid":
            value = words["debug_annotation_string_values"][value].str.decode()
        arguments[words["debug_annotation_names"][one.name_iid].name] = value
    name = words["event_names"][event.name_iid].name
    return name, words["event_categories"][event.category_iids[0]].name, arguments


def read_chrome(path: Path) -> tuple[list[Slice], dict[str, list[tuple[float, float]]]]:
    data = path.read_bytes()
    events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    names = {
        (one["name"], one["pid"], one.get("tid")): one["args"].get("name")
        for one in events
        if one["ph"] == "M"
    }
    ends = {phase: defaultdict(list) for phase in "sf"}
    for one in events:
        if one["ph"] in ends:
            ends[one["ph"]][one["pid"], one["tid"], one["ts"]].append(one["id"])
    slices, samples = [], defaultdict(list)
    for one in events:
        if one["ph"] == "C":
            samples[one["name"]].append((one["ts"] * 1000, one["args"]["GB/s"]))
        if one["ph"] != "X":
            continue
        pid, tid, start = one["pid"], one["tid"], one["ts"]
        what = names["process_name", pid, None], names["thread_name", pid, tid], pid << 32 | tid
        arrows = (tuple(ends[phase][pid, tid, start]) for phase in "sf")
        times = start * 1000, (start + one["dur"]) * 1000
        slices.append(Slice(*what, one["name"], one["cat"], *times, one["args"], *arrows))
    return slices, samples


READERS = {"a.pftrace": read_perfetto, "a.json": read_chrome, "a.json.gz": read_chrome}
every_format = pytest.mark.parametrize("name", READERS)


def written_and_read(trace: Trace, path: Path, ranks: np.ndarray | None = None):
    write_timeline(str(path), trace, ranks)
    return READERS[path.name](path)


@every_format
def test_every_event_is_a_slice_on_the_track_of_its_queue_and_rank(tmp_path: Path, name: str):
    trace = simple(all_reduce())
    slices, _ = written_and_read(trace, tmp_path / name)
    own = {one.arguments["event"]: one for one in slices if "event" in one.arguments}
    assert sorted(own) == list(range(len(trace)))
    for event, one in own.items():
        queue = trace.executable.queues[trace.queue[event]]
        assert one.track == queue.name
        assert one.group.startswith(f"rank {trace.rank[event]} ")
        assert one.arguments["start_ps"] == trace.start_ps[event]
        assert one.arguments["duration_ps"] == trace.end_ps[event] - trace.start_ps[event]
        assert one.arguments.get("cause", -1) == trace.cause[event]
        assert abs(one.start - trace.start_ps[event] / 1000) < 1
        assert abs(one.end - trace.end_ps[event] / 1000) < 1


@every_format
def test_slices_of_one_track_follow_each_other_or_nest(tmp_path: Path, name: str):
    slices, _ = written_and_read(simple(all_reduce(repeat=2)), tmp_path / name)
    tracks_of = defaultdict(list)
    for one in slices:
        tracks_of[one.number].append((one.start, -one.end))
    for spans in tracks_of.values():
        open_ends = []
        for start, end in sorted(spans):
            while open_ends and open_ends[-1] <= start + 0.001:
                open_ends.pop()
            assert not open_ends or -end <= open_ends[-1] + 0.001
            open_ends.append(-end)


@every_format
def test_a_collective_encloses_its_rows(tmp_path: Path, name: str):
    trace = simple(all_reduce(repeat=2))
    slices, _ = written_and_read(trace, tmp_path / name)
    around = [one for one in slices if one.category == "collective"]
    assert len(around) == 2 * 4
    for one in around:
        inside = [
            other
            for other in slices
            if (other.group, other.track, other.category) == (one.group, one.track, "cc")
            and one.start <= other.start < one.end
        ]
        assert all(other.end <= one.end + 0.001 for other in inside)
        assert {other.name.split()[1] for other in inside} == {one.name.split()[0]}
        assert one.arguments["algorithm"] == "ring"


@every_format
def test_arrows_go_from_the_trigger_to_the_collective_to_who_waits(tmp_path: Path, name: str):
    slices, _ = written_and_read(simple(looped()), tmp_path / name)
    begin = {number: one for one in slices for number in one.leaves}
    end = {number: one for one in slices for number in one.arrives}
    assert sorted(begin) == sorted(end)
    if name.endswith("pftrace"):  # in the other format several slices may begin where an arrow does
        kinds = Counter((begin[n].category, end[n].category) for n in begin)
        # four ranks, three turns and one after the loop; in the loop two engines wait
        assert kinds == {("engine", "collective"): 16, ("collective", "engine"): 12 * 2 + 4}
    for number, one in begin.items():
        other = end[number]
        assert one.group == other.group
        assert one.start <= other.start
        if (one.category, other.category) == ("collective", "engine"):
            assert one.end <= other.start + 1


def test_in_a_loop_each_turn_has_its_own_arrows(tmp_path: Path):
    slices, _ = written_and_read(simple(looped()), tmp_path / "a.pftrace")
    end = {number: one for one in slices for number in one.arrives}
    for one in slices:
        if one.category == "collective":
            waiting = [end[number].start for number in one.leaves]
            assert one.end <= min(waiting) + 1
            later = [
                other.start
                for other in slices
                if (other.group, other.category) == (one.group, "collective")
                and other.start > one.start
            ]
            assert not later or max(waiting) <= min(later)


def test_a_wait_shows_the_semaphore_and_the_value_it_had_to_reach(tmp_path: Path):
    trace = simple(looped())
    slices, _ = written_and_read(trace, tmp_path / "a.pftrace")
    triggers = [
        one.arguments
        for one in slices
        if one.category == "cc" and one.name.startswith("wait p0") and "rank 0" in one.group
    ]
    until = [one["until"] for one in triggers if one.get("waited_for") == "trigger0"]
    assert until == sorted(set(until))
    assert len(until) == 3


@every_format
def test_a_transfer_names_its_bytes_peer_and_way(tmp_path: Path, name: str):
    trace = simple(all_reduce())
    slices, _ = written_and_read(trace, tmp_path / name)
    moved = [one for one in slices if one.category == "dma"]
    assert moved
    for one in moved:
        event = one.arguments["event"]
        queue = trace.executable.queues[trace.queue[event]]
        cell = trace.row[event], trace.rank[event]
        assert one.arguments["bytes"] == queue.size_bytes[cell]
        assert one.arguments["peer"] == queue.peer[cell]
        way = trace.executable.routes.describe(int(trace.rank[event]), int(queue.peer[cell]))
        assert one.arguments["route"] == way


@every_format
def test_counters_give_back_the_bytes_of_every_link(tmp_path: Path, name: str):
    trace = simple(all_reduce(elements=4096))
    _, samples = written_and_read(trace, tmp_path / name)
    wanted = bytes_by_link(trace)
    assert {f"{link} GB/s" for link in wanted} == set(samples)
    for link, size in wanted.items():
        points = samples[f"{link} GB/s"]
        assert points[-1][1] == 0
        pairs = itertools.pairwise(points)
        area = sum((after - at) * rate for (at, rate), (after, _) in pairs)
        assert area == pytest.approx(size, rel=0.2)  # times are whole nanoseconds


def bytes_by_link(trace: Trace) -> Counter:
    """Event by event."""
    found: Counter = Counter()
    for event in range(len(trace)):
        queue = trace.executable.queues[trace.queue[event]]
        if queue.name.startswith("cc0.dma"):
            cell = trace.row[event], trace.rank[event]
            for link in trace.executable.routes.links(int(cell[1]), int(queue.peer[cell])):
                if queue.size_bytes[cell]:
                    found[trace.executable.topology.links.name(link)] += queue.size_bytes[cell]
    return found


def test_links_have_a_slice_while_a_collective_is_on_them(tmp_path: Path):
    trace = simple(all_reduce(elements=4096, repeat=2))
    slices, _ = written_and_read(trace, tmp_path / "a.pftrace")
    found: Counter = Counter()
    for one in slices:
        if one.category == "link":
            assert one.group == "links"
            found[one.track] += one.arguments["bytes"]
    assert found == bytes_by_link(trace)


def test_small_batches_and_forgotten_words_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trace = simple(all_reduce(repeat=2))
    whole = written_and_read(trace, tmp_path / "a.pftrace")
    monkeypatch.setattr(tracks, "PIECE", 5)
    monkeypatch.setattr(link_use, "PIECE", 3)
    monkeypatch.setattr(link_use, "MOST", 10)
    monkeypatch.setattr(perfetto_file, "_MOST_WORDS", 4)
    parts = written_and_read(trace, tmp_path / "a.pftrace")

    def key(one: Slice) -> tuple:
        return one.number, one.start, -one.end, one.name

    for found in (whole, parts):
        found[0].sort(key=key)
    assert whole[1] == parts[1]
    for one, other in zip(whole[0], parts[0], strict=True):
        if one.category != "link":
            assert one == other


@every_format
def test_chosen_ranks_alone_are_written(tmp_path: Path, name: str):
    trace = simple(all_reduce())
    chosen = np.array([False, True, False, False])
    slices, _ = written_and_read(trace, tmp_path / name, chosen)
    groups = {one.group.split(" (")[0] for one in slices}
    assert groups == {"rank 1", "links"}


@pytest.mark.parametrize("name", READERS)
def test_the_same_run_gives_the_same_bytes(tmp_path: Path, name: str):
    path = tmp_path / name
    write_timeline(str(path), simple(all_reduce()))
    first = path.read_bytes()
    write_timeline(str(path), simple(all_reduce()))
    assert path.read_bytes() == first


def test_progress_counts_every_event_once(tmp_path: Path):
    trace, heard = simple(all_reduce()), Heard()
    with heard_by(heard):
        write_timeline(str(tmp_path / "a.json"), trace)
    assert [(each.done, each.total) for each in heard.over] == [(len(trace), len(trace))]


def test_a_file_that_cannot_be_finished_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ncc_runtime.report.timeline.chrome_file.ChromeWriter.end", stop)
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_timeline(str(tmp_path / "a.json"), simple(all_reduce()))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.txt", "ends in .pftrace, .json"),
        ("none/a.json", "there is no folder"),
        ("folder.json", "is a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, name: str, message: str):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match=message):
        write_timeline(str(tmp_path / name), simple(all_reduce()))


@every_format
def test_marks_have_a_group_of_their_own(tmp_path: Path, name: str):
    path = tmp_path / name
    marks = [
        Mark("link c0-c1 down", "down", 4_000, 9_000),
        Mark("late", "late", 1_000, 2_000),
        Mark("link c0-c1 down", "down again", 1_000, 3_000),
    ]
    write_timeline(str(path), simple(all_reduce()), marks=marks)
    slices, _ = READERS[name](path)
    found = [
        (one.track, one.name, round(one.start), round(one.end))
        for one in slices
        if one.group == "faults"
    ]
    assert sorted(found) == [
        ("late", "late", 1, 2),
        ("link c0-c1 down", "down", 4, 9),
        ("link c0-c1 down", "down again", 1, 3),
    ]
