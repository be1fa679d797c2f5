"""The timeline as Chrome trace events, `.json`, which Perfetto and chrome://tracing open.

Times are microseconds with all their digits. Source: Trace Event Format (Google, document
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): X slices, s and f arrows, C counters, M names.
"""

import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from ncc_runtime.report.timeline.tracks import (
    Argument,
    Samples,
    Slices,
    Texts,
    TimelineBatch,
    Track,
)

_GROUP_BITS = 32


class ChromeWriter:
    """Writes batch after batch to a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._names: dict[int, str] = {}  # of counters
        self._between = "\n"  # what stands before the next line
        self._stream.write(b'{"displayTimeUnit": "ns", "traceEvents": [')

    def write(self, content: TimelineBatch | Samples) -> None:
        """Append tracks, then slices or samples."""
        lines = [line for track in content.tracks for line in _named(track)]
        if isinstance(content, Samples):
            self._names |= {track.number: track.name for track in content.tracks}
            lines += self._samples(content)
        else:
            lines += _slices(content.slices)
            if content.around is not None:
                lines += _slices(content.around.slices)
        if lines:
            self._stream.write((self._between + ",\n".join(lines)).encode())
            self._between = ",\n"

    def end(self) -> None:
        """Close what is open."""
        self._stream.write(b"\n]}\n")

    def _samples(self, samples: Samples) -> Iterator[str]:
        columns = (samples.track.tolist(), _us(samples.time_ps), samples.value.tolist())
        for track, time, value in zip(*columns, strict=True):
            name = json.dumps(self._names[track])
            yield f'{{"ph":"C","pid":0,"name":{name},"ts":{time},"args":{{"GB/s":{value:g}}}}}'


def _named(track: Track) -> Iterator[str]:
    """The name and position of a group or a track; counters name themselves."""
    if track.is_counter:
        return
    place = _place(track.number) if track.parent else f'"pid":{track.number >> _GROUP_BITS}'
    kind = "thread" if track.parent else "process"
    name = json.dumps(track.name)
    yield f'{{"ph":"M",{place},"name":"{kind}_name","args":{{"name":{name}}}}}'
    order = f'"args":{{"sort_index":{track.order}}}'
    yield f'{{"ph":"M",{place},"name":"{kind}_sort_index",{order}}}'


def _place(track: int) -> str:
    return f'"pid":{track >> _GROUP_BITS},"tid":{track & (1 << _GROUP_BITS) - 1}'


def _us(time_ps: np.ndarray) -> list[str]:
    """Picoseconds as microseconds, exactly."""
    us_part, ps_part = np.divmod(time_ps.astype(np.int64), 10**6)
    pairs = zip(us_part.tolist(), ps_part.tolist(), strict=True)
    return [f"{us}.{ps:06d}" if ps else str(us) for us, ps in pairs]


def _slices(slices: Slices) -> Iterator[str]:
    """Every slice, and the ends of the arrows that it has."""
    places = {track: _place(track) for track in np.unique(slices.track).tolist()}
    at = [places[track] for track in slices.track.tolist()]
    start, took = _us(slices.start_ps), _us(slices.end_ps - slices.start_ps)
    names, category = _quoted(slices.name), json.dumps(slices.category)
    arguments = [""] * len(slices)
    if slices.arguments:
        columns = map(_members, slices.arguments)
        arguments = [",".join(filter(None, row)) for row in zip(*columns, strict=True)]
    for place, begin, duration, name, members in zip(
        at, start, took, names, arguments, strict=True
    ):
        yield (
            f'{{"ph":"X",{place},"cat":{category},"name":{name},"ts":{begin},"dur":{duration},'
            f'"args":{{{members}}}}}'
        )
    for column in slices.leaves:
        yield from _arrows("s", column, at, start)
    yield from _arrows("f", slices.arrives, at, start)


def _arrows(
    phase: str, numbers: np.ndarray, places: Sequence[str], start: Sequence[str]
) -> Iterator[str]:
    for k in np.flatnonzero(numbers).tolist():
        yield (
            f'{{"ph":"{phase}",{places[k]},"cat":"collective","name":"collective",'
            f'"id":{int(numbers[k])},"bp":"e","ts":{start[k]}}}'
        )


def _quoted(texts: Texts) -> list[str]:
    used = {code: json.dumps(texts.words[code]) for code in np.unique(texts.code).tolist()}
    return [used[code] for code in texts.code.tolist()]


def _members(argument: Argument) -> list[str]:
    """An argument of every slice as a member of a JSON object, empty where it is not given."""
    if isinstance(argument.values, Texts):
        values = _quoted(argument.values)
    else:
        values = [str(value) for value in argument.values.tolist()]
    members = [f'"{argument.name}":{value}' for value in values]
    if argument.given is None:
        return members
    pairs = zip(members, argument.given.tolist(), strict=True)
    return [member if given else "" for member, given in pairs]
